"""Loads media as a request names them: from a server on this machine, and from its disk."""

import asyncio
import base64
import io
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ....probes.kit import (
    Result,
    Target,
    import_module,
    make_sound,
    module_of,
    require,
    without_variable,
)
from .paths import ROOTS

_PIECE = bytes(2**20)
# The bytes that the server announces, and how many it sends at most. The operating system
# buffers some bytes that the release never reads.
_ANNOUNCED, _SENT = 600 * 2**20, 96 * 2**20


def probe_limits(target: Target) -> Result:
    """Red if a 600 MiB response is read without a limit, or a small file is not loaded."""
    load = _make_loader(target)
    with a_server() as server:
        with suppress(Exception):
            load(f"{server.url}/endless")
        if not server.asked:
            return Result(False, "this release does not fetch such URLs")
        small = ""
        try:
            load(f"{server.url}/{'sound' if target.name == 'load_audio' else 'image'}")
        except ImportError:  # the audio reader is not installed
            raise
        except Exception as error:
            small = f"; a small file is not loaded: {error}"
    detail = f"{server.sent // 2**20} of 600 MiB were sent before the end{small}"
    return Result(server.sent >= _SENT or bool(small), detail)


def probe_policy(target: Target) -> Result:
    """Red if a local server is contacted, or a file outside the allowed folders is opened."""
    with without_variable(ROOTS):
        if target.name.startswith("_image_"):
            return _probe_paths(target)
        module = module_of(target)
        if target.name == "_parse_transcription_request":
            return _probe_upload(module)
        if target.module.endswith(".audio"):
            return _probe_speech(module, target.name)
        with a_server() as server, tempfile.TemporaryDirectory() as folder:
            secret = Path(folder) / "secret"
            secret.write_bytes(make_image())
            seen = _find_opened(target, f"{server.url}/image", str(secret))
            seen = [*server.asked, *seen]
    return Result(bool(seen), f"opened: {', '.join(seen) or 'nothing'}")


def _find_opened(target: Target, url: str, path: str) -> list[str]:
    """Load the URL and the path; returns the path if the loader, or OpenCV for it, opened it."""
    load = _make_loader(target)
    seen: list[str] = []

    def capture(source: Any) -> Any:
        seen.append(str(source))
        return SimpleNamespace(isOpened=lambda: False)

    with mock.patch.dict("sys.modules", cv2=SimpleNamespace(VideoCapture=capture)):
        for source in (url, path):
            with suppress(Exception):
                load(source)
                seen.append(source)
    return [path] if path in seen and target.name != "_inline_image_urls" else []


def _probe_paths(target: Target) -> Result:
    """Red if an image request's path outside the allowed folders is accepted."""
    choose = require(target)
    outside = str(Path(tempfile.gettempdir()) / "not-named.png")
    request = SimpleNamespace(
        image=outside, output_path=outside, output_dir=None, response_format="path"
    )
    more = {} if target.name == "_image_edit_paths" else {"index": 0, "count": 1, "seed": 0}
    try:
        chosen = choose(request, **more)
    except ValueError as error:
        return Result(False, str(error))
    return Result(True, f"{chosen} is accepted")


def _probe_speech(module: Any, name: str) -> Result:
    """Red if a speech request may name any file as its reference, or as its voice."""

    def model(*args: Any, **kwargs: Any) -> Any:
        raise LookupError("a file outside the allowed folders is accepted")

    try:
        with (
            mock.patch.object(module, "get_cached_model", model),
            tempfile.NamedTemporaryFile(suffix=".wav") as file,
        ):
            file.write(make_sound())
            file.flush()
            for field in ("ref_audio", "voice"):
                speech = module.AudioSpeechRequest(model="a", input="a", **{field: file.name})
                if name == "_run_tts_request":
                    module._run_tts_request(
                        SimpleNamespace(payload=SimpleNamespace(request=speech))
                    )
                elif speech.ref_audio:
                    model()
    except LookupError as error:
        return Result(True, str(error))
    except Exception as error:
        return Result(False, f"{getattr(error, 'detail', error)}".replace(file.name, "a file"))
    return Result(False, "nothing is read")


def _probe_upload(module: Any) -> Result:
    """Red if an uploaded playlist reaches the audio reader."""
    forms = import_module("starlette.datastructures")
    read: list[str] = []

    def audio_read(file: Any, **kwargs: Any) -> Any:
        read.append("a playlist")
        raise ValueError

    async def form() -> Any:
        playlist = io.BytesIO(b"<MPDftyp><BaseURL>file:///etc/passwd</BaseURL></MPD>")
        return forms.FormData({"model": "a", "file": forms.UploadFile(playlist)})

    request, status = SimpleNamespace(form=form), "200"
    try:
        with mock.patch.object(module, "audio_read", audio_read):
            asyncio.run(module._parse_transcription_request(request, translate=False))
    except Exception as error:
        status = f"{getattr(error, 'status_code', type(error).__name__)}"
    return Result(
        bool(read) or status != "400", f"read: {', '.join(read) or 'nothing'}; status {status}"
    )


def _make_loader(target: Target) -> Callable[[str], Any]:
    """Return the target's loader as a function of a URL or path."""
    load = require(target)
    if target.name == "_inline_image_urls":
        part = {"type": "image_url"}
        return lambda url: load([{"content": [part | {"image_url": {"url": url}}]}])
    if target.name == "load_audio":
        return lambda source: load(source, 16000)
    if target.name == "process_image":
        # A list of images is returned as it is; the model's processor opens the names in it.
        return lambda source: _open_all(load([source], None, None))
    return load  # type: ignore[no-any-return]


def _open_all(images: Any) -> None:
    """Open each image, as a model's processor does."""
    from urllib.request import urlopen

    for source in images:
        with urlopen(source) as response:
            response.read()


def make_image() -> bytes:
    """Make a PNG of one pixel."""
    return base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
    )


@contextmanager
def a_server() -> Iterator[Any]:
    """Run a server on this machine; ``asked`` lists the requested paths, ``sent`` counts bytes."""
    seen = SimpleNamespace(url="", asked=[], sent=0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.asked.append(self.path)
            self.send_response(200)
            endless = self.path == "/endless"
            content = make_sound() if self.path == "/sound" else make_image()
            self.send_header("Content-Type", "image/png")
            self.send_header("Content-Length", str(_ANNOUNCED if endless else len(content)))
            self.end_headers()
            with suppress(OSError):
                if not endless:
                    self.wfile.write(content)
                while endless and seen.sent < _SENT:
                    self.wfile.write(_PIECE)
                    seen.sent += len(_PIECE)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
