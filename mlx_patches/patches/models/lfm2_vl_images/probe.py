"""Runs the parts of LFM2-VL that read images, with tiny sizes."""

import inspect
from contextlib import suppress
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, import_module, module_of, mx, require

NUMPY = "Lfm2VlNumpyImageProcessor"
MODEL = "mlx_vlm.models.lfm2_vl"
IMAGES = "transformers.models.auto.image_processing_auto"
PROCESSING = f"{MODEL}.processing_lfm2_vl"
WIDTH, SIDE, EPSILON = 8, 4, 1e-2
LARGE, GRID = (1600, 1200), (2, 3)


def probe(target: Target) -> Result:
    """Red if a part of the processor or of the tower computes something else."""
    require(target)
    name = target.name.rpartition(".")[2]
    if name == "resize_positional_embeddings":
        return probe_positions(module_of(target))
    if name == "load_processor":
        return probe_prompt([LARGE])
    if name == "preprocess":
        return probe_prompt([(300, 180), (224, 224)])
    return probe_tower(name == "__init__")


def probe_positions(vision: Any) -> Result:
    """Red if a table shrunk to half is not the mean that smooths with a triangle."""
    table = mx.arange(SIDE**2).astype(mx.float32).reshape(SIDE, SIDE, 1) ** 2
    resize = vision.VisionEmbeddings.resize_positional_embeddings
    found = resize(table, mx.array([[1, SIDE]]), SIDE)[0, :, 0]
    taps = mx.array([5.0, 7.0, 7.0, 5.0]) / 24
    off = mx.abs(found - taps @ table[..., 0]).max().item()
    return Result(off > 1e-3, f"the positions are off by {off:.2g}", off)


def probe_tower(of_constant: bool) -> Result:
    """Red if the tower's last norm, or its attention to padding, differs from the authors'."""
    config_of = import_module(f"{MODEL}.config").VisionConfig
    config = config_of.from_dict(
        {
            "model_type": "lfm2_vl",
            "hidden_size": WIDTH,
            "intermediate_size": WIDTH,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_patches": SIDE**2,
            "patch_size": 2,
            "layer_norm_eps": EPSILON,
        }
    )
    mx.random.seed(0)
    tower = import_module(f"{MODEL}.vision").VisionModel(config)
    if of_constant:
        used = tower.post_layernorm.eps
        return Result(used != EPSILON, f"the last norm adds {used}")
    pixels, shapes = mx.random.normal((1, SIDE, 12)), mx.array([[1, 2]])
    known = inspect.signature(type(tower).__call__).parameters
    found = []
    for part in (pixels[:, :2], pixels):
        real = {"pixel_attention_mask": mx.arange(part.shape[1])[None] < 2}
        given = {name: value for name, value in real.items() if name in known}
        found.append(tower(part, True, spatial_shapes=shapes, **given)[-1][0, :2])
    one, padded = found
    off = mx.abs(one - padded).max().item()
    return Result(off > 1e-5, f"padding changes an image by {off:.2g}", off)


def probe_prompt(sizes: list[tuple[int, int]]) -> Result:
    """Red if a prompt has other tokens than its images' features, or if no tile is named."""
    utils, processing = import_module("mlx_vlm.utils"), import_module(PROCESSING)
    seen: list[str] = []

    def tokenize(prompts: list[str], **_: Any) -> dict[str, Any]:
        seen.extend(prompts)
        return {"input_ids": [[0]]}

    processor = processing.Lfm2VlProcessor.__new__(processing.Lfm2VlProcessor)
    vars(processor).update(
        tokenizer=tokenize,
        _merge_kwargs=lambda *_, **kwargs: {"text_kwargs": kwargs, "images_kwargs": {}},
        image_token="<image>",
        image_start_token="<start>",
        image_end_token="<end>",
    )
    tokenize.init_kwargs = {}  # type: ignore[attr-defined]
    pictures: Any = import_module("PIL.Image")
    images, text = [pictures.new("RGB", size) for size in sizes], ["<image>" * len(sizes)]
    with (
        mock.patch.object(utils.AutoProcessor, "from_pretrained", return_value=processor),
        mock.patch(f"{IMAGES}.AutoImageProcessor.from_pretrained"),
        mock.patch.object(processing, "_original_call") as original,
    ):
        if not hasattr(processing, NUMPY):
            with suppress(Exception):  # the release's own needs torch
                utils.load_processor("", add_detokenizer=False)(images=images, text=text)
            return Result(not original.called, f"transformers' code is used: {original.called}")
        processor.image_processor = processing.Lfm2VlNumpyImageProcessor()
        made = utils.load_processor("", add_detokenizer=False)(images=images, text=text)
    features = sum(-(-h // 2) * -(-w // 2) for h, w in made["spatial_shapes"].tolist())
    named = LARGE not in sizes or "<|img_row_{}_col_{}|>".format(*GRID) in seen[0]
    detail = f"{seen[0].count('<image>')} tokens for {features} features"
    return Result(seen[0].count("<image>") != features or not named, detail)
