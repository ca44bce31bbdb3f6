import base64

import pytest

from mlx_patches.patches.models.encoded_sounds.patch import decode, is_empty, is_encoded

CONTENT = bytes(range(256))
TEXT = base64.b64encode(CONTENT).decode()


@pytest.mark.parametrize("text", [TEXT, f"data:audio/wav;base64,{TEXT}", f"data:;base64,{TEXT}"])
def test_content_is_decoded(text):
    assert is_encoded(text)
    assert decode(text).read() == CONTENT


@pytest.mark.parametrize(
    "text", ["x" * 63 + ".wav", "é" * 64, f"data:audio/wav;base64,{TEXT}!", f"{TEXT}-"]
)
def test_other_text_is_unchanged(text):
    assert decode(text) == text


def test_file_with_a_long_name_is_read(tmp_path):
    path = tmp_path / ("a" * 200)
    path.write_bytes(CONTENT)
    assert not is_encoded(str(path))


@pytest.mark.parametrize(
    "file", [CONTENT, None, "sound.wav", "https://example.org/" + "a" * 64, "http://a/" + "a" * 64]
)
def test_other_sources_are_unchanged(file):
    assert not is_encoded(file)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 70 + "\0", "a" * 100_000])
def test_names_that_no_file_has_are_encoded(name):
    assert is_encoded(name)


@pytest.mark.parametrize(
    ("images", "audio", "expected"),
    [([], ["a"], True), ([], [], False), (["a"], ["a"], False), (None, ["a"], False)],
)
def test_only_an_empty_list_beside_sounds_is_omitted(images, audio, expected):
    assert is_empty(images, audio) is expected
