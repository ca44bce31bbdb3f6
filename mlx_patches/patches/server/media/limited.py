"""mlx_lm.server and mlx_vlm.server: an image or audio URL can fill the memory, or hang.

Why: The servers read the response to its end, whatever its size, as long as some data arrives. One
    request can use up all memory, or block a thread forever.
How: The URL is fetched as in the release, up to 64 MiB, 60 s and 179 megapixels for an image, and
    512 MiB and 300 s for audio. Larger files are refused before they are read completely, and
    logged. Images in the request itself have the same limits.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10 (like vllm-mlx 318).
Retire when: The servers limit what they fetch.
"""

import base64
import http.client
import inspect
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

from ....core.verbs import Function, Patch, refusal, wrap
from ..._shared.media_content import Content
from ..._shared.refusals import Refused, as_refusal
from .limits import (
    IMAGE,
    MEDIA,
    Answer,
    Expiry,
    Fetched,
    Limits,
    check_data_url,
    check_length,
    check_pixels,
    read_limited,
    run_within,
)

LIMITS = "host-media-limits"
WEB = ("http://", "https://")


def inline_limited(inline: Function, messages: Any) -> Any:
    """mlx-lm's server: fetch images as the release does, within limits."""
    release = inspect.unwrap(inline).__globals__

    def get(url: str) -> Fetched:
        def job(expiry: Expiry) -> Fetched:
            with release["urlopen"](url, timeout=30) as response:
                check_length(response.headers.get("Content-Length"), IMAGE)
                content = read_limited(response.read1, IMAGE, expiry)
                if missing := getattr(response, "length", None):  # read1 raises no error for it
                    raise http.client.IncompleteRead(content, missing)
                return Fetched(content, response.headers.get_content_type())

        return run_within(IMAGE.seconds, job)

    def check_inline(url: str) -> None:
        if url.startswith("data:"):
            check_data_url(url, IMAGE)

    put_images(partial(guard_source, LIMITS), release, messages, get, check_inline)
    return inline(messages)


def load_limited_image(load: Function, image_source: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load an image from a URL, a data URL or bytes, within limits."""
    if isinstance(image_source, str) and image_source.startswith(WEB):
        timeout = kwargs.get("timeout", args[0] if args else 10)
        content = get_limited(load, image_source, timeout, IMAGE)
        image_source = Content(content, image_source)
    else:
        guard_source(LIMITS, image_source, lambda: check_image(image_source))
    return load(image_source, *args, **kwargs)


def load_limited_audio(load: Function, file: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load audio from a URL, within limits."""
    if isinstance(file, str) and file.startswith(WEB):
        timeout = kwargs.get("timeout", args[1] if len(args) > 1 else 10)  # after the sample rate
        file = Content(get_limited(load, file, timeout, MEDIA), file)
    return load(file, *args, **kwargs)


def get_limited(load: Function, url: str, timeout: float, limits: Limits) -> bytes:
    """Fetch a URL with the library and the arguments that the release uses."""
    requests = inspect.unwrap(load).__globals__["requests"]

    def job(expiry: Expiry) -> bytes:
        with requests.get(url, stream=True, timeout=timeout) as response:
            response.raise_for_status()
            check_length(response.headers.get("Content-Length"), limits)
            raw = response.raw
            # Before urllib3 2.1 there is only ``read``, which waits for a full chunk.
            read = partial(getattr(raw, "read1", raw.read), decode_content=True)
            content = read_limited(read, limits, expiry)
            if getattr(raw, "length_remaining", None):
                raise OSError("the connection was closed before the end")
            if limits is IMAGE:
                check_pixels(content, limits)
            return content

    def make_error(error: Exception) -> Exception:  # the release's own message
        what = "image from" if limits is IMAGE else "audio from URL:"
        return ValueError(f"Failed to load {what} {url}: {error}")

    return guard_source(LIMITS, url, lambda: run_within(limits.seconds, job), make_error)


def check_image(source: Any) -> None:
    """Refuse an image that is over a limit and needs no fetch."""
    if isinstance(source, str) and source.startswith("data:image/"):
        check_data_url(source, IMAGE)
    elif isinstance(source, BytesIO):
        check_pixels(source.getvalue(), IMAGE)


def put_images(
    check: Function, release: dict[str, Any], messages: Any, get: Function, check_inline: Function
) -> None:
    """Replace image URLs by the images, as mlx-lm's server does."""
    for part, url in check("messages", lambda: find_image_parts(release, messages)):
        if is_web(url):
            file = check(url, partial(get, url))
            check(url, partial(check_pixels, file.content, IMAGE))
            data = base64.b64encode(file.content).decode()
            part.clear()
            part.update(type="image_url", image_url={"url": f"data:{file.mime};base64,{data}"})
        else:
            check(url, partial(check_inline, url))


def find_image_parts(release: dict[str, Any], messages: Any) -> list[tuple[dict[str, Any], str]]:
    """The parts of a request's messages with an image, each with its URL."""
    try:
        named = [(part, release["_image_url"](part)) for part in release["_image_parts"](messages)]
    except Exception as error:
        raise Refused(
            "they are not a list of messages", f"{type(error).__name__}: {error}"
        ) from None
    if not all(isinstance(url, str) for _, url in named):
        raise Refused("the URL of an image is not text")
    return named


def guard_source(
    patch: str, source: Any, look: Callable[[], Answer], other: Function | None = None
) -> Answer:
    """Check or fetch a source. Every error reaches the host, since the release must not load it."""
    try:
        return look()
    except Refused as refused:
        raise as_refusal(patch, source, refused) from None
    except Exception as error:
        raise refusal(other(error) if other else error) from error


def is_web(source: str) -> bool:
    """Whether a source is a URL to fetch."""
    return source[:8].lower().startswith(WEB)


PATCH = Patch(
    id=LIMITS,
    formerly="media-limits",
    severity="security",
    security=True,
    profiles=("security",),
    targets=(
        *wrap("mlx_lm.server:_inline_image_urls", inline_limited),
        *wrap("mlx_vlm.utils:load_image", load_limited_image),
        *wrap("mlx_vlm.utils:load_audio", load_limited_audio),
    ),
    probe=".probe:probe_limits",
)
