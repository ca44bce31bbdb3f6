"""``host-media`` in the hosts' own functions, together with ``media-policy`` in mlx-vlm."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from mlx_patches.core.distributions import find
from mlx_patches.patches.server.media import host as host_media
from mlx_patches.patches.server.media import public as public_media
from mlx_patches.patches.server.media.paths import ROOTS
from mlx_patches.patches.server.media.probe import a_server

from .test_media import PLAYLIST, data_url, png, refused, sound

HOST, POLICY = host_media.PATCH, public_media.PATCH
PICTURE = png(30, 30)


@pytest.fixture(autouse=True)
def no_folder_is_named(monkeypatch):
    monkeypatch.delenv(ROOTS, raising=False)


@pytest.fixture(params=["vllm-mlx", "rapid-mlx"])
def mllm(request):
    """The module of a host that writes a request's media to files."""
    if not find(request.param):
        pytest.skip(f"{request.param} is not installed")
    return importlib.import_module(f"{request.param.replace('-', '_')}.models.mllm")


def test_mlx_vlm_loads_what_a_host_wrote(mllm, ungated):
    utils = importlib.import_module("mlx_vlm.utils")
    image_of = mllm.process_image_input
    released = utils.load_image(image_of(data_url(PICTURE))).tobytes()
    ungated(POLICY)
    path = image_of(data_url(png(31, 30)))
    refused(utils.load_image, path)  # so it was before the hosts' files were known
    ungated(HOST)
    assert utils.load_image(mllm.process_image_input(data_url(PICTURE))).tobytes() == released
    # The host has a cache of what it wrote before.
    assert utils.load_image(mllm.process_image_input(data_url(png(31, 30)))).size == (31, 30)
    frame = importlib.import_module("numpy").zeros((30, 30, 3), dtype="uint8")
    (path,) = mllm.save_frames_to_temp([frame])
    assert utils.load_image(path).size == (30, 30)
    mllm._temp_manager.cleanup_all()


def test_what_a_host_refuses(mllm, ungated, tmp_path):
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
                refused(process, source)
    assert not web.asked
    assert not manager.failures


def test_uploads_and_voices_of_vllm_mlx(ungated, tmp_path):
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
    refused(speaker.generate, "a", voice=str(file))
    refused(speaker.stream_generate, "a", str(file))
    file.write_bytes(PLAYLIST)
    refused(listener.transcribe, str(file))


def test_mlx_vlm_loads_what_mlx_openai_server_wrote(ungated, tmp_path):
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
            refused(asyncio.run, ask(source))
    assert not web.asked
    assert not manager.failures
