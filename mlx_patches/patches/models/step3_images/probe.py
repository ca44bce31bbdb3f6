"""Pads a wide image, and processes a prompt with two images."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_of, own_class_of, require_module

TOKEN = "<im_patch>"


def probe(target: Target) -> Result:
    """Red if the image is padded, or if the processor raises."""
    kind, pillow = own_class_of(target), require_module("PIL.Image")
    if "Patcher" in target.name:
        size = kind().square_pad(pillow.new("RGB", (64, 40))).size
        return Result(size != (64, 40), f"an image of 64 by 40 is padded to {size}")
    images = [pillow.new("RGB", (8, 8))] * 2
    given = kind.__call__(make_processor(kind, module_of(target)), f"a{TOKEN}b{TOKEN}c", images)
    rows = given["input_ids"].tolist()
    return Result(rows != [[1, 7, 7, 2, 7, 7, 3]], f"the tokens are {rows}")


def make_processor(kind: Any, module: Any) -> Any:
    """A processor that gives an image two tokens, and a letter its number in the alphabet."""
    numpy = require_module("numpy")

    class Tokenizer:
        pad_token_id = 26

        def __call__(self, text: str, **_: Any) -> Any:
            return SimpleNamespace(input_ids=[ord(letter) - ord("a") + 1 for letter in text])

    return SimpleNamespace(
        tokenizer=Tokenizer(),
        image_token=TOKEN,
        image_size=8,
        patcher=module.ImagePatcher(),
        _image_repl=lambda: [7, 7],
        _patch_repl=lambda *_: [],
        _normalize_images=lambda images: images,
        _tensor=lambda image, size: numpy.zeros((1, 3, size, size)),
    )
