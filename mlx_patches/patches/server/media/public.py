"""mlx_lm.server and mlx_vlm.server: a request can read any file and any address of the network.

Why: ``mlx_lm.server`` fetches any image URL, ``mlx_vlm.server`` any URL and any path: a client can
    read every file that the server can, and reach machines that trust the server (SSRF).
    ``mlx_vlm.server`` also writes images to any path in a request, and reads the reference audio
    for voice cloning from any path.
How: URLs must be http or https, with a host whose addresses are all public; the connection goes to
    a checked address, for redirects too; proxies are ignored. Paths must be below a folder of
    ``MLX_PATCHES_MEDIA_ROOTS``, after every link is followed. A file must be in a container that
    holds its own data; a playlist makes its reader open the files that it lists. Anything else is
    refused, with the reason in the log. In mlx-vlm this applies to every caller in the process.
    Optional: requests that were answered before may be refused.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10 (like vllm-mlx 318, Rapid-MLX 2167).
Retire when: The servers have an option to accept only public addresses and listed folders.
"""

import inspect
import os
import re
import tempfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from ....core.patch import read_stored
from ....core.verbs import Function, Patch, convert, wrap
from ..._shared.media_content import Content
from ..._shared.refusals import Refused, as_refusal
from ..._shared.targets import LIMIT
from .containers import PICTURE, SOUND, VIDEO, Kind, check_kind
from .fetch_policy import fetch
from .limited import guard_source, is_web, put_images
from .limits import Answer, Fetched, check_data_url, check_pixels, run_within
from .paths import is_admitted, read_media_roots, resolve_file, resolve_path

POLICY = "host-media-policy"


def inline_public(inline: Function, messages: Any) -> Any:
    """mlx-lm's server: fetch images from public addresses only."""
    release = inspect.unwrap(inline).__globals__
    put_images(check_source, release, messages, lambda url: fetch_kind(url, PICTURE), check_inline)
    return inline(messages)


def load_public_image(load: Function, image_source: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load an image, if a request may name it."""
    return load(
        check_source(image_source, lambda: resolve_source(image_source, PICTURE)), *args, **kwargs
    )


def load_public_audio(load: Function, file: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load audio, if a request may name it."""
    return load(check_source(file, lambda: resolve_source(file, SOUND)), *args, **kwargs)


def load_public_video(load: Function, video_path: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load a video, if a request may name it; its reader gets a file, never a URL."""
    source = str(video_path).removeprefix("file://")
    if not is_web(source):
        path = check_source(video_path, lambda: find_file(source, VIDEO))
        return load(path, *args, **kwargs)
    content = check_source(video_path, lambda: fetch_kind(source, VIDEO).content)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video"
        file.write_bytes(content)
        return load(str(file), *args, **kwargs)


def check_inner_names(process: Function, img: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: refuse an image that contains paths or URLs, which a processor would open."""
    if isinstance(img, (list, tuple, dict)):
        check_source(img, lambda: refuse_names(img))
    return process(img, *args, **kwargs)


def check_edited_paths(paths: Function, request: Any) -> Any:
    """mlx-vlm's server: the real paths of the images to edit."""
    return tuple(
        check_source(path, partial(resolve_media, str(path), PICTURE)) for path in paths(request)
    )


def check_output_path(choose: Function, request: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's server: the path to write an image to, checked if the request names it."""
    path = choose(request, *args, **kwargs)
    named = getattr(request, "output_path", None) or getattr(request, "output_dir", None)
    if path is None or not named:
        return path
    return check_source(path, lambda: resolve_path(str(path), read_media_roots()))


def check_source(source: Any, look: Callable[[], Answer], patch: str = POLICY) -> Answer:
    """Check or fetch a source; if the check itself fails, the source is refused too."""

    def make_refusal(error: Exception) -> Exception:
        refused = Refused("it could not be checked", f"{type(error).__name__}: {error}")
        return as_refusal(patch, source, refused)

    return guard_source(patch, source, look, make_refusal)


def speak_checked(run: Function, request: Any) -> Any:
    """mlx-vlm's server: make speech, if the request may name its reference and its voice."""
    speech = request.payload.request
    check_reference(speech.ref_audio)
    if speech.voice:  # models also accept the path of a file
        check_source(speech.voice, lambda: check_voice_name(speech.voice))
    return run(request)


def check_reference(path: Any) -> Any:
    """The real path of the reference audio for voice cloning; None without one."""
    return path and check_source(path, lambda: resolve_media(path, SOUND))


def read_reference(speech: Any) -> Any:
    """The same for a field of the request."""
    return check_reference(read_stored(speech, "ref_audio"))


async def parse_upload(parse: Function, request: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's server: parse a request with an upload, if its container is an audio one."""
    try:
        sent = getattr((await request.form()).get("file"), "file", None)
    except Exception:  # the server reports this itself
        sent = None
    if sent is not None:
        check_source("the upload", lambda: check_kind(sent, SOUND))
    return await parse(request, *args, **kwargs)


def check_voice_name(name: str) -> str:
    """The name of a voice; a path is refused."""
    if re.search(r"[/\\]", name) or os.path.exists(name):
        raise Refused("a path is not accepted, only the name of a voice")
    return name


def resolve_source(source: Any, kind: Kind) -> Any:
    """The content or real path of a source that a request may name; any other is refused."""
    if isinstance(source, BytesIO):
        check_kind(source, kind)
    if not isinstance(source, (str, Path)):
        return source
    if is_web(str(source)):
        return Content(fetch_kind(str(source), kind).content, str(source))
    if isinstance(source, str) and source.startswith("data:image/"):
        check_inline(source)
        return source
    return find_file(str(source), kind)


def check_inline(url: str) -> None:
    """Refuse a source that is not an inline image, or is over a limit."""
    if not url.startswith("data:"):
        raise Refused("only http, https and data URLs are accepted")
    check_kind(check_data_url(url, PICTURE.limits), PICTURE)


def fetch_kind(url: str, kind: Kind) -> Fetched:
    """Fetch a file of a kind from a public address, within its limits."""
    file = run_within(kind.limits.seconds, lambda expiry: fetch(url, kind.limits, expiry))
    check_kind(file.content, kind)
    if kind is PICTURE:
        check_pixels(file.content, kind.limits)
    return file


def find_file(path: str, kind: Kind) -> str:
    """The path of a file that the host wrote, or the real path of one that a request may name."""
    return path if is_admitted(path) else resolve_media(path, kind)


def resolve_media(path: str, kind: Kind) -> str:
    """The real path of a file of a kind that a request may name; any other is refused."""
    real = resolve_file(path, read_media_roots(), kind.limits)
    with open(real, "rb") as file:
        check_kind(file, kind)
    return real


def refuse_names(source: Any) -> None:
    """Refuse lists that contain text, which would be taken for URLs and paths."""
    inner = source.values() if isinstance(source, dict) else source
    for one in inner:
        if isinstance(one, (str, bytes, Path)):
            raise Refused("paths and URLs inside a list or dictionary are not accepted")
        if isinstance(one, (list, tuple, dict)):
            refuse_names(one)


_UTILS = "mlx_vlm.utils"
_AUDIO = "mlx_vlm.server.audio"
_OPENAI = "mlx_vlm.server.openai"

PATCH = Patch(
    id=POLICY,
    formerly="media-policy",
    **LIMIT,
    targets=(
        *wrap("mlx_lm.server:_inline_image_urls", inline_public),
        *wrap(f"{_UTILS}:load_image", load_public_image),
        *wrap(f"{_UTILS}:load_audio", load_public_audio),
        *wrap(f"{_UTILS}:load_video", load_public_video),
        *wrap(f"{_UTILS}:process_image", check_inner_names),
        *wrap(f"{_OPENAI}:_image_edit_paths", check_edited_paths),
        *wrap(f"{_OPENAI}:_image_output_path", check_output_path),
        *wrap(f"{_OPENAI}:_image_edit_output_path", check_output_path),
        *wrap(f"{_AUDIO}:_run_tts_request", speak_checked),
        *wrap(f"{_AUDIO}:_parse_transcription_request", parse_upload),
        # The endpoint reveals whether the path exists.
        *convert(
            f"{_AUDIO}:AudioSpeechRequest.ref_audio", "AudioSpeechRequest", read=read_reference
        ),
    ),
    probe=".probe:probe_policy",
)
