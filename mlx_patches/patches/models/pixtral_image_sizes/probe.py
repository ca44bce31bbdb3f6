"""Processes a prompt with two images, by an image processor that only measures them."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, require

PATCH, MERGED = 14, 2
SIZES = ((28, 56), (56, 56))  # height and width


def probe(target: Target) -> Result:
    """Red if the second image has another number of tokens, or a patch another size."""
    require(target)
    texts, patches = [], []

    def measure(images: Any, patch_size: int = PATCH, **_: Any) -> dict[str, Any]:
        patches.append(patch_size)
        return {"image_sizes": [image.size[::-1] for sample in images for image in sample]}

    def tokenize(text: list[str], **_: Any) -> dict[str, Any]:
        texts.extend(text)
        return {"input_ids": [[0]]}

    processor = SimpleNamespace(
        image_processor=measure,
        tokenizer=tokenize,
        patch_size=PATCH,
        spatial_merge_size=MERGED,
        image_token="I",
        image_break_token="B",
        image_end_token="E",
    )
    pictures: Any = import_module("PIL.Image")
    images = [pictures.new("RGB", (width, height)) for height, width in SIZES]
    kind = getattr(module_of(target), target.name.partition(".")[0])
    kind.__call__(processor, images=images, text=["I.I"])
    wrong = texts != ["IIE.IIBIIE"] or patches != [PATCH * MERGED]
    return Result(wrong, f"{texts} with patches of {patches}")
