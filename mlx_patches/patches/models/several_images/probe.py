"""Merges the features of several images with the embeddings of prompts, without weights."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    make_module,
    mx,
    own_class_of,
    require_module,
    require_own,
)

IMAGE, TOKENS = 90, 3
# Prompts whose image tokens the processor has expanded, and has not; the number of their images.
PROMPTS = {
    "two images": [[1, *[IMAGE] * TOKENS, 2, *[IMAGE] * TOKENS, 3, 4]],
    "two rows": [[1, *[IMAGE] * TOKENS, 2], [*[IMAGE] * TOKENS, 3, 4]],
}
BARE = {
    "two placeholders": [[1, IMAGE, 2, IMAGE, 3, 4]],
    "a placeholder in each row": [[1, IMAGE, 2], [IMAGE, 3, 4]],
}


def probe(target: Target) -> Result:
    """Red if a prompt's text or a feature is not at its place."""
    require_own(target)
    kind = own_class_of(target)
    if target.name.startswith("VisionModel"):
        return probe_tower(kind)
    prompts = PROMPTS if "got" in target.module else PROMPTS | BARE
    for name, rows in prompts.items():
        try:
            found = embed(kind, mx.array(rows), "got" in target.module)
        except Exception as error:
            return Result(True, f"{name}: {type(error).__name__}: {error}")
        if found != (want := list_expected(rows)):
            return Result(True, f"{name}: {found} for {want}")
    return Result(False, "each image token has its feature")


def embed(kind: Any, ids: Any, is_got: bool) -> Any:
    """The embeddings of prompts with two images, whose features are 100, 101 and so on."""
    features = mx.arange(100, 100 + 2 * TOKENS).reshape(2, TOKENS, 1)
    if is_got:
        merged = kind.merge_input_ids_with_image_features(IMAGE, features, ids[..., None], ids)
        return merged[..., 0].tolist()
    vision = SimpleNamespace(cls="")
    embedder = SimpleNamespace(embed_tokens=lambda tokens: tokens[..., None])
    model = make_module(
        kind,
        config=SimpleNamespace(
            image_token_index=IMAGE, num_image_tokens=TOKENS, vision_config=vision
        ),
        language_model=SimpleNamespace(model=embedder),
        vision_model=lambda pixels, **_: (features, None, None),
        aligner=lambda states: states,
    )
    embedded = model.get_input_embeddings(ids, mx.zeros((2, 3, 1, 1)))
    return getattr(embedded, "inputs_embeds", embedded)[..., 0].tolist()


def list_expected(rows: list[list[int]]) -> list[list[int]]:
    features = iter(range(100, 100 + 2 * TOKENS))
    is_bare = sum(row.count(IMAGE) for row in rows) == 2
    return [
        [
            value
            for token in row
            for value in (
                [next(features) for _ in range(TOKENS if is_bare else 1)]
                if token == IMAGE
                else [token]
            )
        ]
        for row in rows
    ]


def probe_tower(kind: Any) -> Result:
    """Red if the hybrid tower's low resolution loses an image."""
    scope = require_module(kind.__module__)
    tower = make_module(
        kind,
        config=SimpleNamespace(cls="HybridVisionTower"),
        resize=lambda image: scope.resize_image(image, (2, 2)),
        vision_tower_high=lambda x: x,
        vision_tower_low=lambda x: x,
    )
    images = mx.broadcast_to(mx.arange(2.0).reshape(2, 1, 1, 1), (2, 4, 4, 3))
    try:
        found = [part[:, 0, 0, 0].round().tolist() for part in tower(images)]
    except Exception as error:
        return Result(True, f"two images: {type(error).__name__}: {error}"[:200])
    return Result(found != [[0, 1], [0, 1]], f"two images become {found}")
