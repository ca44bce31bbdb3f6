"""``molmo2-inputs``: the first token of prompts, and how images are sampled."""

from types import SimpleNamespace

import pytest

from mlx_patches.patches.models.molmo2_inputs import patch


def test_each_prompt_begins_once_with_the_token():
    processor = SimpleNamespace(tokenizer=SimpleNamespace(bos_token=None, eos_token="$"))
    assert patch.begin_prompts("a", processor) == "$a"
    assert patch.begin_prompts(["a", "$b"], processor) == ["$a", "$b"]
    assert patch.begin_prompts(None, processor) is None
    processor.tokenizer.bos_token = "<s>"
    assert patch.begin_prompts("$", processor) == "<s>$"


def test_pixels_are_sampled_between_the_two_nearest():
    np = pytest.importorskip("numpy")
    image = np.zeros((1, 6, 3), dtype=np.uint8)
    image[0, :, :] = np.array([0, 0, 90, 180, 0, 60])[:, None]
    made = patch.resize(None, image, [2, 3], 2)
    assert made.dtype == np.float32 and made.shape == (2, 3, 3)
    assert np.allclose(made[:, :, 0] * 255, [[0, 135, 30]] * 2)


def test_other_filters_and_ranges_are_the_releases():
    np = pytest.importorskip("numpy")
    image = np.ones((2, 2, 3), dtype=np.uint8)
    call = lambda *args: "released"  # noqa: E731
    assert patch.resize(call, image, [1, 1], 2) == "released"
    assert patch.resize(call, image * 255, [1, 1], 3) == "released"
