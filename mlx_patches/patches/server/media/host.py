"""vllm-mlx, Rapid-MLX, mlx-openai-server: a request can read local files and internal addresses.

Why: mlx-openai-server reads any path and fetches any URL. vllm-mlx reads any path as audio or as a
    voice, and resolves a host's name once to check it and again to connect. Rapid-MLX reads any
    path as audio. In all three a file may be a playlist, whose reader opens the files and URLs that
    it lists.
How: The sources in a request are checked like those of mlx-lm and mlx-vlm in ``host-media-policy``.
    vllm-mlx and Rapid-MLX get the fetched content as a data URL, mlx-openai-server as a file.
    ``host-media-policy`` then lets mlx-vlm load the files that the hosts write. Optional: requests
    that were answered before may be refused.
Upstream: Not fixed in vllm-mlx 0.6.0 (vllm-mlx 318), mlx-openai-server 1.8.1 and Rapid-MLX 0.16.10
    (Rapid-MLX 2167).
Retire when: The hosts have an option to accept only public addresses and listed folders.
"""

import asyncio
import base64
import inspect
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ....core.errors import is_refusal, refusal
from ....core.verbs import Function, Patch, around, wrap
from ..._shared.refusals import Refused
from ..._shared.targets import LIMIT, at
from . import public as public_media
from .containers import PICTURE, SOUND, VIDEO, check_kind
from .limited import is_web
from .limits import check_data_url
from .paths import admit
from .public import check_voice_name, fetch_kind, resolve_media

ID = "host-media"
check_source = partial(public_media.check_source, patch=ID)
# In the order in which vllm-mlx lists the media of messages.
KINDS = {"image": PICTURE, "video": VIDEO, "audio": SOUND}
# Some audio readers decide by the ending of a file's name, others by the content.
_SOUNDS = {
    b"RIFF": "wav",
    b"RF64": "wav",
    b"FORM": "aiff",
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"caff": "caf",
    b"\x1aE\xdf\xa3": "webm",
}
# vllm-mlx takes a longer text for a base64 image, unless it begins like a path or URL.
_LONGEST_NAME = 100


def make_loader(name: str) -> Function:
    """A host: write a request's image, video or audio to a file, if the request may name it."""

    def load(process: Function, source: Any, *args: Any, **kwargs: Any) -> Any:
        source = find_source(source, name)
        path = process(check_source(source, lambda: prepare_source(source, name)), *args, **kwargs)
        if isinstance(path, str):  # Rapid-MLX keeps audio in memory
            admit(path)
        return path

    return load


def check_messages(validate: Function, messages: Any) -> Any:
    """vllm-mlx's server: refuse a request before its answer begins; nothing is fetched yet."""
    release = inspect.unwrap(validate).__globals__
    media = check_source("messages", lambda: release["extract_multimodal_content"](messages)[1:])
    try:
        for name, sources in zip(KINDS, media, strict=True):
            for source in (find_source(one, name) for one in sources):
                if not is_web(str(source)):  # the release checks these
                    check_source(source, partial(check_local, source, name))
    except ValueError as error:
        message = str(error)
        raise refusal(release["UnsafeRemoteURLError"](message, public_message=message)) from None
    return validate(messages)


def find_source(source: Any, name: str) -> Any:
    """The URL or path in a part of a message; a bare base64 image becomes a data URL."""
    while isinstance(source, dict):
        source = source.get("url", source.get(f"{name}_url", ""))
    is_long = name == "image" and isinstance(source, str) and len(source) > _LONGEST_NAME
    if is_long and not (is_web(source) or source.startswith(("data:image/", "/"))):
        return f"data:image/png;base64,{source}"
    return source


def prepare_source(source: Any, name: str) -> str:
    """A source that vllm-mlx may load, as a data URL or a real path; any other is refused."""
    if not is_web(str(source)):
        return check_local(source, name)
    content = fetch_kind(source, KINDS[name]).content
    data = base64.b64encode(content).decode()
    return f"data:{name}/{find_ending(content, name)};base64,{data}"


def check_local(source: Any, name: str) -> str:
    """A data URL of a kind, or the real path of such a file; any other source is refused."""
    kind = KINDS[name]
    if not isinstance(source, str):
        raise Refused("it is not text")
    if not source.startswith(f"data:{name}/"):
        return resolve_media(source, kind)
    check_kind(check_data_url(source, kind.limits), kind)
    return source


def find_ending(content: bytes, name: str) -> str:
    if name != "audio":
        return {"image": "png", "video": "mp4"}[name]
    return _SOUNDS.get(content[:4]) or ("m4a" if content[4:8] == b"ftyp" else "mp3")


def register_file(register: Function, files: Any, path: Any) -> Any:
    """vllm-mlx: register a file that it wrote from a source, or a video's frame or audio."""
    admit(path)
    return register(files, path)


def transcribe_checked(
    transcribe: Function, engine: Any, audio_path: Any, *args: Any, **kwargs: Any
) -> Any:
    check_source("the upload", lambda: check_upload(audio_path))
    return transcribe(engine, audio_path, *args, **kwargs)


def check_upload(path: Any) -> None:
    """Refuse a file that the server wrote if its container is not an audio one."""
    with open(path, "rb") as file:
        check_kind(file, SOUND)


def speak_checked(speak: Function, engine: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
    """vllm-mlx: make speech, if the voice is a name."""
    voice = args[0] if args else kwargs.get("voice")
    if voice:
        check_source(voice, lambda: check_voice_name(voice))
    return speak(engine, text, *args, **kwargs)


async def process_checked(
    process: Function, processor: Any, media_url: Any, *args: Any, **kwargs: Any
) -> Any:
    """mlx-openai-server: write a request's media to a file, if the request may name it."""
    with TemporaryDirectory() as folder:
        look = partial(place_source, processor, media_url, Path(folder))
        # The host's own threads for media: slow servers must not use up those of the event loop.
        run = asyncio.get_running_loop().run_in_executor
        sent = await run(processor.executor, check_source, media_url, look)
        path = await process(processor, sent, *args, **kwargs)
    admit(path)
    return path


async def answer_refusals(generate: Function, *args: Any, **kwargs: Any) -> Any:
    """mlx-openai-server: answer a request; one that was refused gets status 400."""
    try:
        return await generate(*args, **kwargs)
    except Exception as error:
        if error.__context__ is not None and is_refusal(error.__context__):
            raise error.__context__ from None
        raise


def place_source(processor: Any, source: Any, folder: Path) -> str:
    """A source that mlx-openai-server may load; a fetched one is written to this folder."""
    name = processor._get_media_type_name()
    if not is_web(str(source)):
        return check_local(source, name)
    content = fetch_kind(source, KINDS[name]).content
    file = folder / f"media.{find_ending(content, name)}"
    file.write_bytes(content)
    return str(file)


# Rapid-MLX has the same functions.
_MLLM = ("vllm_mlx.models.mllm", "rapid_mlx.models.mllm")

PATCH = Patch(
    id=ID,
    **LIMIT,
    targets=(
        *at(_MLLM, {f"process_{name}_input": around(make_loader(name)) for name in KINDS}),
        *at(_MLLM, {"TempFileManager.register": around(register_file)}, supports=True),
        *wrap("vllm_mlx.server:_validate_remote_media_urls", check_messages),
        *wrap("vllm_mlx.audio.stt:STTEngine.transcribe", transcribe_checked),
        *wrap("vllm_mlx.audio.tts:TTSEngine.generate", speak_checked),
        *wrap("vllm_mlx.audio.tts:TTSEngine.stream_generate", speak_checked),
        *wrap("app.core.base_processor:BaseProcessor._process_single_media", process_checked),
        *wrap("app.handler.mlx_vlm:MLXVLMHandler.generate_multimodal_response", answer_refusals),
        *wrap("app.models.mlx_whisper:MLX_Whisper.__call__", transcribe_checked),
    ),
    probe=".probe_host:probe",
)
