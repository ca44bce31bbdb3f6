"""What transformers computes: ``python -m mlx_patches.lab.images.authors FOLDER ENTRY...``.

Needs torch. Writes a folder for each entry below FOLDER: in ``published`` and ``saved`` the
tiny model in the spelling of published folders and as transformers saves it, the images, and the
results of each stage: ``stages.npz`` and ``stages.json``. The pixels are those of transformers' PIL
backend, which releases follow; those of its default backend are there to be recognized.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from . import pictures, published, sounds, videos

# The tokens that are generated after a prompt.
DECODED = 8
# The longest prompt that runs through the models.
LONGEST = 4000
# The parts whose output is compared, by the names that either implementation has for them.
PARTS = {
    "audio": ("audio_tower", "embed_audio"),
    "tower": ("visual", "vision_tower", "vision_model", "embed_vision"),
    "projector": ("multi_modal_projector", "multi_modality_projector", "connector", "embed_vision"),
}
# Published names of the vision tower's weights: transformers restores them only in loaded models.
TOWER = {r"vision_tower\.(?!vision_model)": "vision_tower.vision_model."}
# transformers 5.5 saves weights with a prefix too many, under names that no published folder has:
# how a file's names begin then, and the patterns that restore them. The first that fits counts.
PREFIXED = {
    "model.language_model.model.": {r"^model\.": ""},
    "model.language_model.language_model.": {
        r"^model\.(language_model\.)+(?=visual\.|language_model\.)": "model."
    },
    "model.embed_tokens.": {r"^model\.(?=visual\.)": ""},
}


def main() -> None:
    """Make each entry of the command line."""
    root, *names = sys.argv[1:]
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for name in names:
        folder = Path(root) / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            check_version(published.entry(name), transformers.__version__)
            facts = make_entry(published.entry(name), folder)
        except Exception as error:
            facts = {"unmade": " ".join(f"{type(error).__name__}: {error}".split())[:240]}
        facts["transformers"] = transformers.__version__
        (folder / "stages.json").write_text(json.dumps(facts, indent=1))


def check_version(one: published.Json, version: str) -> None:
    """Raise ValueError if this transformers is known to compute something else for an entry."""
    first, why = one.get("wrong-before", ("0", ""))
    if [*map(int, version.split(".")[:2])] < [*map(int, first.split("."))]:
        raise ValueError(f"transformers before {first} {why}")
    wrong, why = one.get("wrong-in", ("0", ""))
    if version.startswith(f"{wrong}."):
        raise ValueError(f"transformers {wrong} {why}")


def check_count(one: published.Json, images: int) -> None:
    """Raise ValueError if transformers lets this many images of a prompt attend to each other."""
    if images > one.get("most", images):
        raise ValueError(f"transformers mixes {images} images of a prompt")


def check_lanczos(images: Any, torchvision: str) -> None:
    """Raise ValueError if an image processor that PIL cannot replace only approximates Lanczos."""
    if getattr(images, "resample", None) == 1 and [*map(int, torchvision.split(".")[:2])] < [0, 27]:
        raise ValueError("torchvision before 0.27 resizes with a bicubic filter for Lanczos")


def make_entry(one: published.Json, folder: Path) -> dict[str, Any]:
    """Make an entry's folder and arrays; returns the facts about its cases."""
    import numpy as np
    import transformers

    home = folder / "published"
    home.mkdir()
    model, ids = write_folder(one, home)
    write_copy(one, home, folder / "saved")
    published.write_code(one, home)
    if {"renamed", "transposed", "unused"} & one.keys():
        rewrite(home / "model.safetensors", one.get("renamed", {}), one)
    processor, default = processors(folder / "saved")
    arrays: dict[str, Any] = {}
    facts: dict[str, Any] = {"ids": ids, "cases": {}, "pil": default is not None}
    if default is None:
        check_lanczos(processor.image_processor, metadata.version("torchvision"))
        default = resize_columns_first(processor.image_processor)
    seen = watch(model)
    try:
        check_version(one.get("audio") or {}, transformers.__version__)
        heard = sounds.find_cases(one)
    except ValueError as error:
        heard, facts["silent"] = [], str(error)
    for case in (*pictures.CASES, *heard, *videos.list_cases(one)):
        outcome: dict[str, Any] = {}
        facts["cases"][case] = outcome
        try:
            inputs = process_case(one, processor, folder, case)
        except Exception as error:
            outcome["refused"] = f"{type(error).__name__}: {error}"[:200]
            continue
        outcome["tokens"] = int(inputs["input_ids"].shape[1])
        derived = DERIVED.get(one["type"], lambda _, __: {})(inputs, ids)
        for key, value in {**inputs, **derived}.items():
            if hasattr(value, "numpy") and key not in one.get("unlike", ()):
                value = fold(one, inputs, numpy(value)) if key == "pixel_values" else numpy(value)
                arrays[f"{case}/in/{one.get('inputs', {}).get(key, key)}"] = value
        if case in pictures.CASES and pictures.CASES[case].images:
            for key, value in pixels(one, default, folder, case).items():
                if key.startswith("pixel_values"):
                    arrays[f"{case}/default/{key}"] = fold(one, inputs, value)
        runs = case in videos.CASES or pictures.find(case).runs or case in one.get("also-runs", ())
        if runs and outcome["tokens"] <= LONGEST:
            seen.clear()
            try:
                found = run(model, inputs, ids)
            except Exception as error:
                outcome["failed"] = f"{type(error).__name__}: {error}"[:200]
                continue
            arrays.update({f"{case}/{key}": value for key, value in (found | seen).items()})
    if "square/last" in arrays:
        other = process_case(one, processor, folder, "square", seed=1)
        last, moved = arrays["square/last"], numpy(model(**other, use_cache=False).logits[0, -1])
        facts["moved"] = float(abs(moved - last).max() / abs(last).max())
    np.savez(folder / "stages.npz", **arrays)
    return facts


def write_folder(one: published.Json, home: Path) -> tuple[Any, dict[str, int]]:
    """Save a tiny model like a published one; returns the model and its special tokens."""
    import torch
    import transformers

    ids, size = published.write_tokenizer(one, home)
    published.write_processor(one, home)
    config = published.config(one, ids, size)
    torch.manual_seed(0)
    kind = getattr(transformers, one.get("auto", "AutoModelForImageTextToText"))
    model = kind.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    if amend := AMENDED.get(one["type"]):
        amend(getattr(model, "model", model))
    for name, value in model.state_dict().items():
        if not value.is_floating_point():
            continue
        if value.ndim >= 2:
            fan = value[0].numel() if value.ndim > 2 else value.shape[-1]
            value.normal_(0, fan**-0.5)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        else:
            value.add_(torch.randn_like(value) * 0.1)
    model.save_pretrained(home, save_original_format=one.get("original", True))
    remove_prefix(home / "model.safetensors")
    if one.get("tower"):
        rewrite(home / "model.safetensors", TOWER)
    if "within" in one:
        rewrite(home / "model.safetensors", {"^": one["within"][1]})
    return model, ids


def remove_prefix(path: Path) -> None:
    """Rename the weights of a file whose names have a prefix too many."""
    from safetensors import safe_open

    with safe_open(path, "pt") as found:
        names = list(found.keys())
    for prefix, renamed in PREFIXED.items():
        if any(name.startswith(prefix) for name in names):
            rewrite(path, renamed)
            break


def amend_mllama(model: Any) -> None:
    """Correct what transformers computes for an image of Llama 3.2 Vision.

    Meta's code takes the state before a layer of the tower, and masks tokens before the image.
    """
    import torch

    def shift_states(_: Any, args: Any, output: Any) -> None:
        output.hidden_states = (*args, *output.hidden_states[:-1])

    def skip_tokens(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
        rows = kwargs["full_text_row_masked_out_mask"]
        return output if rows is None else torch.where(rows[:, 0] > 0, output, args[0])

    model.vision_model.transformer.register_forward_hook(shift_states)
    for at in model.language_model.cross_attention_layers:
        model.language_model.layers[at].register_forward_hook(skip_tokens, with_kwargs=True)


def amend_hunyuan(model: Any) -> None:
    """Correct what transformers computes for an image of HunyuanOCR.

    Tencent's code gives both halves of a rotated pair the same axis, and samples the positions of
    the patches by a factor that is a little larger than the ratio of the sides.
    """
    import torch

    rotary, patches = model.language_model.rotary_emb, model.vision_tower.embeddings

    def divide(frequencies: Any) -> Any:
        parts = frequencies.split(rotary.mrope_section, dim=-1)
        return torch.cat([part[axis] for axis, part in enumerate(parts)] * 2, dim=-1)

    def sample(features: Any, *sides: int) -> Any:
        edge = patches.position_edge
        grid = patches.position_embedding.weight[1:].reshape(1, edge, edge, -1).permute(0, 3, 1, 2)
        scale = [(float(side) + 0.1) / edge for side in sides]
        found = torch.nn.functional.interpolate(grid, scale_factor=scale, mode="bilinear")
        return found.permute(0, 2, 3, 1).flatten(1, 2)

    rotary.recomposition_frequencies = divide
    patches.interpolate_pos_encoding = sample


def amend_phi4(model: Any) -> None:
    """Correct what transformers computes for several sounds of Phi-4 multimodal.

    Microsoft's code masks the padding of the shorter sounds; transformers adds the mask as numbers.
    """
    import torch

    encoder = model.embed_tokens_extend.audio_embed.encoder
    embed = encoder.forward_embeddings

    def embed_masked(features: Any, padding: Any) -> Any:
        states, mask, padding = embed(features, padding)
        return states, torch.where(mask, 0.0, -torch.inf), padding

    encoder.forward_embeddings = embed_masked


def amend_phi4_inputs(inputs: Any) -> None:
    """Clear the frames after a shorter sound's end, of which transformers leaves two."""
    if "audio_attention_mask" in inputs:
        inputs["audio_input_features"][~inputs["audio_attention_mask"].bool()] = 0


def amend_nemotron(model: Any) -> None:
    """Remove the scales and the buffer of RADIO that published weights lack."""
    import torch

    model.vision_model._non_persistent_buffers_set.add("summary_idxs")
    for layer in model.vision_model.encoder.layer:
        layer.layer_scale1 = layer.layer_scale2 = torch.nn.Identity()


# Corrections of what transformers computes, by model type.
AMENDED = {
    "hunyuan_vl": amend_hunyuan,
    "mllama": amend_mllama,
    "nemotron_h_omni": amend_nemotron,
    "phi4_multimodal": amend_phi4,
}
AMENDED_INPUTS = {"phi4_multimodal": amend_phi4_inputs}


def derive_deepseek(inputs: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """DeepSeek's inputs: which tokens stand for an image, and columns and rows of its tiles.

    Only the number of tiles counts: an image without any has one column.
    """
    import torch

    mask = inputs["input_ids"] == ids["<image>"]
    tiles = inputs.get("num_local_patches")
    if tiles is None:
        return {}
    tiles = torch.as_tensor(tiles).clamp(min=1)
    crops = torch.stack([tiles, torch.ones_like(tiles)], -1)
    return {"images_seq_mask": mask, "images_spatial_crop": crops}


# Inputs of published code that follow from those of transformers, by model type.
DERIVED = {"deepseek_ocr2": derive_deepseek}


def rewrite(path: Path, renamed: Mapping[str, str], one: published.Json | None = None) -> None:
    """Rename the weights of a file by patterns; then change those that an entry names."""
    import torch
    from safetensors.torch import load_file, save_file

    one, found = one or {}, {}
    for name, value in load_file(path).items():
        if name.endswith(tuple(one.get("transposed", ()))):
            value = value.mT
        for pattern, new in renamed.items():
            name = re.sub(pattern, new, name)
        for end, shape in one.get("reshaped", {}).items():
            value = value.reshape(shape) if name.endswith(end) else value
        found[name] = value.contiguous()
    for whole, (first, *others) in one.get("fused", {}).items():
        for name in [name for name in found if f".{first}." in name and "vision" in name]:
            names = [name, *(name.replace(f".{first}.", f".{other}.") for other in others)]
            found[name.replace(f".{first}.", f".{whole}.")] = torch.cat([*map(found.pop, names)])
    found |= {name: torch.zeros(shape) for name, shape in one.get("unused", {}).items()}
    path.unlink()  # the copy has a link to it
    save_file(found, path, {"format": "pt"})


def write_copy(one: published.Json, home: Path, copy: Path) -> None:
    """Respell the folder's config like a published one; ``copy``: the folder as it was saved."""
    copy.mkdir()
    for path in home.iterdir():
        os.link(path, copy / path.name)
    saved = json.loads((home / "config.json").read_text())
    spellings = {home: published.respell(one, saved), copy: published.enclose(one, saved)}
    for folder, config in spellings.items():
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config, indent=1))


def processors(home: Path) -> tuple[Any, Any]:
    """The processor with the PIL backend, and the default backend if it is another."""
    from transformers import AutoImageProcessor, AutoProcessor

    processor = AutoProcessor.from_pretrained(home)
    default = processor.image_processor
    for choice in ({"backend": "pil"}, {"use_fast": False}):
        try:
            pil = AutoImageProcessor.from_pretrained(home, **choice)
            if type(pil) is not type(default):
                break
        except Exception:
            continue
    else:
        return processor, None
    processor.image_processor = pil
    return processor, default


def resize_columns_first(backend: Any) -> Callable[..., Any]:
    """The torchvision backend with the other order of Pillow, which takes the cheaper one.

    Lanczos's filter overshoots, and what is clipped between the two passes depends on their order.
    """
    from torchvision.transforms.v2 import functional

    whole = functional.resize

    def resize(image: Any, size: Sequence[int], **options: Any) -> Any:
        high = whole(image, [size[0], image.shape[-1]], **options)
        return whole(high, list(size), **options)

    def process(**given: Any) -> Any:
        with mock.patch.object(functional, "resize", resize):
            return backend(**given)

    return process


def process_case(
    one: published.Json, processor: Any, folder: Path, case: str, seed: int = 0
) -> Any:
    """The processor's inputs of a case's prompt."""
    import torch

    if why := one.get("skipped", {}).get(case):
        raise ValueError(f"transformers {why}")
    if case in videos.CASES:
        check_count(one, len(videos.CASES[case].frames))
        check_version(one.get("frames", {}), metadata.version("transformers"))
        return videos.process(one, processor, folder, case).to(torch.float32)
    shown, heard = pictures.find(case).images, sounds.save(folder, case)
    check_count(one, len(shown))
    if len(heard) > 1:
        check_version(one["audio"].get("several", {}), metadata.version("transformers"))
    images = open_images(one, folder, case, seed)
    prompt = published.prompt(one, len(shown), len(heard))
    for pattern, token in one.get("numbered", {}).items():
        prompt = re.sub(pattern, token, prompt)
    inputs = processor(
        images=images or None,
        text=[prompt],
        return_tensors="pt",
        add_special_tokens=False,
        **({"audio": [sounds.read(path) for path in heard]} if heard else {}),
    )
    if amend := AMENDED_INPUTS.get(one["type"]):
        amend(inputs)
    inputs = inputs.to(torch.bfloat16) if one.get("bfloat16") else inputs
    return inputs.to(torch.float32)  # Llama 4 makes pixels of bfloat16


def open_images(one: published.Json, folder: Path, case: str, seed: int = 0) -> list[Any]:
    from transformers.image_utils import load_image

    images = [load_image(path) for path in pictures.save(folder, case, seed)]
    return [images] if images and one.get("nested") else images


def pixels(one: published.Json, backend: Any, folder: Path, case: str) -> dict[str, Any]:
    """What an image processor makes of a case's images; empty if it refuses them."""
    import numpy as np

    images = open_images(one, folder, case)
    try:
        found = backend(images=images, return_tensors="pt")
        return {key: np.asarray(value) for key, value in found.items()}
    except Exception:
        return {}


def fold(one: published.Json, inputs: Any, patches: Any) -> Any:
    """The images of patches, in the layout of the release; patches of several sizes stay."""
    import numpy as np

    grids = inputs[one["folded"]].tolist() if "folded" in one else []
    if not grids or any(grid != grids[0] for grid in grids):
        return patches
    (rows, columns), side = grids[0], one["preprocessor"]["patch_size"]
    found = np.asarray(patches).reshape(len(grids), rows, columns, -1, side, side)
    return found.transpose(0, 3, 1, 4, 2, 5).reshape(len(grids), -1, rows * side, columns * side)


def watch(model: Any) -> dict[str, Any]:
    """Record what a call's parts compute first, by stage; a tower's pooled features too."""
    seen: dict[str, Any] = {}

    def keep(stage: str, value: Any) -> None:
        if stage not in seen and hasattr(value, "numpy"):
            seen[stage] = numpy(value)

    def keep_output(stage: str, output: Any) -> None:
        if isinstance(output, (tuple, list)):
            output = output[0] if output else None
        keep(stage, getattr(output, "last_hidden_state", output))
        keep(f"{stage} pooled", getattr(output, "pooler_output", None))

    for stage, part in parts(model):
        part.register_forward_hook(lambda _, __, out, stage=stage: keep_output(stage, out))
    layers = first_layers(model)
    if layers is not None:
        layers[0].register_forward_pre_hook(
            lambda _, args, kwargs: keep("merged", args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
    return seen


def parts(model: Any) -> Iterator[tuple[str, Any]]:
    owners = [one for one in (getattr(model, "model", None), model) if one is not None]
    used = set()
    for stage, names in PARTS.items():
        found = [getattr(o, n) for n in names for o in owners if getattr(o, n, None) is not None]
        found = [part for part in found if id(part) not in used and callable(part)]
        if found:
            used.add(id(found[0]))
            yield stage, found[0]


def first_layers(model: Any) -> Any:
    for _ in range(4):
        layers = getattr(model, "layers", None)
        if layers is not None and callable(layers[0]):  # Florence-2's are numbers
            return layers
        names = ("language_model", "text_model", "model", "encoder", "decoder")
        model = next(
            (getattr(model, n) for n in names if getattr(model, n, None) is not None), None
        )
    return None


def run(model: Any, inputs: Any, special: dict[str, int]) -> dict[str, Any]:
    """The logits after a prompt, the greedy tokens after it and their logits.

    The special tokens are not generated: they would end the text, or stand for an image.
    """
    import torch

    count = DECODED + 1
    made = model.generate(
        **inputs,
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        suppress_tokens=list(special.values()),
        pad_token_id=0,
        eos_token_id=None,
    )
    decoded = torch.stack(made.logits)[:, 0]
    return {
        "last": numpy(decoded[0]),
        "decode": numpy(decoded),
        "tokens": numpy(made.sequences[0, -count:]),
    }


def numpy(value: Any) -> Any:
    """The tensor as an array; bfloat16 as float32."""
    return (value.float() if value.is_floating_point() else value).numpy().copy()


if __name__ == "__main__":
    main()
