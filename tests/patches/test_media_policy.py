"""Attacks through the sources of a request: URLs, hosts, addresses, redirects, answers and paths.

Servers on this machine stand for the internet; no test connects to another machine.
"""

import io
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.patches._shared import refusals
from mlx_patches.patches._shared.refusals import Refused
from mlx_patches.patches.server.media import fetch_policy
from mlx_patches.patches.server.media import limited as limited_media
from mlx_patches.patches.server.media import limits as media_limits
from mlx_patches.patches.server.media import public as public_media
from mlx_patches.patches.server.media.containers import PICTURE, SOUND, VIDEO, check_kind
from mlx_patches.patches.server.media.fetch_policy import Policy, fetch, normalize_host, split_url
from mlx_patches.patches.server.media.limits import Limits, run_within
from mlx_patches.patches.server.media.paths import (
    ROOTS,
    read_media_roots,
    resolve_file,
    resolve_path,
)

from .web import HERE, Server, ok, to

SMALL = Limits(size=2**20, seconds=5.0)


URLS = [
    *("file:///etc/passwd", "FILE:///etc/passwd", "ftp://example.com/a"),
    *("gopher://example.com:70/_GET", "dict://example.com:11211/stat"),
    *("jar:http://example.com!/a", "javascript:alert(1)", "data:text/html,x"),
    *("unix:///var/run/docker.sock", "//example.com/a", "/etc/passwd", "", "http:", "http://"),
    *("http:///etc/passwd", "http:/127.0.0.1/", "http://user@example.com/"),
    *("http://user:password@example.com/", "http://example.com@127.0.0.1/"),
    *("http://example.com#@127.0.0.1/ ", "http://example.com\\@127.0.0.1/"),
    *("http://127.0.0.1\\.example.com/", "http://exa mple.com/", "http://example.com\t/"),
    *("\thttp://example.com/", " http://127.0.0.1/", "http://example.com/\r\nHost: 127.0.0.1"),
    *("http://example.com/\n", "http://example.com/\x00", "http://example.com/\u2028"),
    *("http://example.com/caf\u00e9", "http://%31%32%37.0.0.1/"),
    *("http://example.com%00.127.0.0.1/", "http://example.com:0/", "http://example.com:99999/"),
    *("http://example.com:-1/", "http://example.com:80:80/", "http://example.com:a/"),
    *("http://[::1/", "http://::1/", "http://[::1]x/", "http://[fe80::1%25lo]/"),
    *("http://[fe80::1%eth0]/", "http://[v1.a]/"),
    # A single number, or few parts: parsers disagree on their meaning.
    *("http://2130706433/", "http://017700000001/", "http://0x7f000001/", "http://0X7F000001/"),
    *("http://127.1/", "http://127.0.1/", "http://0177.0.0.1/", "http://0x7f.0.0.1/"),
    *("http://0x7f.0x0.0x0.0x1/", "http://00000127.0.0.1/", "http://127.0.0.1./"),
    *("http://127.0.0.01/", "http://256.256.256.256/", "http://1.2.3.4.5/", "http://0x/"),
    *("http://0/", f"http://{'a' * 64}.example.com/", "http://a..example.com/"),
    "http://exa$mple.com/",
]


@pytest.mark.parametrize("url", URLS)
def test_refused_urls(url):
    def resolve(*args: object, **kwargs: object) -> list[tuple[object, ...]]:
        raise AssertionError("it was looked up")

    with pytest.raises(Refused):
        fetch(url, SMALL, media_limits.Expiry(), Policy(resolve, lambda address: True))


HOSTS = {
    "EXAMPLE.com": "example.com",
    "example.com.": "example.com.",
    "b\u00fccher.example": "xn--bcher-kva.example",
    "2606:4700:0::1111": "2606:4700::1111",
    **{host: host for host in ("93.184.216.34", "1e100.net", "3com.com", "a_b.example")},
    # Dots and digits of other scripts become ASCII before the address is checked.
    "\uff11\uff12\uff17.0.0.1": HERE,
    "127\u30020\u30020\u30021": HERE,
    "\u2460\u2461\u2466.0.0.1": HERE,
}


def test_hosts_are_resolved():
    assert {host: normalize_host(host) for host in HOSTS} == HOSTS


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://example.com", "/"),
        ("https://example.com/a%20b.png?x=1&y=%2F#part", "/a%20b.png?x=1&y=%2F"),
        ("HTTPS://example.com:8443/a", "/a"),
        ("http://example.com?x", "/?x"),
    ],
)
def test_valid_urls(url, path):
    place = split_url(url)
    assert (place.host, place.path) == ("example.com", path)
    assert place.port == (8443 if "8443" in url else {"http": 80, "https": 443}[place.scheme])


INSIDE = [
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1"),
    *("172.31.255.255", "192.168.1.1", "169.254.169.254", "169.254.170.2", "100.64.0.1"),
    *("100.100.100.200", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1"),
    *("::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a00:1"),
    *("64:ff9b:1::1", "100::1", "fe80::1", "fe80::1%lo", "2606:4700::1%1", "fec0::1", "fc00::1"),
    *("fd00:ec2::254", "ff02::1", "ff0e::1", "2001::1", "2001:0:7f00:1::", "2001:20::1"),
    *("192.0.0.8", "192.0.0.9", "192.0.0.192", "192.0.0.255", "192.31.196.1", "192.52.193.1"),
    *("192.88.99.1", "192.175.48.1", "172.31.255.255", "100.127.255.255", "64:ff9b::c000:c0"),
    *("2001:1::1", "2001:4:112::1", "2001:1ff:ffff::1", "2620:4f:8000::1", "5f00::1"),
    *("2001:db8::1", "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "3ffe::1", "4000::1"),
    *("", "localhost", "8.8.8.8.8", "127.1"),
]


PUBLIC = [
    *("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::1"),
    *("64:ff9b::808:808", "2001:200::1", "2001:4860::8888", "2620:4f:7fff::1"),
    *("1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0"),
    *("172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0"),
    *("198.17.255.255", "198.20.0.0", "223.255.255.255"),
]


def test_addresses_are_public_or_not():
    assert list(filter(fetch_policy.is_public, INSIDE)) == []
    assert list(filter(fetch_policy.is_public, PUBLIC)) == PUBLIC


@pytest.mark.parametrize(
    "url",
    [
        *(f"http://{HERE}:1/", "http://localhost:1/", "http://[::1]:1/"),
        *("http://[::ffff:127.0.0.1]:1/", "http://[::ffff:7f00:1]:1/", "http://[::]:1/"),
        *("http://0.0.0.0:1/", "http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/"),
        *("http://[fd00:ec2::254]/", "http://[64:ff9b::7f00:1]/", "https://192.168.0.1/"),
        *("http://127\u30020\u30020\u30021:1/", "http://\uff11\uff12\uff17.0.0.1:1/"),
    ],
)
def test_local_urls_are_not_connected_to(url, monkeypatch):
    def connect(*args: object) -> None:
        raise AssertionError("it was connected to")

    monkeypatch.setattr(fetch_policy, "connect", connect)
    with pytest.raises(Refused, match="not on the public internet") as refused:
        fetch(url, SMALL, media_limits.Expiry())
    assert " is " in refused.value.private
    assert "127" not in str(refused.value)  # the message reveals no address to the client


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.over.set()
    made.socket.close()


def resolve(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
    """Resolves every name to this machine, and a numeric address to itself."""
    here = host if host.replace(".", "").isdigit() or ":" in host else HERE
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    return [(family, socket.SOCK_STREAM, 6, "", (here, port))]


TRUSTING = Policy(resolve, lambda address: address == HERE)


def get(url: str, limits: Limits = SMALL, policy: Policy = TRUSTING) -> media_limits.Fetched:
    return run_within(limits.seconds, lambda expiry: fetch(url, limits, expiry, policy))


def test_file_is_fetched_by_name(server):
    server.answers["/a?b=1"] = ok(b"image")
    assert get(server.url("/a?b=1", "images.example")) == (b"image", "image/png")
    (request,) = server.requests
    assert f"host: images.example:{server.port}".encode() in request.lower()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("relative", [True, False])
def test_redirects_are_followed(server, status, relative):
    server.answers["/a"] = to("/b" if relative else server.url("/b"), status)
    server.answers["/b"] = ok(b"image")
    assert get(server.url("/a")).content == b"image"


@pytest.mark.parametrize(
    "location",
    [
        *("http://127.0.0.2/", "http://[::1]/", "http://10.0.0.1/", "//127.0.0.2/"),
        *("http://169.254.169.254/latest/", "http://2130706434/", "http://0x7f000002/"),
        *("file:///etc/passwd", "ftp://example.com/", "data:text/plain,x", "gopher://x/"),
        *("http://user@example.com/", "http://example.com\\@127.0.0.2/", "https://127.0.0.2/"),
    ],
)
def test_redirects_are_checked(server, location):
    server.answers["/a"] = to(location)
    with pytest.raises(Refused):
        get(server.url("/a"))
    assert server.asked == ["/a"]


def test_redirect_loops_end(server):
    server.answers["/a"] = to("/a")
    with pytest.raises(Refused, match="more than 5 times"):
        get(server.url("/a"))
    assert len(server.asked) == 6


def test_checked_address_is_connected(server):
    """The name would resolve to another address at a second look-up: it is looked up only once."""
    looked_up: list[str] = []

    def rebinding(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        looked_up.append(host)
        return resolve(HERE if len(looked_up) == 1 else "127.0.0.2", port)

    server.answers["/a"] = ok(b"image")
    policy = Policy(rebinding, lambda address: address == HERE)
    assert get(server.url("/a", "rebind.example"), policy=policy).content == b"image"
    assert looked_up == ["rebind.example"]
    # The second request resolves the name to another address, which is checked too.
    with pytest.raises(Refused, match="not on the public internet"):
        get(server.url("/a", "rebind.example"), policy=policy)


def test_redirect_is_resolved_again(server):
    answers = iter([HERE, "127.0.0.2"])
    policy = Policy(
        lambda host, port, **more: resolve(next(answers), port), lambda address: address == HERE
    )
    server.answers["/a"] = to("/b")
    server.answers["/b"] = ok(b"secret")
    with pytest.raises(Refused):
        get(server.url("/a", "rebind.example"), policy=policy)
    assert server.asked == ["/a"]


@pytest.mark.parametrize("order", [0, 1])
def test_one_private_address_is_enough(server, order):
    def both(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        found = [*resolve(HERE, port), *resolve("127.0.0.2", port)]
        return found[::-1] if order else found

    with pytest.raises(Refused, match="not on the public internet"):
        get(server.url("/a", "both.example"), policy=Policy(both, TRUSTING.may_connect))
    assert not server.asked


@pytest.mark.parametrize("answer", [OSError("no such name"), UnicodeError("label"), []])
def test_unknown_host(answer):
    def fails(*args: object, **more: object) -> list[tuple[object, ...]]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(Refused, match="not found"):
        get("http://none.example/", policy=Policy(fails, TRUSTING.may_connect))


def test_silent_name_server():
    over = threading.Event()
    policy = Policy(lambda *args, **more: over.wait(60) or [], TRUSTING.may_connect)
    began = time.monotonic()
    with pytest.raises(Refused, match=r"longer than 0\.3 s"):
        get("http://slow.example/", Limits(2**20, 0.3), policy)
    assert time.monotonic() - began < 5
    over.set()


ANSWERS = {
    "more than announced may be": ok(b"")[:-2].replace(b": 0", b": 2000000") + b"\r\n",
    "announced in so many digits": ok(b"").replace(b": 0", b": " + b"9" * 40),
    "packed": ok(b"x", "Content-Encoding: gzip"),
    "packed twice": ok(b"x", "Content-Encoding: gzip, br"),
    "cut off": ok(b"x" * 10)[:-5],
    "cut off in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "a chunk of no length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    "not found": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "an error": b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\n\r\n",
    "a part": b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\nx",
    "nothing there": b"HTTP/1.1 204 None\r\n\r\n",
    "a redirect to nowhere": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no answer": b"",
    "a line without end": b"HTTP/1.1 200 " + b"a" * 70000,
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_refused_responses(server, name):
    server.answers["/a"] = ANSWERS[name]
    with pytest.raises(Refused):
        get(server.url("/a"))


def send_on_and_on(connected: socket.socket, content: bytes = b"x" * 4096) -> None:
    with suppress(OSError):
        while True:
            connected.sendall(content)


def chunks_on_and_on(connected: socket.socket) -> None:
    send_on_and_on(connected, b"1000\r\n" + b"x" * 4096 + b"\r\n")


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", send_on_and_on),
        (b"HTTP/1.0 200 OK\r\n\r\n", send_on_and_on),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", send_on_and_on),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks_on_and_on),
    ],
)
def test_endless_response(server, head, body):
    def answer(connected: socket.socket) -> None:
        connected.sendall(head)
        body(connected)

    server.answers["/a"] = answer
    with pytest.raises(Refused, match="larger than 1 MiB"):
        get(server.url("/a"))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: ",
    ],
)
@pytest.mark.parametrize("drips", [True, False])
def test_slow_response(server, head, drips):
    ended = threading.Event()

    def answer(connected: socket.socket) -> None:
        connected.sendall(head)
        connected.settimeout(0.02)
        while not server.over.is_set():
            try:
                if drips:
                    connected.sendall(b"a")
                if not connected.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        ended.set()

    server.answers["/a"] = answer
    began = time.monotonic()
    # On a busy machine the server may pause for the whole limit; then the connection times out
    # first.
    limit = 1 if drips else 0.3
    with pytest.raises(Refused, match="longer than 1 s" if drips else "longer|not answer"):
        get(server.url("/a"), Limits(2**20, limit))
    assert time.monotonic() - began < 5
    assert ended.wait(5), "the connection is still open"


@pytest.mark.parametrize("more", [b"Content-Length: 9", b"Connection: close", b"A: b"])
def test_no_thread_is_left(server, more):
    def answer(connected: socket.socket) -> None:
        connected.sendall(b"HTTP/1.1 200 OK\r\n" + more + b"\r\n\r\n")
        server.over.wait(30)

    server.answers["/a"] = answer
    with pytest.raises(Refused):
        get(server.url("/a"), Limits(2**20, 0.2))
    deadline = time.monotonic() + 5
    while any(one.name == "mlx_patches-fetch" for one in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tls_to_plain_server(server):
    with pytest.raises(Refused):
        get(server.url("/a").replace("http", "https"), Limits(2**20, 0.5))


def test_proxies_are_ignored(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.2:1")
    server.answers["/a"] = ok(b"image")
    assert get(server.url("/a")).content == b"image"


def test_largest_allowed_response(server):
    server.answers["/a"] = ok(b"x" * SMALL.size)
    assert len(get(server.url("/a")).content) == SMALL.size
    server.answers["/b"] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * SMALL.size
    assert len(get(server.url("/b")).content) == SMALL.size


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """``media`` may be read from; ``outside`` and ``media-other`` may not."""
    for name in ("media/inner", "outside", "media-other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("media/a.png", "media/inner/b.png", "outside/secret", "media-other/secret"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "media/link").symlink_to(tmp_path / "outside/secret")
    (tmp_path / "media/links").symlink_to(tmp_path / "outside")
    (tmp_path / "media/twice").symlink_to("link")
    (tmp_path / "media/up").symlink_to("../..")
    (tmp_path / "media/loop").symlink_to("loop")
    (tmp_path / "media/nowhere").symlink_to(tmp_path / "outside/none")
    (tmp_path / "media/fine").symlink_to("inner/b.png")
    os.mkfifo(tmp_path / "media/pipe")
    with open(tmp_path / "media/huge", "wb") as file:
        file.truncate(SMALL.size + 1)
    return tmp_path


PATHS = [
    *("outside/secret", "media/../outside/secret", "media/inner/../../outside/secret"),
    *("media/link", "media/links/secret", "media/twice", "media/loop", "media/nowhere"),
    *("media/up/etc/passwd", "media-other/secret", "media/pipe", "media", "media/inner", "media/"),
    *("media/none.png", "media/huge", "media/a.png\x00.png"),
    *("media/..", "media/./..//outside/secret", "media/" + "x" * 5000),
]


OUTSIDE = [
    *("/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/environ", "~/.ssh/id_rsa", "a.png"),
    *("file:///etc/passwd", "\\\\host\\share", "C:\\secret", "", ".", "..", "/", "~"),
    *("concat:/etc/passwd", "rtsp://127.0.0.1/", "http:/127.0.0.1", "pipe:0", "subfile:,,:/x"),
]


@pytest.mark.parametrize("path", [*(f"{{}}/{path}" for path in PATHS), *OUTSIDE])
def test_refused_paths(folders, path):
    with pytest.raises(Refused):
        resolve_file(path.replace("{}", str(folders)), [folders / "media"], SMALL)


@pytest.mark.parametrize(
    "path", ["media/a.png", "media/inner/b.png", "media/fine", "media/./a.png"]
)
def test_allowed_paths(folders, path):
    wanted = (folders / path.rstrip("/")).resolve()
    assert resolve_file(f"{folders}/{path}", [folders / "media"], SMALL) == str(wanted)


def test_outside_paths_look_missing(folders):
    messages = set()
    for path in ("outside/secret", "outside/none", "media/links/secret", "media/links/none"):
        with pytest.raises(Refused) as refused:
            resolve_file(f"{folders}/{path}", [folders / "media"], SMALL)
        messages.add(str(refused.value))
    assert len(messages) == 1


def test_missing_file(folders):
    new = folders / "media/new.png"
    assert resolve_path(str(new), [folders / "media"]) == new
    for path in ("media/links/new.png", "outside/new.png", "media/nowhere"):
        with pytest.raises(Refused):
            resolve_path(f"{folders}/{path}", [folders / "media"])


def test_operator_folders(folders, monkeypatch):
    monkeypatch.delenv(ROOTS, raising=False)
    assert read_media_roots() == []
    monkeypatch.setenv(ROOTS, os.pathsep.join(["", f"{folders}/media/links", " ", str(folders)]))
    assert read_media_roots() == [folders / "outside", folders]
    monkeypatch.setenv("HOME", str(folders))
    monkeypatch.setenv(ROOTS, "~/media")
    assert read_media_roots() == [folders / "media"]


PLAYLIST = b"#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:8,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
DASH = b"<MPD profiles='urn:mpeg:dash:profile:isoff-live:2011'><BaseURL>file:///etc/passwd"
MP4, WEBM = (
    b"\0\0\0\x18ftypmp42\0\0\0\0",
    b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\x82\x84webm",
)
AVI, WAV = b"RIFF\x24\0\0\0AVI LIST", b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def tag(content: bytes, tag: bytes = b"", padding: bytes = b"") -> bytes:
    """A file behind an ID3 tag."""
    size = bytes((len(tag) >> shift) & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x04\x01\0" + size + tag + padding + content


LISTS = [
    *(b"", b"\0" * 64, PLAYLIST, b"\xef\xbb\xbf" + PLAYLIST, b"\n" + PLAYLIST, b"\0" + PLAYLIST),
    *(PLAYLIST.replace(b"\n", b"\n# \x80\n", 1), PLAYLIST.replace(b"\n", b"\n# \x7f\n", 1)),
    PLAYLIST.replace(b"\n", b"\n#" + b"a" * 600 + b"\n", 1),
    *(tag(PLAYLIST), tag(PLAYLIST, b"a" * 300), tag(PLAYLIST, padding=b"\0" * 9)),
    *(tag(tag(PLAYLIST)), tag(b"", DASH), b"\xff\xfb\x90" + DASH, b"<MPDftypmp42" + DASH),
    *(b"\x1aE\xdf\xa3B\x82\x84webm" + DASH, b"\x1aE\xdf\xa3\x9f" + b"a" * 99, b"\xff\xfe<\0s\0"),
    *(b"ffconcat version 1.0\nfile /etc/passwd\n", b"ffconcat version 1.0\n# \x80\nfile /a\n"),
    *(b"<?xml version='1.0'?>" + DASH, DASH, b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n"),
    *(b"<?xml version='1.0'?><playlist xmlns='http://xspf.org/ns/0/'>", b"[playlist]\nFile1=/a\n"),
    *(b"<svg xmlns='http://www.w3.org/2000/svg'>", b"%!PS-Adobe-3.0 EPSF-3.0", b"%PDF-1.7"),
    *(b"\xc5\xd0\xd3\xc6", b"RIFF\x24\0\0\0CDXA", b"RIFF", b"ID3", b"FLV\x01", b"G" * 188, b"moov"),
]


@pytest.mark.parametrize("kind", [PICTURE, SOUND, VIDEO])
@pytest.mark.parametrize("content", LISTS)
def test_playlist_is_refused(kind, content):
    for source in (content, io.BytesIO(content)):
        with pytest.raises(Refused, match=f"not {kind.name}"):
            check_kind(source, kind)


@pytest.mark.parametrize(
    ("kind", "contents"),
    [
        (PICTURE, [PNG, b"\xff\xd8\xff\xe0", b"GIF89a", b"BM6\0", b"II*\0", b"MM\0*"]),
        (PICTURE, [b"RIFF\x24\0\0\0WEBPVP8 ", b"\0\0\0\x1cftypavif", b"\0\0\0\x18ftypheic"]),
        (
            SOUND,
            [WAV, b"fLaC\0", b"OggS\0\x02", b"FORM\0\0\0\x24AIFF", b"\xff\xfb\x90", b"\xff\xf1P"],
        ),
        (SOUND, [MP4, WEBM, tag(b"\xff\xfb\x90", b"a" * 3000, b"\0" * 500)]),
        (SOUND, [tag(tag(b"fLaC\0", b"<MP"))]),
        (VIDEO, [MP4, WEBM, WEBM.replace(b"\x84webm", b"\x88matroska"), AVI]),
    ],
)
def test_self_contained_containers(kind, contents):
    for content in contents:
        file = io.BytesIO(content)
        file.seek(2)
        check_kind(file, kind)
        assert file.tell() == 2


@pytest.mark.parametrize(
    ("kind", "content"),
    [(PICTURE, MP4), (PICTURE, WAV), (PICTURE, AVI), (SOUND, AVI), (SOUND, PNG), (VIDEO, WAV)],
)
def test_other_media_kinds(kind, content):
    with pytest.raises(Refused):
        check_kind(content, kind)


@pytest.mark.parametrize(
    "images",
    [["/etc/passwd"], [["http://127.0.0.1/"]], {"url": "http://127.0.0.1/"}, (b"/etc/passwd",)],
)
def test_names_in_lists_are_refused(images):
    with pytest.raises(ValueError, match="Refused to load"):
        public_media.check_inner_names(lambda img: img, images)
    images = [object(), [object()]]
    assert public_media.check_inner_names(lambda img: img, images) is images


def test_errors_let_nothing_through(caplog):
    """Any error of a check is raised as a refusal, so the release's own code does not run."""

    def look() -> None:
        raise KeyError("a bug")

    with pytest.raises(ValueError, match="could not be checked") as raised:
        public_media.check_source("http://example.com/", look)
    assert is_refusal(raised.value)
    assert "host-media-policy refused 'http://example.com/'" in caplog.text
    assert "KeyError" in caplog.text


def test_refusal_is_one_log_line(caplog):
    source = "http://example.com/\r\nmlx_patches: all is well\r\n" + "x" * 1000

    def look() -> None:
        raise Refused("its host is not on the public internet", "example.com is 10.0.0.1")

    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="Refused") as raised:
        public_media.check_source(source, look)
    (record,) = caplog.records
    line = record.getMessage()
    assert "\n" not in line
    assert "10.0.0.1" in line
    assert len(line) < 400
    assert "10.0.0.1" not in str(raised.value)
    assert is_refusal(raised.value)
    # Nor is an image's content logged.
    source = "data:image/png;base64," + "A" * 100
    assert refusals.describe_source(source) == "'data:image/png;base64,...'"


def put(url: object) -> list[dict[str, Any]]:
    """The result of ``put_images`` for one part, with stand-ins for mlx-lm's functions."""
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    release = {"_image_parts": lambda parts: parts, "_image_url": lambda p: p["image_url"]["url"]}
    check, given = public_media.check_source, public_media.check_inline
    limited_media.put_images(check, release, parts, get, given)
    return parts


def test_part_is_replaced_or_refused(server):
    server.answers["/a"] = ok(b"image")
    assert put(server.url("/a")) == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1hZ2U="}}
    ]
    for url in ("file:///etc/passwd", "/etc/passwd", "ftp://example.com/a", "HTTPX://a/", ""):
        with pytest.raises(ValueError, match="only http, https and data"):
            put(url)


def test_data_url_size():
    small = Limits(300, 1.0)
    media_limits.check_data_url("data:image/png;base64," + "A" * 400, small)
    with pytest.raises(Refused, match="larger"):
        media_limits.check_data_url("data:image/png;base64," + "A" * 500, small)
    for image in ("data:image/svg+xml;base64,PHN2Zz4=", "data:image/png;base64,!!", "data:,x"):
        with pytest.raises(Refused, match="not an image"):
            public_media.check_inline(image)
    media_limits.check_data_url("data:image/png;base64,!!", small)  # left to the release to refuse
    media_limits.check_data_url("data:", small)
