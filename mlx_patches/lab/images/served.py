"""A chat with images through the release's HTTP server, in a thread of this process."""

from __future__ import annotations

import base64
import importlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..server.client import CHAT, Client

# The tokens of an answer: most are bytes that form no character.
SECONDS, TOKENS = 120.0, 24


def chat(folder: Path, images: Sequence[str], text: str, sounds: Sequence[str] = ()) -> str:
    """The server's greedy answer to a user's message with images and sounds."""
    urls = ({"url": f"data:image/png;base64,{encode(one)}"} for one in images)
    heard = ({"data": encode(one), "format": "wav"} for one in sounds)
    content = [
        *({"type": "image_url", "image_url": url} for url in urls),
        *({"type": "input_audio", "input_audio": one} for one in heard),
        {"type": "text", "text": text},
    ]
    body = {
        "model": str(folder),
        "messages": [{"role": "user", "content": content}],
        "max_tokens": TOKENS,
        "temperature": 0.0,
    }
    with serve() as url:
        answer = Client(url, str(folder), SECONDS).post(CHAT, json.dumps(body).encode())
    if answer.status != 200:
        raise RuntimeError(f"HTTP {answer.status}: {answer.error}")
    return answer.text


def encode(path: str) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()


@contextmanager
def serve() -> Iterator[str]:
    """The URL of the release's server on a free port."""
    uvicorn = importlib.import_module("uvicorn")
    app = importlib.import_module("mlx_vlm.server").app
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="error"))
    stopped = threading.Event()

    def run() -> None:
        try:
            server.run()
        finally:
            stopped.set()
        # MLX frees a thread's compiled functions without the GIL when the thread ends: it stays.
        threading.Event().wait()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not server.started:
            if stopped.wait(0.05):
                raise RuntimeError("the server does not start")
        yield "http://127.0.0.1:{1}".format(*server.servers[0].sockets[0].getsockname())
    finally:
        server.should_exit = True
        stopped.wait(SECONDS)
