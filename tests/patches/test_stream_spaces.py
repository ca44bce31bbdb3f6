import importlib

import pytest

from mlx_patches.patches.generation.stream_spaces.probe import Tokenizer, stream

from ..releases.conftest import is_installed

if not is_installed("mlx-lm"):
    pytest.skip("no mlx-lm, whose detokenizer this is", allow_module_level=True)
utils = importlib.import_module("mlx_lm.tokenizer_utils")
TEXTS = ("x != y, a . b", "if (a ,b) { c ?.d }", "a .", ". .", "x  ,y", "a,b", "!", "a !b")


@pytest.fixture
def patched(ungated):
    ungated("stream-spaces")


@pytest.mark.parametrize("text", TEXTS)
def test_spaces_are_streamed(text, patched):
    assert stream(utils.BPEStreamingDetokenizer, Tokenizer(), text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_cleaning_tokenizer_is_unchanged(text, ungated):
    def read_stream():
        return stream(utils.BPEStreamingDetokenizer, Tokenizer(cleaning=True), text)

    before = read_stream()
    ungated("stream-spaces")
    assert read_stream() == before


def test_other_tokenizer_is_not_tried(patched):
    class Plain(Tokenizer):
        clean_up_tokenization_spaces = False

        def encode(self, text, add_special_tokens=True):
            raise AssertionError("tried")

    detokenizer = utils.BPEStreamingDetokenizer(Plain())
    for token in Tokenizer().encode("a ,b"):
        detokenizer.add_token(token)
    detokenizer.finalize()
    assert detokenizer.text == "a ,b"
