"""Hosts open what a request names as an image, a sound or a video.

Why
    mlx-openai-server reads any path and fetches any URL. vllm-mlx reads any path as a sound or a
    voice, and resolves a host's name once to check it and again to connect. Rapid-MLX reads any
    path as a sound. In all three a file may be a playlist, whose reader opens the files and URLs
    that it lists.
How
    What a request names is checked as ``host-media-policy`` checks it for mlx-lm and mlx-vlm.
    vllm-mlx and Rapid-MLX get the fetched content as a data URL, mlx-openai-server as a file.
    ``host-media-policy`` then lets mlx-vlm load the files that the hosts write.
    Optional: requests that were answered before may be refused.
Upstream
    Not fixed in vllm-mlx 0.6.0 (vllm-mlx 318), mlx-openai-server 1.8.1 and Rapid-MLX 0.16.10
    (Rapid-MLX 2167).
Retire when
    The hosts have an option to accept only public addresses and listed folders.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ....core.errors import is_refusal, refusal
from ....core.patch import Patch, Target, around
from ..._shared.refusals import Refused
from ..._shared.targets import at
from . import public as public_media
from .containers import PICTURE, SOUND, VIDEO, check_kind
from .limited import is_web
from .limits import check_data_url
from .paths import admit
from .public import fetch_kind, named_file, plain_name

ID = "host-media"
checked = partial(public_media.checked, patch=ID)
# In the order in which vllm-mlx lists the media of messages.
KINDS = {"image": PICTURE, "video": VIDEO, "audio": SOUND}
# Some readers of sounds go by the ending of a file's name; others go by the content.
_SOUNDS = {
    b"RIFF": "wav",
    b"RF64": "wav",
    b"FORM": "aiff",
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"caff": "caf",
    b"\x1aE\xdf\xa3": "webm",
}
# vllm-mlx takes a longer text for an image in base64, if it does not begin like a path or URL.
_LONGEST_NAME = 100


def media_file(name: str) -> Callable[..., Any]:
    """A host: write a request's image, video or sound to a file, if the request may name it."""

    def load(process: Callable[..., Any], source: Any, *args: Any, **kwargs: Any) -> Any:
        source = named(source, name)
        path = process(checked(source, lambda: sendable(source, name)), *args, **kwargs)
        if isinstance(path, str):  # Rapid-MLX keeps a sound in memory
            admit(path)
        return path

    return load


def messages_checked(validate: Callable[..., Any], messages: Any) -> Any:
    """vllm-mlx's server: refuse a request before its answer begins; nothing is fetched yet."""
    release = inspect.unwrap(validate).__globals__
    media = checked("messages", lambda: release["extract_multimodal_content"](messages)[1:])
    try:
        for name, sources in zip(KINDS, media, strict=True):
            for source in (named(one, name) for one in sources):
                if not is_web(str(source)):  # the release checks these
                    checked(source, partial(at_hand, source, name))
    except ValueError as error:
        said = str(error)
        raise refusal(release["UnsafeRemoteURLError"](said, public_message=said)) from None
    return validate(messages)


def named(source: Any, name: str) -> Any:
    """The URL or path in a part of a message; an image that is in base64 alone, as a data URL."""
    while isinstance(source, dict):
        source = source.get("url", source.get(f"{name}_url", ""))
    is_long = name == "image" and isinstance(source, str) and len(source) > _LONGEST_NAME
    if is_long and not (is_web(source) or source.startswith(("data:image/", "/"))):
        return f"data:image/png;base64,{source}"
    return source


def sendable(source: Any, name: str) -> str:
    """A source as vllm-mlx may load it, as a data URL or a real path; any other is refused."""
    if not is_web(str(source)):
        return at_hand(source, name)
    content = fetch_kind(source, KINDS[name]).content
    data = base64.b64encode(content).decode()
    return f"data:{name}/{ending(content, name)};base64,{data}"


def at_hand(source: Any, name: str) -> str:
    """A data URL of a kind, or the real path of such a file; any other source is refused."""
    kind = KINDS[name]
    if not isinstance(source, str):
        raise Refused("it is not text")
    if not source.startswith(f"data:{name}/"):
        return named_file(source, kind)
    check_kind(check_data_url(source, kind.limits), kind)
    return source


def ending(content: bytes, name: str) -> str:
    """The ending of the name of a file with this content."""
    if name != "audio":
        return {"image": "png", "video": "mp4"}[name]
    return _SOUNDS.get(content[:4]) or ("m4a" if content[4:8] == b"ftyp" else "mp3")


def host_file(register: Callable[..., Any], files: Any, path: Any) -> Any:
    """vllm-mlx: register a file that it wrote: of a source, of a video's frame or sound."""
    admit(path)
    return register(files, path)


def transcribed(
    transcribe: Callable[..., Any], engine: Any, audio_path: Any, *args: Any, **kwargs: Any
) -> Any:
    """Transcribe an upload, if its container is one of sounds."""
    checked("the upload", lambda: check_upload(audio_path))
    return transcribe(engine, audio_path, *args, **kwargs)


def check_upload(path: Any) -> None:
    """Refuse a file that the server wrote if its container is none of sounds."""
    with open(path, "rb") as file:
        check_kind(file, SOUND)


def spoken(speak: Callable[..., Any], engine: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
    """vllm-mlx: make speech, if the voice is a name."""
    voice = args[0] if args else kwargs.get("voice")
    if voice:
        checked(voice, lambda: plain_name(voice))
    return speak(engine, text, *args, **kwargs)


async def cached_file(
    process: Callable[..., Any], processor: Any, media_url: Any, *args: Any, **kwargs: Any
) -> Any:
    """mlx-openai-server: write a request's media to a file, if the request may name it."""
    with TemporaryDirectory() as folder:
        look = partial(placed, processor, media_url, Path(folder))
        # The host's own threads for media: slow servers must not use up those of the event loop.
        run = asyncio.get_running_loop().run_in_executor
        sent = await run(processor.executor, checked, media_url, look)
        path = await process(processor, sent, *args, **kwargs)
    admit(path)
    return path


async def answered(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """mlx-openai-server: answer a request; one that was refused gets status 400."""
    try:
        return await generate(*args, **kwargs)
    except Exception as error:
        if error.__context__ is not None and is_refusal(error.__context__):
            raise error.__context__ from None
        raise


def placed(processor: Any, source: Any, folder: Path) -> str:
    """A source as mlx-openai-server may load it; what is fetched is put in this folder."""
    name = processor._get_media_type_name()
    if not is_web(str(source)):
        return at_hand(source, name)
    content = fetch_kind(source, KINDS[name]).content
    file = folder / f"media.{ending(content, name)}"
    file.write_bytes(content)
    return str(file)


# Rapid-MLX has the same functions.
_MLLM = (("vllm-mlx", "vllm_mlx.models.mllm"), ("rapid-mlx", "rapid_mlx.models.mllm"))
_TTS = ("vllm-mlx", "vllm_mlx.audio.tts")
_SERVER = "mlx-openai-server"

PATCH = Patch(
    id=ID,
    severity="security",
    summary=(
        "vllm-mlx, Rapid-MLX, mlx-openai-server: a request can read local "
        "files and internal addresses"
    ),
    targets=(
        *at(_MLLM, {f"process_{name}_input": around(media_file(name)) for name in KINDS}),
        *at(_MLLM, {"TempFileManager.register": around(host_file)}, supports=True),
        Target(
            "vllm-mlx", "vllm_mlx.server", "_validate_remote_media_urls", around(messages_checked)
        ),
        Target("vllm-mlx", "vllm_mlx.audio.stt", "STTEngine.transcribe", around(transcribed)),
        Target(*_TTS, "TTSEngine.generate", around(spoken)),
        Target(*_TTS, "TTSEngine.stream_generate", around(spoken)),
        Target(
            _SERVER,
            "app.core.base_processor",
            "BaseProcessor._process_single_media",
            around(cached_file),
        ),
        Target(
            _SERVER,
            "app.handler.mlx_vlm",
            "MLXVLMHandler.generate_multimodal_response",
            around(answered),
        ),
        Target(_SERVER, "app.models.mlx_whisper", "MLX_Whisper.__call__", around(transcribed)),
    ),
    probe=".probe_host:probe",
    optional=True,
    security=True,
    profiles=("security",),
)
