"""mlx_vlm: after an image is replaced, answers are about the old one (kept features or caches).

Why: Image features are cached for later turns by the image's path or URL. If a camera overwrites
    its file, or a URL returns another picture, the answer is about the first picture. With a
    ``PromptCacheState``, as in ``mlx_vlm.chat`` after ``/image``, the last turn's caches are kept
    as long as the tokens are the same, and those of two images often are.
How: The server caches features by pixels. ``stream_generate`` caches those of a file by its name,
    time and size, and none for a URL, since its content may change. It drops the last turn's
    caches if the images, sounds or videos of a turn are others.
Upstream: Reported as mlx-vlm #1933. mlx-vlm 0.7.10 caches features by pixels, but compares only
    tokens with the last turn's.
Retire when: No supported release keeps features or caches by an image's name or tokens.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ....core.arrays import mx
from ....core.verbs import Patch, argument, wrap
from ..._shared.targets import vlm_server

# Arguments of `stream_generate`; the first three after the prompt are also passed by position.
MEDIA = ("image", "audio", "video", "pixel_values", "input_features", "pixel_values_videos")


def replace_names(server: Any, /, raw_inputs: Mapping[str, Any], images: Any) -> Any:
    """A request's images, named by their pixels if the server caches their features."""
    is_cached = getattr(server, "vision_cache", None) is not None
    if is_cached and images is not None and raw_inputs.get("pixel_values") is not None:
        return name_pixels(raw_inputs)
    return images


def name_pixels(inputs: Mapping[str, Any]) -> str:
    """A cache key for a prompt's images: a hash of all inputs but those with a value per token."""
    shape = getattr(inputs.get("input_ids"), "shape", None)
    digest = hashlib.sha256()
    for name in sorted(inputs):
        if getattr(inputs[name], "shape", ()) != shape:
            digest.update(name.encode())
            add_input(digest, inputs[name])
    return f"pixels:{digest.hexdigest()}"


def add_input(digest: Any, value: Any) -> None:
    """Add an input to a hash: an array by shape, dtype and bytes; a list by its items."""
    if isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} parts".encode())
        for part in value:
            add_input(digest, part)
    elif isinstance(value, mx.array):
        digest.update(f"{value.shape} {value.dtype}".encode())
        digest.update(memoryview(mx.contiguous(value).reshape(-1).view(mx.uint8)))
    elif hasattr(value, "tobytes"):
        digest.update(f"{getattr(value, 'shape', '')} {getattr(value, 'dtype', '')}".encode())
        digest.update(value.tobytes())
    else:
        digest.update(repr(value).encode())


def stream_by_state(
    stream: Callable[..., Iterator[Any]], *args: Any, vision_cache: Any = None, **kwargs: Any
) -> Iterator[Any]:
    """Stream an answer; features and caches are kept for the current state of files."""
    if vision_cache is not None:
        kwargs["vision_cache"] = ByState(vision_cache)
    if (turn := kwargs.get("prompt_cache_state")) is not None:
        drop_other_media(turn, [*args[3:], *map(kwargs.get, MEDIA)])
    return stream(*args, **kwargs)


def drop_other_media(turn: Any, media: Sequence[Any]) -> None:
    """Drop the last turn's caches if it had other images, sounds or videos."""
    digest = hashlib.sha256()
    add_input(digest, [name_state(one) for one in media if one is not None])
    key = digest.hexdigest()
    if getattr(turn, "_mlx_patches_media", key) != key:
        turn.cache = turn.token_ids = None
    turn._mlx_patches_media = key


class ByState:
    """A cache of features that distinguishes a changed file from its earlier content."""

    def __init__(self, features: Any):
        self.features = features

    def get(self, image: Any) -> Any:
        """An image's features; None if none are cached for its current state."""
        return None if is_remote(image) else self.features.get(name_state(image))

    def put(self, image: Any, features: Any) -> None:
        """Cache an image's features, unless it is remote: a change would go unnoticed."""
        if not is_remote(image):
            self.features.put(name_state(image), features)


def name_state(image: Any) -> Any:
    """A file's name with its time, size and inode; anything but a file unchanged."""
    if isinstance(image, (list, tuple)):
        return [name_state(one) for one in image]
    if not isinstance(image, (str, os.PathLike)):
        return image
    try:
        state = os.stat(image)
    except (OSError, ValueError):
        return image
    return f"{os.fspath(image)}@{state.st_mtime_ns}:{state.st_size}:{state.st_ino}"


def is_remote(image: Any) -> bool:
    """Whether an image, or one of several, is a web URL."""
    if isinstance(image, (list, tuple)):
        return any(map(is_remote, image))
    return isinstance(image, str) and image[:8].lower().startswith(("http://", "https://"))


PATCH = Patch(
    id="vlm-vision-features",
    targets=(
        *argument(
            vlm_server("generation", "ResponseGenerator._gpu_embed"), "images", replace_names
        ),
        *wrap(
            ("mlx_vlm.generate:stream_generate", "mlx_vlm.generate.dispatch:stream_generate"),
            stream_by_state,
        ),
    ),
)
