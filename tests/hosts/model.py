"""A tiny random-weight model with a tokenizer, as a folder that servers load.

python -m tests.hosts.model FOLDER FAMILY [PACKAGE]
"""

from __future__ import annotations

import dataclasses
import json
import string
import sys
from pathlib import Path
from typing import Any

EOS = "<eos>"
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " "
# The space of byte-level tokenizers.
SPACE = "Ġ"
# The tokens that templates and processors put around and in place of an image.
SPECIAL = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")

# By package and family. This Llama has no sliding windows, unlike the lab's, as most served models.
# Those of mlx-vlm have vision towers, which need images of at least 2 x 2 patches of 14 pixels, and
# use the tokens above.
CONFIGS = json.loads(Path(__file__).with_name("models.json").read_text())
WHOLE = CONFIGS["mlx-vlm"]
# Config keys that transformers checks before it loads a tokenizer; the lab's models lack them.
CHECKED = {"granitemoehybrid": {"mamba_expand": 1}}
# Makes the best token far more likely than others: some hosts sample at every temperature.
CERTAINTY = 1e4
# The longest prompt, in tokens, that a model's config allows.
CONTEXT = 8192
TEMPLATE = """
{%- for message in messages -%}
{%- if message['content'] is string -%}{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
"""


def save(folder: Path, family: str, package: str = "mlx-lm") -> None:
    """Write a family's model: config, weights, tokenizer; for mlx-vlm with its vision tower."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from mlx_patches.lab import Family
    from mlx_patches.lab.build import build

    folder.mkdir(parents=True, exist_ok=True)
    if package == "mlx-vlm":
        module, config = whole_model(family) if family in WHOLE else lab_model(family)
        write(folder / "preprocessor_config.json", {"patch_size": 14, "merge_size": 2})
    else:
        model = build(Family(package, family), config=CONFIGS["mlx-lm"].get(family))
        module, config = model.module, with_context(model.config)
    weights = dict(tree_flatten(module.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    # A rank of a pipeline loads the files that have its layers, and finds them by this index.
    index = dict.fromkeys(weights, "model.safetensors")
    write(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    write(folder / "config.json", {**config, **CHECKED.get(family, {}), "eos_token_id": 0})
    save_tokenizer(folder, whole=package == "mlx-vlm")


def with_context(config: dict[str, Any]) -> dict[str, Any]:
    limited = {**config, "max_position_embeddings": CONTEXT}
    if "text_config" in config:
        limited["text_config"] = {**config["text_config"], "max_position_embeddings": CONTEXT}
    return limited


def lab_model(family: str) -> tuple[Any, dict[str, Any]]:
    """A whole model of the lab and its config; its tokens differ from the tokenizer's."""
    from mlx_patches.lab import Family
    from mlx_patches.lab.whole import build_whole

    module = build_whole(Family("mlx-vlm", family)).module
    return module, dataclasses.asdict(module.config)


def whole_model(family: str) -> tuple[Any, dict[str, Any]]:
    """A model of the installed mlx-vlm with its vision tower, and its config."""
    from mlx_patches.lab.build import draw_weights
    from mlx_patches.lab.whole import with_vision_tower

    model = with_vision_tower(WHOLE[family])
    draw_weights(model, seed=0)
    norm = model.language_model.model.norm
    norm.weight = norm.weight * CERTAINTY
    return model, WHOLE[family]


def save_tokenizer(folder: Path, whole: bool = False) -> None:
    """Write a tokenizer with one token per character; token 0 ends a turn.

    ``whole`` makes it a byte-level tokenizer: mlx-vlm's server fails with others.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = SPECIAL if whole else ()
    vocabulary = {EOS: 0} | {c: i for i, c in enumerate([*CHARACTERS, *special], start=1)}
    if whole:
        vocabulary[SPACE] = vocabulary.pop(" ")
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=EOS))
    tokenizer.add_special_tokens([EOS, *special])
    tokenizer.decoder = decoders.ByteLevel() if whole else decoders.Fuse()
    if whole:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": EOS,
            "pad_token": EOS,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    save(Path(sys.argv[1]), *sys.argv[2:])
