"""A request can make a server open any URL in its network, and any file.

Why
    ``mlx_lm.server`` fetches any image URL, ``mlx_vlm.server`` any URL and any path: a client can
    read every file that the server can, and reach machines that trust the server (SSRF).
    ``mlx_vlm.server`` also writes images to any path in a request.
How
    URLs must be http or https, with a host whose addresses are all public; the connection goes to
    a checked address, also for each redirect; proxies are not used. Paths must be below a folder
    of ``MLX_PATCHES_MEDIA_ROOTS``, after every link is followed. Everything else is refused, with
    the reason in the log. In mlx-vlm this applies to every caller in the process. Optional:
    requests that were answered before may be refused.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10 (like vllm-mlx 318, Rapid-MLX 2167).
Retire when
    The servers have an option to accept only public addresses and listed folders.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...core.patch import Patch, Target, around
from .fetch_policy import fetch
from .limited_media import Content, guarded, is_web, put_images
from .media_limits import (
    IMAGE,
    MEDIA,
    Fetched,
    Limits,
    Refused,
    check_data_url,
    check_pixels,
    within,
)
from .media_paths import local_file, local_path, media_roots


def lm_public(inline: Callable[..., Any], messages: Any) -> Any:
    """mlx-lm's server: fetch images from public addresses only."""
    release = inspect.unwrap(inline).__globals__
    put_images(release, messages, lambda url: fetched(url, IMAGE), everything=True)
    return inline(messages)


def image_public(load: Callable[..., Any], image_source: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load an image, if a request may name it."""
    return load(guarded(image_source, lambda: allowed(image_source, IMAGE)), *args, **kwargs)


def audio_public(load: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load audio, if a request may name it."""
    return load(guarded(file, lambda: allowed(file, MEDIA)), *args, **kwargs)


def video_public(load: Callable[..., Any], video_path: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load a video, if a request may name it; its reader gets a file, never a URL."""
    source = str(video_path).removeprefix("file://")
    if not is_web(source):
        path = guarded(video_path, lambda: local_file(source, media_roots(), MEDIA))
        return load(path, *args, **kwargs)
    content = guarded(video_path, lambda: checked_video(fetched(source, MEDIA).content))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video"
        file.write_bytes(content)
        return load(str(file), *args, **kwargs)


def image_in_hand(process: Callable[..., Any], img: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: refuse an image that contains paths or URLs, which a processor would open."""
    if isinstance(img, (list, tuple, dict)):
        guarded(img, lambda: no_names(img))
    return process(img, *args, **kwargs)


def edited_paths(paths: Callable[..., Any], request: Any) -> Any:
    """mlx-vlm's server: the real paths of the images to edit."""
    return tuple(
        guarded(path, partial(local_file, str(path), media_roots(), IMAGE))
        for path in paths(request)
    )


def output_path(choose: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's server: where an image is written; a path from the request is checked."""
    path = choose(request, *args, **kwargs)
    named = getattr(request, "output_path", None) or getattr(request, "output_dir", None)
    if path is None or not named:
        return path
    return guarded(path, lambda: local_path(str(path), media_roots()))


def allowed(source: Any, limits: Limits) -> Any:
    """A request's source in a form that may be loaded: its content, or a real path.

    Raises:
        Refused: the source may not be loaded.
    """
    if not isinstance(source, (str, Path)):
        return source
    if is_web(str(source)):
        return Content(fetched(str(source), limits).content, str(source))
    if isinstance(source, str) and source.startswith("data:image/"):
        check_data_url(source, limits)
        return source
    return local_file(str(source), media_roots(), limits)


def fetched(url: str, limits: Limits) -> Fetched:
    """Fetch a file from a public address, within limits."""
    file = within(limits.seconds, lambda expiry: fetch(url, limits, expiry))
    if limits is IMAGE:
        check_pixels(file.content, limits)
    return file


def checked_video(content: bytes) -> bytes:
    """A video's content. A playlist is text, and makes its reader open the files it lists.

    Raises:
        Refused: the content is text.
    """
    start = content[:512]
    if all(byte in b"\t\r\n\f" or 32 <= byte < 127 for byte in start):
        raise Refused("it is not a video")
    return content


def no_names(source: Any) -> None:
    """Check that lists contain no text, which would be read as URLs and paths.

    Raises:
        Refused: they contain text.
    """
    inner = source.values() if isinstance(source, dict) else source
    for one in inner:
        if isinstance(one, (str, bytes, Path)):
            raise Refused("paths and URLs inside a list or dictionary are not accepted")
        if isinstance(one, (list, tuple, dict)):
            no_names(one)


_UTILS = ("mlx-vlm", "mlx_vlm.utils")
_OPENAI = ("mlx-vlm", "mlx_vlm.server.openai")

PATCH = Patch(
    id="media-policy",
    summary="a request can make a server open any URL in its network, and any file",
    targets=(
        Target("mlx-lm", "mlx_lm.server", "_inline_image_urls", around(lm_public)),
        Target(*_UTILS, "load_image", around(image_public)),
        Target(*_UTILS, "load_audio", around(audio_public)),
        Target(*_UTILS, "load_video", around(video_public)),
        Target(*_UTILS, "process_image", around(image_in_hand)),
        Target(*_OPENAI, "_image_edit_paths", around(edited_paths)),
        Target(*_OPENAI, "_image_output_path", around(output_path)),
        Target(*_OPENAI, "_image_edit_output_path", around(output_path)),
    ),
    probe="mlx_patches.probes.media_requests:probe_policy",
    module=__name__,
    optional=True,
    security=True,
)
