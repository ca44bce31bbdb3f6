"""A request's image or sound URL may fill a server's memory, or never end.

Why
    The servers read what a request's URL answers to its end, whatever its size, as long as
    something comes now and then. One request can take all of the memory, or a thread for ever.
How
    The URL is fetched as the release does it, up to 64 MiB and 60 s for an image, 512 MiB and
    300 s for a sound, and 179 megapixels. More is refused before it is there, with a line in the
    log. Images in the request itself are held to the same limits.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10 (like vllm-mlx 318).
Retire when
    The servers limit what they fetch.
"""

from __future__ import annotations

import base64
import http.client
import inspect
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any, TypeVar

from ...core.errors import refusal
from ...core.patch import Patch, Target, around
from .media_limits import (
    IMAGE,
    MEDIA,
    Expiry,
    Fetched,
    Limits,
    Refused,
    as_refusal,
    check_data_url,
    check_length,
    check_pixels,
    read_limited,
    within,
)

WEB = ("http://", "https://")

Answer = TypeVar("Answer")


class Content(BytesIO):
    """A file that was fetched, as loaders take it; in what they say, it stands for its URL."""

    def __init__(self, content: bytes, url: str):
        super().__init__(content)
        self.url = url

    def startswith(self, prefixes: object) -> bool:
        """No: mlx-vlm below 0.4.0 asks whether it is a URL before it looks at its type."""
        return False

    def __repr__(self) -> str:
        return self.url


def lm_limited(inline: Callable[..., Any], messages: Any) -> Any:
    """mlx-lm's server: images are fetched here, within limits, as the release fetches them."""
    release = inspect.unwrap(inline).__globals__

    def get(url: str) -> Fetched:
        def job(expiry: Expiry) -> Fetched:
            with release["urlopen"](url, timeout=30) as response:
                check_length(response.headers.get("Content-Length"), IMAGE)
                content = read_limited(response.read1, IMAGE, expiry)
                if missing := getattr(response, "length", None):  # read1 does not say so
                    raise http.client.IncompleteRead(content, missing)
                return Fetched(content, response.headers.get_content_type())

        return within(IMAGE.seconds, job)

    put_images(release, messages, get)
    return inline(messages)


def image_limited(load: Callable[..., Any], image_source: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: an image of a URL, a data URL or bytes, within limits."""
    if isinstance(image_source, str) and image_source.startswith(WEB):
        timeout = kwargs.get("timeout", args[0] if args else 10)
        content = get_limited(load, image_source, timeout, IMAGE)
        image_source = Content(content, image_source)
    else:
        guarded(image_source, lambda: check_image(image_source))
    return load(image_source, *args, **kwargs)


def audio_limited(load: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: a sound of a URL, within limits."""
    if isinstance(file, str) and file.startswith(WEB):
        timeout = kwargs.get("timeout", args[1] if len(args) > 1 else 10)  # after the sample rate
        file = Content(get_limited(load, file, timeout, MEDIA), file)
    return load(file, *args, **kwargs)


def get_limited(load: Callable[..., Any], url: str, timeout: float, limits: Limits) -> bytes:
    """A URL's content by the library that the release uses, with the release's own arguments."""
    requests = inspect.unwrap(load).__globals__["requests"]

    def job(expiry: Expiry) -> bytes:
        with requests.get(url, stream=True, timeout=timeout) as response:
            response.raise_for_status()
            check_length(response.headers.get("Content-Length"), limits)
            raw = response.raw
            # In urllib3 before 2.1 a piece waits until it is full.
            read = partial(getattr(raw, "read1", raw.read), decode_content=True)
            content = read_limited(read, limits, expiry)
            if getattr(raw, "length_remaining", None):
                raise OSError("the connection was closed before the end")
            return content

    def get() -> bytes:
        content = within(limits.seconds, job)
        if limits is IMAGE:
            check_pixels(content, limits)
        return content

    # In the words in which the release says it of any other error.
    return guarded(url, get, lambda error: ValueError(f"Failed to load {url}: {error}"))


def check_image(source: Any) -> None:
    """Look at an image that needs no fetching.

    Raises:
        Refused: it is larger than may be.
    """
    if isinstance(source, str) and source.startswith("data:image/"):
        check_data_url(source, IMAGE)
    elif isinstance(source, BytesIO):
        check_pixels(source.getvalue(), IMAGE)


def put_images(
    release: dict[str, Any],
    messages: Any,
    get: Callable[[str], Fetched],
    everything: bool = False,
) -> None:
    """Put images in the place of their URLs, as mlx-lm's server does; look at those that came.

    Args:
        release: the names of mlx-lm's server.
        messages: of the request; their parts are changed.
        get: fetches a URL.
        everything: whether another source than a URL or an image in place is refused.
    """
    for part in release["_image_parts"](messages):
        url = release["_image_url"](part)
        if not isinstance(url, str):
            continue  # the release says so in its own words
        if is_web(url):
            file = guarded(url, partial(get, url))
            guarded(url, partial(check_pixels, file.content, IMAGE))
            data = base64.b64encode(file.content).decode()
            part.clear()
            part.update(type="image_url", image_url={"url": f"data:{file.mime};base64,{data}"})
        elif url.startswith("data:"):
            guarded(url, partial(check_data_url, url, IMAGE))
        elif everything:
            guarded(url, not_in_place)


def not_in_place() -> None:
    """Refuse what is neither a URL nor an image in place."""
    raise Refused("only http, https and data URLs are taken")


def guarded(
    source: Any, look: Callable[[], Answer], other: Callable[[Exception], Exception] | None = None
) -> Answer:
    """What a look at a source gives. No error of it lets the release load the source after all.

    Args:
        source: what the request names.
        look: raises Refused where it is not taken.
        other: makes the error that the host gets out of any other one; the same by default.
    """
    try:
        return look()
    except Refused as refused:
        raise as_refusal(source, refused) from None
    except Exception as error:
        raise refusal(other(error) if other else error) from error


def is_web(source: str) -> bool:
    """Whether a source is a URL to fetch."""
    return source[:8].lower().startswith(WEB)


PATCH = Patch(
    id="media-limits",
    summary="a request's image or sound URL may fill a server's memory, or never end",
    targets=(
        Target("mlx-lm", "mlx_lm.server", "_inline_image_urls", around(lm_limited)),
        Target("mlx-vlm", "mlx_vlm.utils", "load_image", around(image_limited)),
        Target("mlx-vlm", "mlx_vlm.utils", "load_audio", around(audio_limited)),
    ),
    probe="mlx_patches.probes.media_requests:probe_limits",
    module=__name__,
)
