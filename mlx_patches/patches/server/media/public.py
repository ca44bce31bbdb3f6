"""A request can make a server open any URL in its network, and any file.

Why
    ``mlx_lm.server`` fetches any image URL, ``mlx_vlm.server`` any URL and any path: a client can
    read every file that the server can, and reach machines that trust the server (SSRF).
    ``mlx_vlm.server`` also writes images to any path in a request, and reads the sound that speech
    is to be like from any path.
How
    URLs must be http or https, with a host whose addresses are all public; the connection goes to
    a checked address, also for each redirect; proxies are not used. Paths must be below a folder
    of ``MLX_PATCHES_MEDIA_ROOTS``, after every link is followed. A file must be in a container that
    holds its own data; a playlist makes its reader open the files that it lists. Everything else is
    refused, with the reason in the log. In mlx-vlm this applies to every caller in the process.
    Optional: requests that were answered before may be refused.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10 (like vllm-mlx 318, Rapid-MLX 2167).
Retire when
    The servers have an option to accept only public addresses and listed folders.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from ....core.patch import Attribute, Patch, Target, around, stored
from ..._shared.refusals import Refused, as_refusal
from .containers import PICTURE, SOUND, VIDEO, Kind, check_kind
from .fetch_policy import fetch
from .limited import Content, guarded, is_web, put_images
from .limits import Answer, Fetched, check_data_url, check_pixels, within
from .paths import is_admitted, local_file, local_path, media_roots

POLICY = "host-media-policy"


def lm_public(inline: Callable[..., Any], messages: Any) -> Any:
    """mlx-lm's server: fetch images from public addresses only."""
    release = inspect.unwrap(inline).__globals__
    put_images(checked, release, messages, lambda url: fetch_kind(url, PICTURE), in_place)
    return inline(messages)


def image_public(load: Callable[..., Any], image_source: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load an image, if a request may name it."""
    return load(checked(image_source, lambda: allowed(image_source, PICTURE)), *args, **kwargs)


def audio_public(load: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load audio, if a request may name it."""
    return load(checked(file, lambda: allowed(file, SOUND)), *args, **kwargs)


def video_public(load: Callable[..., Any], video_path: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load a video, if a request may name it; its reader gets a file, never a URL."""
    source = str(video_path).removeprefix("file://")
    if not is_web(source):
        path = checked(video_path, lambda: known_file(source, VIDEO))
        return load(path, *args, **kwargs)
    content = checked(video_path, lambda: fetch_kind(source, VIDEO).content)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video"
        file.write_bytes(content)
        return load(str(file), *args, **kwargs)


def image_in_hand(process: Callable[..., Any], img: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: refuse an image that contains paths or URLs, which a processor would open."""
    if isinstance(img, (list, tuple, dict)):
        checked(img, lambda: no_names(img))
    return process(img, *args, **kwargs)


def edited_paths(paths: Callable[..., Any], request: Any) -> Any:
    """mlx-vlm's server: the real paths of the images to edit."""
    return tuple(checked(path, partial(named_file, str(path), PICTURE)) for path in paths(request))


def output_path(choose: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's server: where an image is written; a path from the request is checked."""
    path = choose(request, *args, **kwargs)
    named = getattr(request, "output_path", None) or getattr(request, "output_dir", None)
    if path is None or not named:
        return path
    return checked(path, lambda: local_path(str(path), media_roots()))


def checked(source: Any, look: Callable[[], Answer], patch: str = POLICY) -> Answer:
    """Check or fetch a source; where the check itself fails, the source is refused too."""

    def undecided(error: Exception) -> Exception:
        refused = Refused("it could not be checked", f"{type(error).__name__}: {error}")
        return as_refusal(patch, source, refused)

    return guarded(patch, source, look, undecided)


def spoken(run: Callable[..., Any], request: Any) -> Any:
    """mlx-vlm's server: make speech, if the request may name its sound and its voice."""
    speech = request.payload.request
    reference(speech.ref_audio)
    if speech.voice:  # models also take the path of a file
        checked(speech.voice, lambda: plain_name(speech.voice))
    return run(request)


def reference(path: Any) -> Any:
    """The real path of the sound that speech is to be like; None without one."""
    return path and checked(path, lambda: named_file(path, SOUND))


def sent_reference(speech: Any) -> Any:
    """The same, as a field of the request."""
    return reference(stored(speech, "ref_audio"))


async def upload(parse: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's server: read a request with an upload, if its container is one of sounds."""
    try:
        sent = getattr((await request.form()).get("file"), "file", None)
    except Exception:  # the server has an answer of its own
        sent = None
    if sent is not None:
        checked("the upload", lambda: check_kind(sent, SOUND))
    return await parse(request, *args, **kwargs)


def plain_name(name: str) -> str:
    """The name itself; a path is refused."""
    if re.search(r"[/\\]", name) or os.path.exists(name):
        raise Refused("a path is not accepted, only the name of a voice")
    return name


def allowed(source: Any, kind: Kind) -> Any:
    """A request's source as it may be loaded, by content or real path; any other is refused."""
    if isinstance(source, BytesIO):
        check_kind(source, kind)
    if not isinstance(source, (str, Path)):
        return source
    if is_web(str(source)):
        return Content(fetch_kind(str(source), kind).content, str(source))
    if isinstance(source, str) and source.startswith("data:image/"):
        in_place(source)
        return source
    return known_file(str(source), kind)


def in_place(url: str) -> None:
    """Refuse what is no image in the request itself, or is over a limit."""
    if not url.startswith("data:"):
        raise Refused("only http, https and data URLs are accepted")
    check_kind(check_data_url(url, PICTURE.limits), PICTURE)


def fetch_kind(url: str, kind: Kind) -> Fetched:
    """Fetch a file of a kind from a public address, within its limits."""
    file = within(kind.limits.seconds, lambda expiry: fetch(url, kind.limits, expiry))
    check_kind(file.content, kind)
    if kind is PICTURE:
        check_pixels(file.content, kind.limits)
    return file


def known_file(path: str, kind: Kind) -> str:
    """The path of a file that the host wrote, or the real path of one that a request may name."""
    return path if is_admitted(path) else named_file(path, kind)


def named_file(path: str, kind: Kind) -> str:
    """The real path of a file of a kind that a request may name; any other is refused."""
    real = local_file(path, media_roots(), kind.limits)
    with open(real, "rb") as file:
        check_kind(file, kind)
    return real


def no_names(source: Any) -> None:
    """Refuse lists that contain text, which would be read as URLs and paths."""
    inner = source.values() if isinstance(source, dict) else source
    for one in inner:
        if isinstance(one, (str, bytes, Path)):
            raise Refused("paths and URLs inside a list or dictionary are not accepted")
        if isinstance(one, (list, tuple, dict)):
            no_names(one)


_UTILS = ("mlx-vlm", "mlx_vlm.utils")
_AUDIO = ("mlx-vlm", "mlx_vlm.server.audio")
_OPENAI = ("mlx-vlm", "mlx_vlm.server.openai")

PATCH = Patch(
    id=POLICY,
    formerly="media-policy",
    severity="security",
    summary=(
        "mlx_lm.server and mlx_vlm.server: a request can read any file and "
        "any address of the network"
    ),
    targets=(
        Target("mlx-lm", "mlx_lm.server", "_inline_image_urls", around(lm_public)),
        Target(*_UTILS, "load_image", around(image_public)),
        Target(*_UTILS, "load_audio", around(audio_public)),
        Target(*_UTILS, "load_video", around(video_public)),
        Target(*_UTILS, "process_image", around(image_in_hand)),
        Target(*_OPENAI, "_image_edit_paths", around(edited_paths)),
        Target(*_OPENAI, "_image_output_path", around(output_path)),
        Target(*_OPENAI, "_image_edit_output_path", around(output_path)),
        Target(*_AUDIO, "_run_tts_request", around(spoken)),
        Target(*_AUDIO, "_parse_transcription_request", around(upload)),
        # The endpoint says whether the path exists.
        Target(
            *_AUDIO,
            "AudioSpeechRequest.ref_audio",
            lambda original: Attribute("ref_audio", sent_reference),
            fingerprint_of=("AudioSpeechRequest",),
            defines_new_attribute=True,
        ),
    ),
    probe=".probe:probe_policy",
    optional=True,
    security=True,
    profiles=("security",),
)
