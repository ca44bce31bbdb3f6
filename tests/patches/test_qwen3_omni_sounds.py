import pytest

from mlx_patches.patches.models.qwen3_omni_sounds.patch import (
    GIVEN,
    READ,
    reads_samples,
    rename_mask,
)


class Qwen3OmniMoeProcessor:
    pass


class Gemma4Processor:
    pass


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({GIVEN: 1}, {READ: 1}),
        ({GIVEN: 1, READ: None}, {READ: 1}),
        ({GIVEN: 1, READ: 2}, {GIVEN: 1, READ: 2}),
        ({READ: 2}, {READ: 2}),
        ({}, {}),
    ],
)
def test_model_gets_the_mask_under_its_name(inputs, expected):
    assert rename_mask(lambda model, **read: read, None, **inputs) == expected


@pytest.mark.parametrize(
    ("kind", "audio", "expected"),
    [
        (Qwen3OmniMoeProcessor, ["a.wav"], True),
        (Qwen3OmniMoeProcessor, [], False),
        (Qwen3OmniMoeProcessor, None, False),
        (Gemma4Processor, ["a.wav"], False),
    ],
)
def test_only_sounds_of_qwen_omni_are_loaded(kind, audio, expected):
    assert reads_samples(kind(), audio) is expected
