import pytest

from mlx_patches.patches.models.several_sounds.patch import count_as_one, has_several_sounds


class Gemma4Processor:
    pass


class Gemma4UnifiedProcessor(Gemma4Processor):
    pass


class NemotronHNanoOmniProcessor:
    pass


class InklingProcessor:
    pass


class OtherProcessor:
    pass


def test_list_is_not_cut():
    sounds = count_as_one(["one", "two"])
    assert not len(sounds) > 1
    assert [*sounds] == ["one", "two"]
    assert not count_as_one([])


@pytest.mark.parametrize(
    "kind, audio, expected",
    [
        (Gemma4Processor, ["one", "two"], True),
        (Gemma4UnifiedProcessor, ["one", "two"], True),
        (NemotronHNanoOmniProcessor, ["one", "two"], True),
        (InklingProcessor, ["one", "two"], True),
        (OtherProcessor, ["one", "two"], False),
        (Gemma4Processor, ["one"], False),
        (Gemma4Processor, "one", False),
        (Gemma4Processor, None, False),
    ],
)
def test_only_known_processors_get_several_sounds(kind, audio, expected):
    assert has_several_sounds(kind(), audio) is expected
