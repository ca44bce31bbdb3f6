"""A changed image is answered with its old content: image features are cached by name.

Why
    Image features are cached for later turns by the image's path or URL. If a camera overwrites
    one file, or a URL returns another picture, the answer is about the first picture.
How
    The server caches features by the pixels that it has read. ``stream_generate`` caches those of
    a file by its name, time and size, and none for a URL, which tells nothing of its content.
Upstream
    Reported as mlx-vlm #1933. mlx-vlm 0.7.10 caches features by pixels.
Retire when
    No supported release caches features by an image's name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ....core.patch import Patch, Target, around


def embedded(
    embed: Callable[..., Any],
    server: Any,
    raw_inputs: Mapping[str, Any],
    images: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A request's embeddings, with image features cached by its pixels."""
    kept = getattr(server, "vision_cache", None) is not None
    if kept and images is not None and raw_inputs.get("pixel_values") is not None:
        images = name_pixels(raw_inputs)
    return embed(server, raw_inputs, images, *args, **kwargs)


def name_pixels(inputs: Mapping[str, Any]) -> str:
    """A cache key for a prompt's images: a hash of all inputs except those with a value a token."""
    shape = getattr(inputs.get("input_ids"), "shape", None)
    digest = hashlib.sha256()
    for name in sorted(inputs):
        if getattr(inputs[name], "shape", ()) != shape:
            digest.update(name.encode())
            add(digest, inputs[name])
    return f"pixels:{digest.hexdigest()}"


def add(digest: Any, value: Any) -> None:
    """Add an input to a hash: an array by shape, dtype and bytes; a list part by part."""
    import mlx.core as mx

    if isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} parts".encode())
        for part in value:
            add(digest, part)
    elif isinstance(value, mx.array):
        digest.update(f"{value.shape} {value.dtype}".encode())
        digest.update(memoryview(mx.contiguous(value).reshape(-1).view(mx.uint8)))
    elif hasattr(value, "tobytes"):
        digest.update(f"{getattr(value, 'shape', '')} {getattr(value, 'dtype', '')}".encode())
        digest.update(value.tobytes())
    else:
        digest.update(repr(value).encode())


def streamed(
    stream: Callable[..., Iterator[Any]],
    *args: Any,
    vision_cache: Any = None,
    **kwargs: Any,
) -> Iterator[Any]:
    """An answer piece by piece; features of files are cached by the files' current state."""
    if vision_cache is not None:
        kwargs["vision_cache"] = ByState(vision_cache)
    return stream(*args, **kwargs)


class ByState:
    """A cache of features that distinguishes a changed file from its earlier content."""

    def __init__(self, features: Any):
        self.features = features

    def get(self, image: Any) -> Any:
        """An image's features; None if none are cached for its current state."""
        return None if is_remote(image) else self.features.get(name_state(image))

    def put(self, image: Any, features: Any) -> None:
        """Cache an image's features, unless the image is remote, where a change is not seen."""
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
    every_model=True,
    summary=(
        "mlx_vlm.server: a replaced image file is answered from stale features "
        "(cached by file name)"
    ),
    targets=tuple(
        Target("mlx-vlm", module, name, around(wrapper))
        for module, name, wrapper in (
            ("mlx_vlm.server", "ResponseGenerator._gpu_embed", embedded),
            ("mlx_vlm.server.generation", "ResponseGenerator._gpu_embed", embedded),
            ("mlx_vlm.generate", "stream_generate", streamed),
            ("mlx_vlm.generate.dispatch", "stream_generate", streamed),
        )
    ),
)
