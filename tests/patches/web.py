"""A server on this machine that stands for the internet."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

HERE = "127.0.0.1"


class Server:
    """Answers each path from ``answers``: with bytes, or by a function of the connection."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Callable[[socket.socket], None]] = {}
        self.asked: list[str] = []
        self.requests: list[bytes] = []
        self.socket = socket.create_server((HERE, 0))
        self.port = self.socket.getsockname()[1]
        self.over = threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()

    def url(self, path: str, host: str = HERE) -> str:
        return f"http://{host}:{self.port}{path}"

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self.socket.accept()
                threading.Thread(target=self.answer, args=(connected,), daemon=True).start()

    def answer(self, connected: socket.socket) -> None:
        with connected, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                if not (chunk := connected.recv(4096)):
                    return
                request += chunk
            path = request.split(b" ")[1].decode()
            self.asked.append(path)
            self.requests.append(request)
            answer = self.answers.get(path, b"HTTP/1.1 404 Not Found\r\n\r\n")
            if callable(answer):
                answer(connected)
            else:
                connected.sendall(answer)


def ok(content: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", "Content-Type: image/png", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


def to(location: str, status: int = 302) -> bytes:
    lines = [f"HTTP/1.1 {status} Found", f"Location: {location}", "Content-Length: 0"]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()
