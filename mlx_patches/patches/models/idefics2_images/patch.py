"""Idefics2 in mlx-vlm: images get wrong positions, and their padding is attended to.

Why: The vision tower assigns each patch one of 70 positions per axis. mlx-vlm's boundaries between
    them are too close together, and places on a boundary fall on its other side. Images are padded
    to the largest of the prompt, but neither the tower nor the resampler masks the padding: another
    image, or a part of the same image, changes an image's features. Norms of the tower and of the
    resampler use a constant of the text model.
How: The position table is read at the authors' positions. If images have padding, each is embedded
    on its own without it. The norms of new models get the authors' constant.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The features of a padded image equal those of transformers.
"""

import copy
from collections.abc import Iterator
from typing import Any

from ....core.verbs import Function, Patch, after, mx, wrap

# The authors' default of ``perceiver_config.rms_norm_eps``, which published configs leave out.
EPSILON = 1e-6


def embed_patches(embed: Function, embeddings: Any, x: Any, mask: Any = None, **kwargs: Any) -> Any:
    """Embed the patches of images, with the authors' positions."""
    view = copy.copy(embeddings)
    places = find_places(mask, embeddings.num_patches)
    view.position_embedding = lambda _: embeddings.position_embedding(places)
    return embed(view, x, mask=mask, **kwargs)


def find_places(mask: Any, size: int) -> Any:
    """The places (images, patches) in the table of positions, for masks of patches.

    Args:
        mask: the patches (images, rows, columns) that are not padding.
        size: the number of positions per axis.
    """
    import numpy as np

    shown = np.array(mask).astype(bool)
    places = np.zeros(shown.shape, int)
    for image, own in zip(shown, places, strict=True):
        counts = image[:, 0].sum(), image[0].sum()
        rows, columns = (np.asarray(spread(int(count), size)) for count in counts)
        own[: len(rows), : len(columns)] = rows[:, None] * size + columns
    places[~shown] = 0
    return mx.array(places.reshape(len(places), -1))


def spread(count: int, size: int) -> Any:
    """The positions of ``count`` patches along an axis, in single precision as in transformers."""
    import numpy as np

    single = np.float32
    bounds = (np.arange(1, size) / size).astype(single)
    places = np.arange(count, dtype=single) * (single(1) / single(max(count, 1)))
    return np.searchsorted(bounds, np.minimum(places, single(1 - 1e-6)), side="right")


def embed_images(
    embed: Function, model: Any, input_ids: Any = None, pixel_values: Any = None, **kwargs: Any
) -> Any:
    """Embed a prompt; images with padding one by one, without it."""
    mask = kwargs.get("pixel_attention_mask")
    if pixel_values is None or mask is None or kwargs.get("cached_image_features") is not None:
        return embed(model, input_ids, pixel_values, **kwargs)
    crops = list(crop_images(pixel_values, mask, model.config.vision_config.patch_size))
    if all(pixels.shape[-2:] == pixel_values.shape[-2:] for pixels, _ in crops):
        return embed(model, input_ids, pixel_values, **kwargs)
    return embed_apart(embed, model, input_ids, crops)


def crop_images(pixels: Any, mask: Any, patch: int) -> Iterator[tuple[Any, Any]]:
    """The pixels and the mask of each image of a batch (prompts, images, ...), without padding."""
    rows, columns = mask[..., 0].sum(-1), mask[..., 0, :].sum(-1)
    for prompt, images in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        for index, size in enumerate(zip(*images, strict=True)):
            if all(size):
                place = (slice(prompt, prompt + 1), slice(index, index + 1), ...)
                cut = tuple(slice(-(-int(edge) // patch) * patch) for edge in size)
                yield pixels[(*place, *cut)], mask[(*place, *cut)]


def embed_apart(embed: Function, model: Any, ids: Any, crops: list[Any]) -> Any:
    """Embed a prompt whose images are embedded one by one."""
    made = embed(model, ids, None)
    count = model.config.perceiver_config.resampler_n_latents
    token = model.config.image_token_index
    tokens = mx.full((1, count), token, ids.dtype)
    features = mx.concatenate(
        [
            embed(model, tokens, pixels, pixel_attention_mask=mask).inputs_embeds[0]
            for pixels, mask in crops
        ]
    )
    places = [at for at, one in enumerate(ids.reshape(-1).tolist()) if one == token]
    if len(places) != len(features):
        raise ValueError(f"{len(places)} image tokens for {len(crops)} images of {count} tokens")
    flat = made.inputs_embeds.reshape(-1, features.shape[-1])
    flat[mx.array(places)] = features.astype(flat.dtype)
    made.inputs_embeds = flat.reshape(made.inputs_embeds.shape)
    return made


def set_constants(resampler: Any, config: Any, /) -> None:
    """Give the resampler's norms the authors' constant."""
    names = ("input_latents_norm", "input_context_norm", "post_attention_layernorm")
    norms = [getattr(layer, name) for layer in resampler.layers for name in names]
    for norm in (resampler.norm, *norms):
        norm.eps = getattr(config.perceiver_config, "rms_norm_eps", EPSILON)


def set_tower_constant(tower: Any, config: Any, /) -> None:
    """Give the tower's last norm the constant of its config."""
    tower.post_layernorm.eps = config.layer_norm_eps


_MODEL, _TOWER = "mlx_vlm.models.idefics2.idefics2", "mlx_vlm.models.idefics2.vision"

PATCH = Patch(
    id="idefics2-images",
    every_model=True,
    wrong_solo="idefics2",
    targets=(
        *wrap(f"{_TOWER}:VisionEmbeddings.__call__", embed_patches),
        *wrap(f"{_MODEL}:Model.get_input_embeddings", embed_images, supports=True),
        *after(f"{_MODEL}:Idefics2PerceiverResampler.__init__", set_constants, supports=True),
        *after(f"{_TOWER}:VisionModel.__init__", set_tower_constant, supports=True),
    ),
)
