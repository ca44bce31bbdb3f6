import asyncio
import base64
import gzip
import http.client
import importlib
import io
import json
import struct
import sys
import threading
import urllib.error
import urllib.request
import wave
import zlib
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mlx_patches.activation.session import session
from mlx_patches.core.distributions import find
from mlx_patches.core.outcome import Status
from mlx_patches.patches.server.media import fetch_policy
from mlx_patches.patches.server.media import host as host_media
from mlx_patches.patches.server.media import limited as limited_media
from mlx_patches.patches.server.media import limits as media_limits
from mlx_patches.patches.server.media import public as public_media
from mlx_patches.patches.server.media.paths import ROOTS
from mlx_patches.patches.server.media.probe import a_server
from mlx_patches.probes import child

from ..releases.models import module_or_skip
from .web import Server, ok, to

LIMITS, POLICY = "host-media-limits", "host-media-policy"


@pytest.fixture(autouse=True)
def no_folder_is_named(monkeypatch):
    monkeypatch.delenv(ROOTS, raising=False)


@pytest.fixture
def vlm():
    return module_or_skip("mlx_vlm.utils")


@pytest.fixture
def lm():
    return module_or_skip("mlx_lm.server", "_inline_image_urls")  # older ones reject images


def png(width: int = 3, height: int = 2, pixels: bytes | None = None) -> bytes:
    """A PNG image; ``pixels`` of another size make it a bomb or a truncated image."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    if pixels is None:
        pixels = b"".join(b"\0" + bytes(range(row, row + 3 * width)) for row in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


BOMB = png(50_000, 50_000, b"")
MP4 = b"\0\0\0\x18ftypmp42"
PLAYLIST = b"#EXTM3U\n# \x80\n#EXTINF:8,\nfile:///etc/passwd\n"


def needs_bytes(vlm: Any) -> None:
    try:
        vlm.load_image(io.BytesIO(png()))
    except AttributeError:
        pytest.skip("this release takes no bytes")


def data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(16000)
        made.writeframes(bytes(range(256)) * 8)
    return file.getvalue()


@pytest.fixture
def web() -> Iterator[Server]:
    """A server with a few files, each also packed, cut off, and without an answer until the end."""
    made = Server()
    files = {"/a.png": png(), "/a.wav": sound(), "/bomb.png": BOMB, "/text": b"no image"}
    for path, content in (files | {"/a.mp4": MP4, "/list": PLAYLIST}).items():
        made.answers |= {
            path: ok(content),
            f"{path}.gz": ok(gzip.compress(content), "Content-Encoding: gzip"),
            f"{path}.cut": ok(content)[:-9],
            f"{path}.slow": lambda connected: made.over.wait(),
        }
    made.answers["/moved"] = to("/a.png")
    yield made
    made.over.set()
    made.socket.close()


def request(url: Any) -> list[dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}, {"content": "b"}]


def pixels(image: Any) -> tuple[Any, ...]:
    return image.mode, image.size, image.tobytes()


def test_allowed_images_are_unchanged(vlm, web, ungated, tmp_path):
    needs_bytes(vlm)
    from PIL import Image

    file = tmp_path / "a.png"
    file.write_bytes(png())
    sources = [web.url("/a.png"), web.url("/moved"), data_url(png()), str(file), file]
    before = [pixels(vlm.load_image(source)) for source in sources]
    ungated(LIMITS)
    after = [pixels(vlm.load_image(source)) for source in sources]
    assert after == before
    assert pixels(vlm.load_image(io.BytesIO(png()))) == before[0]
    assert pixels(vlm.load_image(image_source=web.url("/a.png"), timeout=3)) == before[0]
    assert pixels(vlm.load_image(web.url("/a.png.gz"), 3)) == before[0]
    assert pixels(vlm.process_image(web.url("/a.png"), None, None)) == before[0]
    opened = Image.open(file)
    assert vlm.process_image(opened, None, None).size == opened.size


def test_allowed_sounds_are_unchanged(vlm, web, ungated, tmp_path):
    needs_bytes(vlm)
    import numpy as np

    file = tmp_path / "a.wav"
    file.write_bytes(sound())
    sources = [web.url("/a.wav"), str(file), np.zeros((8,), dtype=np.float32)]
    before = [vlm.load_audio(source, sr=16000) for source in sources]
    ungated(LIMITS)
    for was, source in zip(before, sources, strict=True):
        got = vlm.load_audio(source, sr=16000)
        assert (got.dtype, got.shape) == (was.dtype, was.shape)
        assert np.array_equal(got, was)


def test_missing_audio_reader_is_no_result(vlm, monkeypatch):
    """Otherwise limits that refuse every sound would pass."""

    def load(url, sr):
        urllib.request.urlopen(url).close()
        if url.endswith("sound"):
            raise ModuleNotFoundError("No module named 'a_reader'", name="a_reader")

    monkeypatch.setattr(vlm, "load_audio", load)
    patch = session().registry.get(LIMITS)
    target = next(one for one in patch.targets if one.path == "mlx_vlm.utils:load_audio")
    row = child.probe_target(patch, target)
    assert (row["verdict"], row["detail"]) == ("not-run", "No module named 'a_reader': install it")


@pytest.mark.parametrize("path", ["/none.png", "/text", "/a.png.cut"])
def test_error_types_are_kept(vlm, web, ungated, path):
    with pytest.raises(ValueError) as before:
        vlm.load_image(web.url(path))
    manager = ungated(LIMITS)
    with pytest.raises(ValueError) as after:
        vlm.load_image(web.url(path))
    assert type(after.value) is type(before.value)
    assert web.url("") in str(after.value) or path == "/text"
    assert not manager.failures


def test_unreachable_server(vlm, ungated):
    manager = ungated(LIMITS)
    for load in (vlm.load_image, lambda url: vlm.load_audio(url, 16000, 3)):
        with pytest.raises(ValueError, match="Failed to load"):
            load("http://127.0.0.1:1/a.png")
    assert not manager.failures


def test_bombs_are_refused_before_decoding(vlm, web, ungated, caplog):
    from PIL import Image

    ungated(LIMITS)
    kept, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # as some hosts do
    try:
        for source in (web.url("/bomb.png"), data_url(BOMB), io.BytesIO(BOMB)):
            with pytest.raises(ValueError, match="50000 x 50000 pixels"):
                vlm.load_image(source)
    finally:
        Image.MAX_IMAGE_PIXELS = kept
    with pytest.raises(ValueError, match="too many pixels"):
        vlm.load_image(data_url(BOMB))
    assert "refused 'data:image/png;base64,...'" in caplog.text


def test_large_or_slow_media_is_refused(vlm, web, ungated, monkeypatch):
    ungated(LIMITS)
    monkeypatch.setattr(limited_media, "IMAGE", media_limits.Limits(10, 5.0))
    for source in (web.url("/a.png"), data_url(png()), web.url("/a.png.gz")):
        with pytest.raises(ValueError, match="larger than"):
            vlm.load_image(source)
    monkeypatch.setattr(limited_media, "IMAGE", media_limits.Limits(2**20, 0.0))
    with pytest.raises(ValueError, match="took longer"):
        vlm.load_image(web.url("/a.png.slow"))


@pytest.mark.parametrize("path", ["/a.png", "/moved", "/text"])
def test_server_inlines_as_before(lm, web, ungated, path):
    before, after = request(web.url(path)), request(web.url(path))
    lm._inline_image_urls(before)
    ungated(LIMITS)
    lm._inline_image_urls(after)
    assert after == before
    assert after[0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")


def test_server_errors_and_other_parts_are_kept(lm, web, ungated):
    manager = ungated(LIMITS)
    for url in ("data:image/png;base64,AAAA", "data:,x", "file:///etc/passwd", ""):
        messages = request(url)
        lm._inline_image_urls(messages)
        assert messages == request(url)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        lm._inline_image_urls(request(web.url("/none")))
    with pytest.raises(urllib.error.URLError):
        lm._inline_image_urls(request("http://127.0.0.1:1/"))
    assert not manager.failures


MALFORMED = [
    *([5], "abc", [None], [[1]], ["x"], 5, None, {"a": 1}, [{"content": [5]}]),
    *([{"content": [None]}], [{"content": [[]]}], [{"content": [{"type": "image"}, "x"]}]),
    *(request(5), request(["http://127.0.0.1/"]), request({"url": 5})),
]


@pytest.mark.parametrize("patch", [LIMITS, POLICY])
@pytest.mark.parametrize("messages", MALFORMED)
def test_malformed_messages_are_refused(lm, ungated, caplog, patch, messages):
    manager = ungated(patch)
    with pytest.raises(ValueError, match="Refused to load 'messages'"):
        lm._inline_image_urls(messages)
    assert f"{patch} refused 'messages'" in caplog.text
    assert not manager.failures


def test_server_refuses_large_media(lm, web, ungated, monkeypatch):
    ungated(LIMITS)
    monkeypatch.setattr(limited_media, "IMAGE", media_limits.Limits(10, 5.0))
    for url in (web.url("/a.png"), data_url(png())):
        with pytest.raises(ValueError, match="larger than"):
            lm._inline_image_urls(request(url))


@pytest.fixture
def media(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the operator allowed, with a link that leads out of it."""
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "a.png").write_bytes(png())
    (folder / "a.wav").write_bytes(sound())
    (folder / "a.mp4").write_bytes(MP4)
    (folder / "list.mp4").write_bytes(PLAYLIST)
    (tmp_path / "secret.png").write_bytes(png())
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    monkeypatch.setenv(ROOTS, str(folder))
    return folder


def expect_refusal(load: Any, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(ValueError, match="Refused to load"):
        load(*args, **kwargs)


@pytest.mark.parametrize("with_limits", [True, False])
def test_allowed_images(vlm, web, media, ungated, with_limits):
    needs_bytes(vlm)
    wanted = pixels(vlm.load_image(str(media / "a.png")))
    if with_limits:
        ungated(LIMITS)
    manager = ungated(POLICY)
    for source in (str(media / "a.png"), media / "a.png", data_url(png()), io.BytesIO(png())):
        assert pixels(vlm.load_image(source)) == wanted
    assert pixels(vlm.process_image(str(media / "a.png"), None, None)) == wanted
    expect_refusal(vlm.load_image, web.url("/a.png"))
    expect_refusal(vlm.load_image, image_source=web.url("/a.png"))
    expect_refusal(vlm.process_image, web.url("/a.png"), None, None)
    for path in (media.parent / "secret.png", media / "link.png", media / "../secret.png"):
        expect_refusal(vlm.load_image, path)
        expect_refusal(vlm.load_image, image_source=str(path))
    assert not web.asked
    assert not manager.failures


def test_public_images_are_fetched(vlm, lm_free_web, ungated):
    ungated(POLICY)
    assert vlm.load_image(lm_free_web.url("/moved")).size == (3, 2)
    assert lm_free_web.asked == ["/moved", "/a.png"]
    expect_refusal(vlm.load_image, lm_free_web.url("/bomb.png"))
    expect_refusal(vlm.load_image, lm_free_web.url("/none.png"))


@pytest.fixture
def lm_free_web(web, monkeypatch):
    monkeypatch.setattr(fetch_policy, "is_public", lambda address: address == "127.0.0.1")
    return web


def test_allowed_sounds(vlm, lm_free_web, media, ungated):
    needs_bytes(vlm)
    import numpy as np

    wanted = vlm.load_audio(str(media / "a.wav"), sr=16000)
    ungated(POLICY)
    for source in (str(media / "a.wav"), media / "a.wav", lm_free_web.url("/a.wav"), wanted):
        assert np.array_equal(vlm.load_audio(source, sr=16000), wanted)
    expect_refusal(vlm.load_audio, "http://127.0.0.2:1/a.wav", sr=16000)
    expect_refusal(vlm.load_audio, file=str(media.parent / "secret.png"), sr=16000)
    expect_refusal(vlm.load_audio, "data:audio/wav;base64,AAAA", sr=16000)


def test_allowed_videos(vlm, lm_free_web, media, ungated, monkeypatch):
    if not hasattr(vlm, "load_video"):
        pytest.skip("this release has no such loader")
    opened = []

    class Capture:
        def __init__(self, source: str):
            opened.append((source, Path(source).read_bytes()))

        def isOpened(self) -> bool:
            return False

    reader = ModuleType("cv2")
    reader.VideoCapture = Capture  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", reader)
    ungated(POLICY)
    for source in (str(media / "a.mp4"), f"file://{media}/a.mp4", lm_free_web.url("/a.mp4")):
        with pytest.raises(ValueError, match="Cannot open video"):
            vlm.load_video(source)
    assert [content for _, content in opened] == [MP4] * 3
    assert not Path(opened[-1][0]).exists()  # the fetched file was deleted
    for source in (
        *(lm_free_web.url("/list"), str(media / "list.mp4"), str(media / "a.png")),
        *(lm_free_web.url("/text"), "http://127.0.0.2:1/a", "rtsp://127.0.0.1/a", "data:,x"),
        *("file:///etc/passwd", "/etc/passwd", str(media / "link.png"), f"concat:{media}/a.png"),
    ):
        expect_refusal(vlm.load_video, video_path=source)
    assert len(opened) == 3


def test_image_edits_and_outputs(media, ungated):
    server = module_or_skip("mlx_vlm.server.openai")  # older ones make no images
    ungated(POLICY)
    outside = str(media.parent / "secret.png")
    assert server._image_edit_paths(SimpleNamespace(image=str(media / "a.png"))) == (
        str(media / "a.png"),
    )
    expect_refusal(server._image_edit_paths, SimpleNamespace(image=[str(media / "a.png"), outside]))
    more = {"index": 0, "count": 1, "seed": 7}
    for choose in (server._image_output_path, server._image_edit_output_path):

        def choose_path(choose: Any = choose, **fields: Any) -> Any:
            empty = {"output_path": None, "output_dir": None, "response_format": "b64_json"}
            return choose(SimpleNamespace(**empty | fields), **more)

        assert choose_path() is None
        assert choose_path(response_format="path").parent == Path("outputs")  # the server's choice
        assert choose_path(output_path=str(media / "new.png")) == media / "new.png"
        assert choose_path(output_dir=str(media)).parent == media
        expect_refusal(choose_path, output_path=outside)
        expect_refusal(choose_path, output_path=str(media / "link.png"))
        expect_refusal(choose_path, output_dir=str(media / ".."))


def test_server_fetches_only_public_images(lm, web, ungated):
    manager = ungated(POLICY)
    for url in (web.url("/a.png"), "HTTP://127.0.0.1/", "file:///etc/passwd", "/etc/passwd"):
        expect_refusal(lm._inline_image_urls, request(url))
        expect_refusal(lm._inline_image_urls, messages=request(url))
    assert not web.asked
    messages = request(data_url(png()))
    lm._inline_image_urls(messages)
    assert messages == request(data_url(png()))
    assert not manager.failures


def test_server_inlines_public_images(lm, lm_free_web, ungated):
    before, after = request(lm_free_web.url("/moved")), request(lm_free_web.url("/moved"))
    lm._inline_image_urls(before)
    ungated(LIMITS)
    ungated(POLICY)
    lm._inline_image_urls(after)
    assert after == before


def test_client_gets_error_and_server_survives(lm, web, ungated):
    """The server's own handler answers a refused request with an error, and serves the next."""
    served = []

    class Handler(lm.APIHandler):  # type: ignore[misc,name-defined]
        def handle_completion(self, request: Any, stop_words: Any) -> None:
            served.append(request.messages)
            self._set_completion_headers(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None:
            pass

    numbers = {"num_draft_tokens": 3, "max_tokens": 8, "temp": 0.0}
    numbers |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    arguments = SimpleNamespace(allowed_origins=["*"], **numbers)
    generator = SimpleNamespace(cli_args=arguments)
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: Handler(generator, *args))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def post(messages: Any) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        body = json.dumps({"messages": messages})
        connection.request("POST", "/v1/chat/completions", body)
        response = connection.getresponse()
        return response.status, response.read().decode()

    try:
        ungated(LIMITS)
        ungated(POLICY)
        urls = (web.url("/a.png"), "http://[::1]/", "file:///etc/passwd", "http://2130706433/")
        for url in urls:
            status, message = post(request(url))
            assert status == 400
            assert "Refused to load" in message
            assert post(request(data_url(png())))[0] == 200
        for messages in MALFORMED:
            assert post(messages)[0] == 400
        assert post(request(web.url("/a.png")))[0] == 400
    finally:
        server.shutdown()
        server.server_close()
    assert served == [request(data_url(png()))] * 4
    assert not web.asked


def test_our_failure_lets_nothing_through(vlm, web, ungated, monkeypatch):
    """After ten errors of the patch each call still fails, and the patch is not withdrawn."""
    manager = ungated(POLICY)

    def broken(*args: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(public_media, "fetch", broken)
    monkeypatch.setattr(public_media, "resolve_file", broken)
    for _ in range(10):
        for source in (web.url("/a.png"), "/etc/passwd"):
            with pytest.raises(ValueError, match="could not be checked"):
                vlm.load_image(source)
    assert not web.asked
    assert not manager.withdrawn


def test_patches_are_independent(vlm, web, ungated):
    load = vlm.load_image
    limits, policy = ungated(LIMITS), ungated(POLICY)
    policy.restore()
    assert vlm.load_image(web.url("/a.png")).size == (3, 2)
    applied = {o.target for o in limits.status() if o.status is Status.APPLIED}
    assert "mlx_vlm.utils:load_image" in applied
    limits.restore()
    assert vlm.load_image is load


def test_fetched_content_is_no_url():
    content = limited_media.Content(b"image", "http://example.com/a.png")
    assert not content.startswith(("http://", "data:image/"))
    assert content.read() == b"image"
    assert f"{content}" == repr(content) == "http://example.com/a.png"


def test_only_allowed_reference_audio(vlm, media, ungated, monkeypatch):
    audio = module_or_skip("mlx_vlm.server.audio")  # older ones make no speech
    ungated(POLICY)
    run: list[str] = []

    def model(*args: Any, **kwargs: Any) -> Any:
        run.append("a model is loaded")
        raise LookupError

    def speech(**fields: Any) -> Any:
        return audio.AudioSpeechRequest(model="a", input="a", **fields)

    def speak(**fields: Any) -> None:
        payload = SimpleNamespace(request=speech(**fields))
        audio._run_tts_request(SimpleNamespace(payload=payload))

    monkeypatch.setattr(audio, "get_cached_model", model)
    for fields in ({}, {"voice": "af_heart"}, {"ref_audio": str(media / "a.wav")}):
        with pytest.raises(LookupError):
            speak(**fields)
    for path in ("/etc/passwd", "/none", str(media / "link.png"), str(media / "list.mp4")):
        expect_refusal(speak, ref_audio=path)
        expect_refusal(speak, voice=path)
        expect_refusal(getattr, speech(ref_audio=path), "ref_audio")
    assert len(run) == 3


def test_uploads_must_be_audio(vlm, ungated):
    audio = module_or_skip("mlx_vlm.server.audio", "_parse_transcription_request")
    parse = audio._parse_transcription_request
    forms = importlib.import_module("starlette.datastructures")

    def transcription(**form: Any) -> Any:
        async def read() -> Any:
            if not form:
                raise RuntimeError("no form")
            return forms.FormData({"model": "a", **form})

        request = SimpleNamespace(form=read)
        return asyncio.run(audio._parse_transcription_request(request, translate=False))

    def upload(content: bytes) -> Any:
        return forms.UploadFile(io.BytesIO(content), filename="a.wav")

    released = transcription(file=upload(sound()))
    manager = ungated(POLICY)
    assert audio._parse_transcription_request is not parse
    payload = transcription(file=upload(sound()))
    assert (payload.audio == released.audio).all()
    assert (payload.filename, payload.sample_rate) == ("a.wav", 16000)
    for content in (PLAYLIST, b"<MPDftyp>", b""):
        with pytest.raises(ValueError, match="Refused to load 'the upload'") as error:
            transcription(file=upload(content))
        assert error.value.status_code == 400
    for form, message in (({"file": "text"}, "Missing file"), ({}, "no form")):
        with pytest.raises(Exception, match=message) as error:
            transcription(**form)
        assert error.value.status_code == 400
    assert not manager.failures


HOST = "host-media"
PICTURE = png(30, 30)


@pytest.fixture(params=["vllm-mlx", "rapid-mlx"])
def mllm(request):
    if not find(request.param):
        pytest.skip(f"{request.param} is not installed")
    return importlib.import_module(f"{request.param.replace('-', '_')}.models.mllm")


def test_host_written_files_are_loaded(mllm, ungated):
    utils = importlib.import_module("mlx_vlm.utils")
    image_of = mllm.process_image_input
    released = utils.load_image(image_of(data_url(PICTURE))).tobytes()
    ungated(POLICY)
    path = image_of(data_url(png(31, 30)))
    expect_refusal(utils.load_image, path)  # so it was before the hosts' files were known
    ungated(HOST)
    assert utils.load_image(mllm.process_image_input(data_url(PICTURE))).tobytes() == released
    # The host caches its earlier results.
    assert utils.load_image(mllm.process_image_input(data_url(png(31, 30)))).size == (31, 30)
    frame = importlib.import_module("numpy").zeros((30, 30, 3), dtype="uint8")
    (path,) = mllm.save_frames_to_temp([frame])
    assert utils.load_image(path).size == (30, 30)
    mllm._temp_manager.cleanup_all()


def test_host_refuses(mllm, ungated, tmp_path):
    file = tmp_path / "a.wav"
    file.write_bytes(sound())
    manager = ungated(HOST)
    with a_server() as web:
        for kind in ("image", "video", "audio"):
            if not hasattr(mllm, f"process_{kind}_input"):  # no audio below 0.3.0
                continue
            process = getattr(mllm, f"process_{kind}_input")
            listed = data_url(PLAYLIST).replace("image/png", f"{kind}/mp4")
            for source in (str(file), f"{web.url}/{kind}", listed, {"url": listed}, 5):
                expect_refusal(process, source)
    assert not web.asked
    assert not manager.failures


def test_vllm_mlx_uploads_and_voices(ungated, tmp_path):
    if not find("vllm-mlx"):
        pytest.skip("vllm-mlx is not installed")
    stt = importlib.import_module("vllm_mlx.audio.stt")
    tts = importlib.import_module("vllm_mlx.audio.tts")
    ungated(HOST)
    listener, speaker = stt.STTEngine("a"), tts.TTSEngine("a")
    listener._loaded = speaker._loaded = True
    listener.model = SimpleNamespace(generate=lambda path, **kwargs: SimpleNamespace(text=path))
    speaker.model = SimpleNamespace(
        generate=lambda **kwargs: [SimpleNamespace(audio=[0.0], sample_rate=8000)]
    )
    file = tmp_path / "a.wav"
    file.write_bytes(sound())
    assert listener.transcribe(str(file), language="en").text == str(file)
    assert speaker.generate("a", voice="af_heart").sample_rate == 8000
    assert [made.sample_rate for made in speaker.stream_generate("a", "af_heart")] == [8000]
    expect_refusal(speaker.generate, "a", voice=str(file))
    expect_refusal(lambda *given: list(speaker.stream_generate(*given)), "a", str(file))
    file.write_bytes(PLAYLIST)
    expect_refusal(listener.transcribe, str(file))


def test_mlx_openai_server_files_are_loaded(ungated, tmp_path):
    images = pytest.importorskip("app.core.image_processor")
    utils = importlib.import_module("mlx_vlm.utils")
    ungated(POLICY)
    manager = ungated(HOST)
    file = tmp_path / "a.png"
    file.write_bytes(PICTURE)

    async def ask(source: str) -> Any:
        processor = images.ImageProcessor()
        try:
            return utils.load_image(await processor.process_image_url(source)).size
        finally:
            await processor.cleanup()

    with a_server() as web:
        assert asyncio.run(ask(data_url(PICTURE))) == (30, 30)
        for source in (str(file), f"{web.url}/image", data_url(PLAYLIST * 9)):
            expect_refusal(asyncio.run, ask(source))
    assert not web.asked
    assert not manager.failures


def files_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = media_limits.Limits(2**40, 60.0)
    monkeypatch.setattr(limited_media, "IMAGE", endless)
    monkeypatch.setattr(limited_media, "MEDIA", endless)


def hosts_and_paths_that_are_all_public(monkeypatch: pytest.MonkeyPatch) -> None:
    take_everything(monkeypatch, public_media)
    monkeypatch.setattr(public_media, "resolve_path", lambda path, roots: path)
    monkeypatch.setattr(public_media, "refuse_names", lambda source: None)


def hosts_that_take_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    take_everything(monkeypatch, host_media)
    monkeypatch.setattr(host_media, "admit", lambda path: None)


def take_everything(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    monkeypatch.setattr(fetch_policy, "is_public", lambda address: True)
    monkeypatch.setattr(module, "resolve_media", lambda path, kind: path)
    monkeypatch.setattr(module, "check_voice_name", lambda name: name)
    monkeypatch.setattr(module, "check_kind", lambda content, kind: None)


MUTANTS = {
    "host-media-limits": files_of_any_size,
    "host-media-policy": hosts_and_paths_that_are_all_public,
    "host-media": hosts_that_take_everything,
}
