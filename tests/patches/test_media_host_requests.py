"""Media in requests to vllm-mlx and mlx-openai-server, with stand-ins for the hosts."""

import asyncio
import base64
import importlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.core.outcome import Status
from mlx_patches.core.resolve import in_file, in_process
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches._shared.refusals import Refused
from mlx_patches.patches.server.media import fetch_policy
from mlx_patches.patches.server.media import host as host_media
from mlx_patches.patches.server.media import paths as media_paths
from mlx_patches.patches.server.media import public as public_media
from mlx_patches.patches.server.media.paths import ROOTS, admit, is_admitted
from mlx_patches.patches.server.media.probe import a_server, make_image
from mlx_patches.probes.kit import make_sound

PLAYLIST = b"#EXTM3U\n#EXTINF:8,\nfile:///etc/passwd\n"
MP4 = b"\0\0\0\x18ftypmp42"
CONTENT = {"image": make_image() + bytes(200), "audio": make_sound(), "video": MP4}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.delenv(ROOTS, raising=False)
    monkeypatch.setattr(media_paths, "_written", {})


@pytest.fixture
def public_web(monkeypatch):
    monkeypatch.setattr(fetch_policy, "is_public", lambda address: address == "127.0.0.1")
    with a_server() as server:
        yield server


def data_url(kind: str, content: bytes) -> str:
    return f"data:{kind}/mp4;base64,{base64.b64encode(content).decode()}"


def expect_refusal(call: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(ValueError, match="Refused to load") as error:
        call(*args, **kwargs)
    assert is_refusal(error.value)


def test_host_file_is_known_by_real_path(tmp_path, monkeypatch):
    file = tmp_path / "a.png"
    file.write_bytes(b"")
    (tmp_path / "link.png").symlink_to(file)
    assert not is_admitted(str(file))
    admit(str(tmp_path / "link.png"))
    assert is_admitted(str(file))
    assert is_admitted(str(tmp_path / "x" / ".." / "a.png"))
    assert not is_admitted("a\0b")
    # Only the newest are known.
    monkeypatch.setattr(media_paths, "_written", {})
    monkeypatch.setattr(media_paths, "_KEPT", 3)
    for name in ("a", "b", "c", "a", "d"):
        admit(f"/{name}")
    assert [name for name in "abcd" if is_admitted(f"/{name}")] == ["a", "c", "d"]


@pytest.mark.parametrize("load", [public_media.load_public_image, public_media.load_public_audio])
def test_host_files_are_loaded_but_not_for_requests(load, tmp_path):
    file = tmp_path / "a.wav"
    file.write_bytes(make_sound())
    expect_refusal(load, lambda source: source, str(file))
    admit(str(file))
    assert load(lambda source: source, str(file)) == str(file)
    assert public_media.load_public_video(lambda source: source, f"file://{file}") == str(file)
    expect_refusal(host_media.make_loader("audio"), lambda source: source, str(file))


@pytest.mark.parametrize("kind", host_media.KINDS)
def test_vllm_mlx_may_load(kind, tmp_path, monkeypatch, public_web):
    sent: list[str] = []

    def process(source: str) -> str:
        sent.append(source)
        return "/written"

    load = host_media.make_loader(kind)
    file = tmp_path / "a"
    file.write_bytes(CONTENT[kind])
    inside = data_url(kind, CONTENT[kind])
    for source in (inside, {"url": inside}, {"url": {"url": inside}}, {f"{kind}_url": inside}):
        assert load(process, source) == "/written"
    assert sent == [inside] * 4
    assert is_admitted("/written")
    for wrong in (str(file), data_url(kind, PLAYLIST), "data:text/plain,x", "", 5, None, {}):
        expect_refusal(load, process, wrong)
    expect_refusal(load, process, f"http://127.0.0.2:1/{kind}")
    monkeypatch.setenv(ROOTS, str(tmp_path))
    load(process, str(file))
    assert sent[4:] == [str(file.resolve())]
    if kind != "video":  # the server has none
        path = {"image": "image", "audio": "sound"}[kind]
        load(process, f"{public_web.url}/{path}")
        head, _, data = sent[5].partition(",")
        assert head == {"image": "data:image/png;base64", "audio": "data:audio/wav;base64"}[kind]
        assert base64.b64decode(data)[:4] in (b"RIFF", b"\x89PNG")
        assert public_web.asked == [f"/{path}"]


def test_only_base64_images():
    sent: list[str] = []
    load = host_media.make_loader("image")
    raw = base64.b64encode(CONTENT["image"]).decode()
    load(lambda source: sent.append(source) or "/written", raw)
    assert sent == [f"data:image/png;base64,{raw}"]
    expect_refusal(load, sent.append, base64.b64encode(PLAYLIST * 9).decode())
    # The release decodes the whole text as base64, including the head.
    expect_refusal(load, sent.append, data_url("image", CONTENT["image"]).replace("data:", "DATA:"))
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("content", "ending"),
    [(b"RIFF", "wav"), (b"fLaC", "flac"), (b"\0\0\0 ftypM4A", "m4a"), (b"ID3\4", "mp3")],
)
def test_audio_file_is_named_by_content(content, ending):
    assert host_media.find_ending(content, "audio") == ending


class UnsafeRemoteURLError(ValueError):
    def __init__(self, message: str, *, public_message: str = ""):
        super().__init__(message)
        self.public_message = public_message


def extract_multimodal_content(messages: Any) -> Any:
    return messages, messages["images"], messages["videos"], messages["audios"]


def test_messages_are_checked_before_streaming(tmp_path):
    passed: list[Any] = []

    def validate(messages: Any) -> None:  # its globals are those of this module
        assert UnsafeRemoteURLError
        passed.append(messages)

    def check(**media: Any) -> None:
        messages = {"images": [], "videos": [], "audios": []} | media
        host_media.check_messages(validate, messages)

    check()
    check(images=[data_url("image", CONTENT["image"]), "http://127.0.0.1/"])  # checked by it
    assert len(passed) == 2
    for wrong in (
        {"images": ["/etc/passwd"]},
        {"videos": [data_url("video", PLAYLIST)]},
        {"audios": ["/etc/passwd"]},
        {"images": [{"url": "file:///etc/passwd"}]},
    ):
        with pytest.raises(UnsafeRemoteURLError, match="Refused to load") as error:
            check(**wrong)
        assert is_refusal(error.value)
        assert error.value.public_message == str(error.value)
    expect_refusal(host_media.check_messages, validate, 5)
    assert len(passed) == 2


def test_uploads_and_voices(tmp_path):
    file = tmp_path / "a.wav"
    file.write_bytes(make_sound())
    run = lambda *args, **kwargs: (args, kwargs)  # noqa: E731
    assert host_media.transcribe_checked(run, "engine", str(file), language="en") == (
        ("engine", str(file)),
        {"language": "en"},
    )
    host_media.transcribe_checked(run, "engine", audio_path=file)
    file.write_bytes(PLAYLIST)
    expect_refusal(host_media.transcribe_checked, run, "engine", audio_path=file)
    expect_refusal(host_media.transcribe_checked, run, "engine", str(tmp_path / "none"))
    for args, kwargs in ((("af_heart", 1.0), {}), ((), {"voice": "af_heart"}), ((), {})):
        assert host_media.speak_checked(run, "engine", "a", *args, **kwargs)[1] == kwargs
    expect_refusal(host_media.speak_checked, run, "engine", "a", str(file))
    expect_refusal(host_media.speak_checked, run, "engine", "a", voice="../a")


def processor_of(kind: str) -> Any:
    return SimpleNamespace(_get_media_type_name=lambda: kind, executor=ThreadPoolExecutor(1))


async def process(processor: Any, media_url: str, **kwargs: Any) -> str:
    """As the release does: it reads a path, and copies the content of anything to a file."""
    if os.path.exists(media_url):
        processor.content = Path(media_url).read_bytes()
    processor.source = media_url
    return "/cached"


def process_source(kind: str, source: Any) -> Any:
    processor = processor_of(kind)
    done = asyncio.run(host_media.process_checked(process, processor, source, resize=True))
    assert done == "/cached"
    return processor


def test_mlx_openai_server_may_load(tmp_path, public_web, monkeypatch, caplog):
    given = data_url("audio", make_sound())
    assert process_source("audio", given).source == given
    assert is_admitted("/cached")
    fetched = process_source("audio", f"{public_web.url}/sound")
    assert fetched.content == make_sound()
    assert fetched.source.endswith(".wav")
    assert not os.path.exists(fetched.source)
    file = tmp_path / "a.wav"
    file.write_bytes(make_sound())
    for source in (
        *(str(file), "http://127.0.0.2:1/a", "file:///etc/passwd", data_url("audio", PLAYLIST)),
        *(data_url("image", CONTENT["image"]), "", 5, None),
    ):
        expect_refusal(process_source, "audio", source)
    expect_refusal(process_source, "hologram", str(file))
    assert "host-media refused" in caplog.text
    monkeypatch.setenv(ROOTS, str(tmp_path))
    assert process_source("audio", str(file)).content == make_sound()


def test_slow_check_does_not_block_event_loop(monkeypatch):
    full = threading.Event()

    def slow(processor: Any, source: Any, folder: Path) -> str:
        assert threading.current_thread().name.startswith("ThreadPoolExecutor")
        assert full.wait(10)  # only the loop can fill it
        raise Refused("it took too long")

    async def both() -> None:
        async def fill() -> None:
            await asyncio.sleep(0.1)
            full.set()

        task = asyncio.create_task(fill())
        with pytest.raises(ValueError, match="too long"):
            await host_media.process_checked(process, processor_of("image"), "http://a/")
        await task

    monkeypatch.setattr(host_media, "place_source", slow)
    asyncio.run(asyncio.wait_for(both(), 20))


def test_refusal_is_no_server_error():
    async def generate(error: Exception) -> None:
        try:
            raise error
        except Exception:
            raise RuntimeError("status 500")  # noqa: B904

    def answer(error: Exception) -> None:
        asyncio.run(host_media.answer_refusals(generate, error))

    with pytest.raises(ValueError, match="Refused") as refusal:
        process_source("image", "/etc/passwd")
    with pytest.raises(ValueError, match="Refused") as answered:
        answer(refusal.value)
    assert answered.value is refusal.value
    with pytest.raises(RuntimeError):
        answer(ValueError("another"))


@pytest.fixture
def server(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    write_package(folder)
    info = folder / "mlx_openai_server-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mlx-openai-server\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget()


def write_package(folder: Path) -> None:
    core = folder / "app" / "core"
    core.mkdir(parents=True)
    (folder / "app" / "__init__.py").touch()
    (core / "__init__.py").touch()
    code = "class BaseProcessor:\n    async def _process_single_media(self, media_url): ...\n"
    (core / "base_processor.py").write_text(code)


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "app"]:
        del sys.modules[name]


def verdicts() -> set[tuple[bool, Status]]:
    gate = Gate(CompatMatrix.builtin())
    (target,) = [t for t in host_media.PATCH.targets if t.module == "app.core.base_processor"]
    module = importlib.import_module(target.module)
    found = [in_file(target), in_process(module, target, {})]
    decided = [gate.decide(host_media.PATCH, target, one) for one in found]
    forget()
    return {(one.ok, one.status) for one in decided}


def test_mlx_openai_server_releases_are_patched(server):
    ((ok, _),) = verdicts()
    assert ok


@pytest.mark.parametrize("installed", [True, False])
def test_unrelated_package_is_not_patched(request, installed, tmp_path, monkeypatch):
    if installed:
        request.getfixturevalue("server")
    write_package(tmp_path / "own")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    assert verdicts() == {(False, Status.ABSENT)}
