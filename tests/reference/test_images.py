"""``lab --reference`` for images: planted faults turn the stages red that they belong to."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_patches.evidence.words import GREEN, RED
from mlx_patches.lab import Family
from mlx_patches.lab.images import heard, published, scenario

ENTRY, LISTENER = "qwen2_vl", "qwen3_omni_moe"
# Not imported here: torch has to be hidden before.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mlx_vlm") is None, reason="the release set has no mlx-vlm"
)


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(scenario.KEEP, str(tmp_path_factory.mktemp("images")))
        with scenario.compute_expected(ENTRY) as found:
            for package in scenario.WITHOUT:
                patch.setitem(sys.modules, package, None)
            yield found


@pytest.fixture
def loaded(want, ungated):
    from mlx_patches.lab.images.release import Loaded

    ungated("video-beside-image")  # no release is right with an image and a video
    return Loaded(want.folder / "published")


def stages(want, loaded):
    """Stage to its cell."""
    return dict(scenario.Compared(published.entry(ENTRY), want, loaded).cells())


def reds(found):
    return {stage for stage, cell in found.items() if cell.verdict == RED}


def wrap(monkeypatch, owner, name, change):
    """Change the result of a function or method."""
    own = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: change(own(*args, **kwargs)))


def test_release_without_fault_is_green(want, loaded):
    found = stages(want, loaded)
    assert {stage: cell.detail for stage, cell in found.items() if cell.verdict == RED} == {}
    green = {stage for stage, cell in found.items() if cell.verdict == GREEN}
    assert green >= {"ids", "pixels", "grids", "model", "request", "chunks", "batch", "video"}
    assert green >= {"generate", "stream", "server"}


def test_wrong_scale_is_of_vision_tower(want, loaded, monkeypatch):
    own = type(loaded.model.vision_tower).__mro__[1]  # the first one records
    wrap(monkeypatch, own, "__call__", lambda out: out * 1.1)
    found = stages(want, loaded)
    assert reds(found) == {"model", "request", "video"}
    assert "square: off by" in found["model"].detail
    assert "from the vision tower on" in found["model"].detail


def test_wrong_mask_is_of_language_model(want, loaded, monkeypatch):
    language = importlib.import_module("mlx_vlm.models.qwen2_vl.language")
    own = language.create_attention_mask
    monkeypatch.setattr(  # a text has fewer tokens than an image
        language,
        "create_attention_mask",
        lambda h, *args, **kwargs: None if h.shape[1] > 40 else own(h, *args, **kwargs),
    )
    found = stages(want, loaded)
    assert {"model", "request"} <= reds(found)
    assert "in the language model" in found["model"].detail


def test_missing_token_is_of_ids(want, loaded, monkeypatch):
    def shorten(inputs):
        ids = inputs["input_ids"]
        return {**inputs, "input_ids": ids[:, 1:], "attention_mask": None}

    wrap(monkeypatch, loaded, "inputs", shorten)
    found = stages(want, loaded)
    assert "ids" in reds(found) and "request" in reds(found) and "model" not in reds(found)
    assert "tokens" in found["ids"].detail


@pytest.mark.parametrize(
    ("field", "value"),
    [("image_mean", [0.5, 0.5, 0.5]), ("image_std", [0.5, 0.5, 0.5]), ("bilinear", 2)],
)
def test_wrong_preprocessing_is_of_pixels(want, loaded, monkeypatch, field, value):
    if field == "bilinear":
        image = importlib.import_module("PIL.Image").Image
        resize = image.resize
        monkeypatch.setattr(image, "resize", lambda self, size, *_, **__: resize(self, size, value))
    else:
        assert hasattr(loaded.processor.image_processor, field)
        monkeypatch.setattr(loaded.processor.image_processor, field, value)
    found = reds(stages(want, loaded))
    assert {"pixels", "request"} <= found and "model" not in found


def test_pixels_of_default_backend_are_equal(want, loaded, monkeypatch):
    own, case = loaded.inputs, "wide"
    default = want.get(case, "default/pixel_values")

    def process(prompt, images, **videos):
        found = own(prompt, images, **videos)
        other = any(case in image for image in images)
        return {**found, **({"pixel_values": mx.array(default)} if other else {})}

    mx = importlib.import_module("mlx.core")
    monkeypatch.setattr(loaded, "inputs", process)
    found = stages(want, loaded)
    assert reds(found) == set() and "torchvision" in found["pixels"].detail
    assert found["request"].figure > scenario.EQUAL


def test_each_value_may_be_that_of_either_backend():
    np = importlib.import_module("numpy")
    own, want, default = np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.array([0.0, 2.1])
    assert scenario.nearest(own, want, default).tolist() == [1.0, 2.1]
    assert scenario.nearest(own, want, default[:1]).tolist() == [0.0]


def test_swapped_axes_are_of_pixels(want, loaded, monkeypatch):
    def swap(image):
        return image.transpose(0)  # left to right

    utils = importlib.import_module("mlx_vlm.utils")
    wrap(monkeypatch, utils, "process_image", swap)
    assert {"pixels", "request"} <= reds(stages(want, loaded))


def test_swapped_rows_are_of_batch(want, loaded, monkeypatch):
    own = loaded.batch
    monkeypatch.setattr(
        loaded, "batch", lambda prompts, images, sampler: own(prompts, images[::-1], sampler)
    )
    found = stages(want, loaded)
    assert reds(found) == {"batch"} and "swapped" in found["batch"].detail


def test_dropped_image_is_of_stream(want, loaded, monkeypatch):
    package = importlib.import_module("mlx_vlm")
    own = package.stream_generate
    monkeypatch.setattr(
        package,
        "stream_generate",
        lambda model, processor, prompt, image, **options: own(model, processor, "?", **options),
    )
    assert reds(stages(want, loaded)) == {"stream"}


def test_swapped_frames_are_of_video(want, loaded, monkeypatch):
    own = loaded.inputs

    def swap(prompt, images, sounds=(), videos=(), fps=0.0):
        return own(prompt, images, sounds, [video[::-1] for video in videos], fps)

    monkeypatch.setattr(loaded, "inputs", swap)
    found = stages(want, loaded)
    assert reds(found) == {"video"} and "one video in chunks" in found["video"].detail


def test_swapped_axes_in_server_are_of_served(want, loaded, monkeypatch):
    utils = importlib.import_module("mlx_vlm.utils")
    own = utils.process_image

    def process(image, *args, **options):
        found = own(image, *args, **options)
        return found.transpose(0) if str(image).startswith("data:") else found

    monkeypatch.setattr(utils, "process_image", process)
    assert reds(stages(want, loaded)) == {"server"}


@pytest.fixture(scope="module")
def wanted_sounds(want, tmp_path_factory):
    """What transformers computes for a model with an audio part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(scenario.KEEP, str(tmp_path_factory.mktemp("sounds")))
        with scenario.compute_expected(LISTENER) as found:
            yield found


@pytest.fixture
def listener(wanted_sounds):
    from mlx_patches.lab.images.release import Loaded

    loaded = Loaded(wanted_sounds.folder / "published")
    return scenario.Compared(published.entry(LISTENER), wanted_sounds, loaded)


def test_sound_is_equal(listener):
    assert heard.compare_case(listener, "sound") < scenario.EQUAL
    assert heard.generate(listener, "sound") < scenario.EQUAL
    assert heard.serve(listener, "sound") == 0


def test_wrong_scale_is_of_audio_tower(listener, monkeypatch):
    own = type(listener.loaded.model.thinker.audio_tower)
    own = next(kind for kind in own.__mro__ if kind.__module__.startswith("mlx_vlm"))
    wrap(monkeypatch, own, "__call__", lambda out: out * 1.1)
    assert "from the" in heard.compare_case(listener, "sound")


def test_missing_token_is_of_sound(listener, monkeypatch):
    def shorten(inputs):
        return {**inputs, "input_ids": inputs["input_ids"][:, 1:]}

    wrap(monkeypatch, listener.loaded, "inputs", shorten)
    cell = heard.compare(listener)
    assert cell.verdict == RED and "sound: ids of 36 for 37 tokens" in cell.detail


def test_silence_in_server_is_of_sound(listener, monkeypatch):
    own, answers = listener.loaded.generate, {}

    def generate(prompt, *options):
        if prompt not in answers:
            answers[prompt] = own(prompt, *options)
        return answers[prompt]

    monkeypatch.setattr(listener.loaded, "generate", generate)
    assert heard.serve(listener, "sound") == 0
    wrap(monkeypatch, importlib.import_module("mlx_vlm.utils"), "load_audio", lambda out: out * 0)
    assert " for " in heard.serve(listener, "sound")


COLUMNS_FIRST = """
import numpy as np, torch
from PIL import Image
from torchvision.transforms.v2 import functional
from mlx_patches.lab.images import authors, pictures
image, lanczos = pictures.draw(150, 500, "RGB", 4), Image.Resampling.LANCZOS
want = np.asarray(image.resize((150, 476), lanczos).resize((140, 476), lanczos)).astype(int)
data = torch.from_numpy(np.array(image)).permute(2, 0, 1)
mode = functional.InterpolationMode.LANCZOS
plain = lambda: functional.resize(data, [476, 140], interpolation=mode, antialias=True)
for call in (authors.resize_columns_first(plain), plain):
    print(abs(call().numpy().transpose(1, 2, 0) - want).max())
"""


def test_columns_are_resized_first():
    done = subprocess.run(
        [sys.executable, "-c", COLUMNS_FIRST], capture_output=True, text=True, check=True
    )
    same, other = map(int, done.stdout.split())
    assert same <= 2 < 10 < other


def test_missing_torch_is_one_reason(tmp_path, monkeypatch):
    monkeypatch.setenv(scenario.KEEP, str(tmp_path))
    paths = filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    Path(tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    (name, cell), *_ = scenario.cells(Family("mlx-vlm", ENTRY))
    assert name == f"{scenario.NAME}:{ENTRY}" and "no torch here" in cell.detail
