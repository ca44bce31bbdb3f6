"""Runs the processors with a small tokenizer, and the embedding step with a tower of constants."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    make_module,
    module_of,
    mx,
    own_class_of,
    require,
    require_module,
)

TEXT, IMAGE, SEPARATOR = 1, 90, 99
# The width of an image, and the tokens of a tile and of a whole image: the model has 12 by 12 or 16
# by 16 places for them.
SMALL, SIDES = 8, (12, 16)
# The images of two prompts: the values of an image's tiles, and of the whole image.
PROMPTS = (((), 11), ((12, 13), 14)), (((21, 22), 23),)


def probe(target: Target) -> Result:
    """Red if an image has other tiles or features, or if a prompt loses a token or an image."""
    require(target)
    name = target.name.rpartition(".")[2]
    probes = {
        "dynamic_preprocess": probe_tiles,
        "__call__": probe_images,
        "process_one": probe_tokens,
        "get_input_embeddings": probe_features,
    }
    return probes[name](target)


def probe_tiles(target: Target) -> Result:
    """Red if a small image is tiled, or a larger one has a single tile."""
    pillow, cut = require_module("PIL.Image"), require(target)
    images = [pillow.new("RGB", (side, SMALL)) for side in (SMALL, SMALL + 1)]
    counts = [len(cut(one, min_num=1, max_num=2, image_size=SMALL)[0]) for one in images]
    return Result(counts != [0, 2], f"a small and a larger image have {counts} tiles")


def probe_images(target: Target) -> Result:
    """Red if a prompt of a list does not get all its images."""
    pillow, processor = require_module("PIL.Image"), make_processor(target)
    text = ["<image>a<image>", "b<image>"]
    images = [pillow.new("RGB", (SMALL, SMALL)) for _ in range(3)]
    try:
        made = processor(text=text, images=images, base_size=SMALL)
    except Exception as error:
        return Result(True, f"two images: {type(error).__name__}: {error}"[:200])
    counts = [len(made["images"][1]), *(made["images_seq_mask"].sum(1) // 257).tolist()]
    return Result(counts != [3, 2, 1], f"images, and those of each prompt: {counts}")


def probe_tokens(target: Target) -> Result:
    """Red if a prompt loses its last token, or keeps spaces at its end."""
    pillow, processor = require_module("PIL.Image"), make_processor(target)
    image = pillow.new("RGB", (SMALL, SMALL))
    found = [
        processor.process_one(f"<image>{text}", [image], base_size=SMALL, cropping=False)
        for text in ("ab", "ab ")
    ]
    lasts = [made["input_ids"][0, -2:].tolist() for made in found]
    return Result(lasts != [list(b"ab")] * 2, f"the last tokens are {lasts}")


def make_processor(target: Target) -> Any:
    """A processor whose tokenizer has a token for each letter."""
    kind, module = own_class_of(target), module_of(target)
    tokenizer = SimpleNamespace(
        encode=lambda text, **_: list(map(ord, text)), bos_token_id=0, pad_token_id=0
    )
    processor = kind.__new__(kind)
    vars(processor).update(
        tokenizer=tokenizer,
        image_token="<image>",
        image_token_id=IMAGE,
        ignore_id=-100,
        image_transform=module.ImageTransform(),
    )
    return processor


def probe_features(target: Target) -> Result:
    """Red if an image's tokens do not have the features of its tiles and of the whole image."""
    rows = [
        [value for image in prompt for value in (*list_features(*image), TEXT)]
        for prompt in PROMPTS
    ]
    longest = max(map(len, rows))
    table = mx.array([[0] * (longest - len(row)) + row for row in rows])
    images = [image for prompt in PROMPTS for image in prompt]
    side = [4 * size for size in SIDES]
    tiles = mx.concatenate([make_image(value, side[0]) for own, _ in images for value in own])
    wholes = mx.concatenate([make_image(value, side[1]) for _, value in images])
    crops = mx.array([[max(len(own), 1), 1] for own, _ in images])
    model = make_module(
        own_class_of(target),
        language_model=SimpleNamespace(
            model=SimpleNamespace(embed_tokens=lambda ids: ids[..., None].astype(mx.float32))
        ),
        sam_model=lambda x: x[:, ::4, ::4, :1],
        vision_model=lambda _, states: states.reshape(1, -1, 1),
        projector=lambda states: states,
        view_separator=mx.array([float(SEPARATOR)]),
    )
    is_image = table > TEXT
    ids = mx.where(is_image, IMAGE, table)
    try:
        made = model.get_input_embeddings(ids, [tiles, wholes], crops, is_image)
    except Exception as error:
        return Result(True, f"two prompts: {type(error).__name__}: {error}"[:200])
    off = int((made.inputs_embeds[..., 0] != table).sum().item())
    return Result(off > 0, f"{off} of {table.size} tokens have other features")


def list_features(tiles: tuple[int, ...], whole: int) -> list[int]:
    """The features of an image's tokens, from the values of its parts."""
    small, large = (side**2 for side in SIDES)
    return [*(value for value in tiles for _ in range(small)), *[whole] * large, SEPARATOR]


def make_image(value: int, side: int) -> Any:
    return mx.full((1, 3, side, side), float(value))
