"""Names media as a request to a host does."""

import asyncio
import base64
import inspect
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, import_module, make_sound, module_with, without_variable
from .paths import ROOTS, is_admitted
from .probe import a_server, make_image

_PLAYLIST = b"#EXTM3U\n#EXTINF:8,\nfile:///etc/passwd\n" + bytes(200)
_FILES = {
    "image": make_image() + bytes(200),
    "audio": make_sound(),
    "video": b"\0\0\0\x18ftypmp42" * 20,
}
Open = Callable[[str], Any]


def probe(target: Target) -> Result:
    """Red if a local server is contacted, or a forbidden file is opened."""
    module = module_with(target)
    with without_variable(ROOTS), tempfile.TemporaryDirectory() as folder:
        return _PROBES[target.name](module, Path(folder))


def _probe_source(kind: str, module: Any, folder: Path) -> Result:
    """vllm-mlx's function that writes media of a kind to a file."""
    return _try_sources(getattr(module, f"process_{kind}_input"), kind, folder)


def _probe_messages(module: Any, folder: Path) -> Result:
    """The check of a request's messages, which returns nothing."""

    def accept(source: str) -> str:
        content = [{"type": "audio_url", "audio_url": {"url": source}}]
        module._validate_remote_media_urls([{"role": "user", "content": content}])
        return source

    return _try_sources(accept, "audio", folder)


def _probe_cache(module: Any, folder: Path) -> Result:
    """mlx-openai-server's cache of media."""
    sound = import_module("app.core.audio_processor")

    async def send(source: str) -> Any:
        processor = sound.AudioProcessor()
        try:
            path = Path(await processor._process_single_media(source))
            return path.read_bytes()
        finally:
            await processor.cleanup()

    return _try_sources(lambda source: asyncio.run(send(source)), "audio", folder)


def _try_sources(load: Open, kind: str, folder: Path) -> Result:
    """Red if a URL of this machine, a path or a playlist is accepted."""
    file = folder / f"named.{kind}"
    file.write_bytes(_FILES[kind])
    inside = f"data:{kind}/mp4;base64,{base64.b64encode(_PLAYLIST).decode()}"
    opened = []
    with a_server() as server:
        for what, source in (
            ("a URL", f"{server.url}/{kind}"),
            ("a path", str(file)),
            ("a playlist", inside),
        ):
            with suppress(Exception):
                made = load(source)
                opened.append(what)
                if isinstance(made, str) and made not in (source, str(file)):
                    os.unlink(made)
        opened += server.asked
    return Result(bool(opened), f"accepted: {', '.join(opened) or 'nothing'}")


def _probe_register(module: Any, folder: Path) -> Result:
    """Red if mlx-vlm may not load a file that vllm-mlx wrote."""
    path = str(folder / "written")
    module._temp_manager.register(path)
    module._temp_manager.cleanup(path)
    verb = "is" if is_admitted(path) else "is not"
    return Result(not is_admitted(path), f"a file of the host {verb} recorded as such")


def _probe_upload(module: Any, folder: Path) -> Result:
    """Red if a playlist reaches the model that transcribes it."""
    file = folder / "upload.wav"
    file.write_bytes(_PLAYLIST)
    opened: list[str] = []

    def generate(path: Any, **kwargs: Any) -> dict[str, str]:
        opened.append(str(path))
        return {"text": ""}

    if hasattr(module, "MLX_Whisper"):
        with mock.patch.object(module, "transcribe", generate):
            return _make_result(lambda: module.MLX_Whisper("a")(audio_path=str(file)), opened)
    engine = module.STTEngine("a")
    engine._loaded, engine.model = True, SimpleNamespace(generate=generate)
    return _make_result(lambda: engine.transcribe(str(file)), opened)


def _probe_speech(name: str, module: Any, folder: Path) -> Result:
    """Red if a speech function of vllm-mlx accepts a path as a voice."""
    file = folder / "voice.wav"
    file.write_bytes(make_sound())
    opened: list[str] = []

    def generate(**kwargs: Any) -> list[Any]:
        opened.append(kwargs["voice"])
        return []

    engine = module.TTSEngine("a")
    engine._loaded, engine.model = True, SimpleNamespace(generate=generate)

    def speak() -> Any:
        made = getattr(engine, name)("a", voice=str(file))
        return list(made) if inspect.isgenerator(made) else made

    return _make_result(speak, opened)


def _make_result(call: Callable[[], Any], opened: list[str]) -> Result:
    """Red if the call opened a file."""
    with suppress(Exception):
        call()
    return Result(bool(opened), f"opened: {', '.join(map(os.path.basename, opened)) or 'nothing'}")


def _probe_answer(module: Any, folder: Path) -> Result:
    """Red if a refusal is answered as a server error."""
    images = import_module("app.core.image_processor")
    handler = object.__new__(module.MLXVLMHandler)

    async def send() -> None:
        processor = images.ImageProcessor()
        handler._build_inference_context = processor.process_image_url
        try:
            await handler.generate_multimodal_response(str(folder / "none.png"))
        finally:
            await processor.cleanup()

    try:
        asyncio.run(send())
    except Exception as error:
        status = getattr(error, "status_code", None)
        return Result(status != 400, f"a path is answered with status {status}")
    return Result(True, "a path is accepted")


_PROBES: dict[str, Callable[[Any, Path], Result]] = {
    "process_image_input": partial(_probe_source, "image"),
    "process_video_input": partial(_probe_source, "video"),
    "process_audio_input": partial(_probe_source, "audio"),
    "TempFileManager.register": _probe_register,
    "_validate_remote_media_urls": _probe_messages,
    "STTEngine.transcribe": _probe_upload,
    "TTSEngine.generate": partial(_probe_speech, "generate"),
    "TTSEngine.stream_generate": partial(_probe_speech, "stream_generate"),
    "BaseProcessor._process_single_media": _probe_cache,
    "MLXVLMHandler.generate_multimodal_response": _probe_answer,
    "MLX_Whisper.__call__": _probe_upload,
}
