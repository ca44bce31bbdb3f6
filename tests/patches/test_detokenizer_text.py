import copy
import importlib
import random

import pytest

from mlx_patches.lab.streamed import PADDED, load_tokenizer, whole
from mlx_patches.lab.tokenizers import ADDED, KINDS, SPECIAL, TEKKEN, vocabulary, write
from mlx_patches.patches._shared.byte_letters import LETTERS
from mlx_patches.patches.generation.detokenizer_text import patch

from ..releases.conftest import is_tested

SPACE, CUT = "\u2581", "\ufffd"
# Older transformers remove spaces from its texts; another patch repairs that.
CLEANED = "cleaned byte-level"


@pytest.fixture
def load(distribution, tmp_path):
    def make(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        write(folder, KINDS[name])
        return load_tokenizer(distribution, folder)

    return make


def stream_segments(detokenizer, tokens):
    detokenizer.reset()
    segments = []
    for token in tokens:
        detokenizer.add_token(token)
        segments.append(detokenizer.last_segment)
    detokenizer.finalize()
    return [*segments, detokenizer.last_segment]


def send_texts(utils, tokenizer, tokens):
    """The texts that mlx-vlm's server sends per token and at the end; empty in other releases."""
    if not hasattr(utils, "_ServerTokenStreamer"):
        return []
    own = utils._ServerTokenStreamer(tokenizer, utils.make_streaming_detokenizer(tokenizer))
    return [*(own.advance(token, None) for token in tokens), own.finalize()]


def sequences(name, has_bytes):
    """Random tokens: words, and a few of those that are not."""
    draw = random.Random(name)
    names = vocabulary(KINDS[name])
    odd = [names.index(one) for one in (*SPECIAL, *ADDED)]
    odd += range(len(names), len(names) + PADDED)
    # A sentencepiece tokenizer with byte tokens decodes a character next to an invalid byte as
    # invalid too: no first byte of a character is drawn.
    single = [token for token, one in enumerate(names) if len(one) == 1]
    if has_bytes:
        single += [token for token, one in enumerate(names) if "<0x80>" <= one < "<0xC"]
    words = [token for token, one in enumerate(names) if len(one) > 1 and one[:3] != "<0x"]
    words = [token for token in words if token not in odd]
    start = names.index("Ġ") if "Ġ" in names else names.index(SPACE)
    for _ in range(400):
        kinds = draw.choices((words, single, odd, [start]), (6, 2, 1, 1), k=draw.randrange(9))
        yield [draw.choice(kind) for kind in kinds]


def outcome(stream, *args):
    try:
        return stream(*args)
    except (IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        return [repr(error)]


@pytest.mark.parametrize("name", [one for one in KINDS if one != CLEANED])
def test_streamed_text_equals_decoded_text(name, distribution, load, ungated):
    utils = importlib.import_module(f"{distribution.replace('-', '_')}.tokenizer_utils")
    decode = load("byte-level" if name == TEKKEN else name).decode
    # mlx-vlm up to 0.3.9 streams each byte as a letter.
    has_bytes = distribution == "mlx-lm" or hasattr(utils.SPMStreamingDetokenizer, "_flush_bytes")
    every = list(sequences(name, has_bytes))
    released = load(name)
    before = [
        (
            outcome(stream_segments, released.detokenizer, one),
            outcome(send_texts, utils, released, one),
        )
        for one in every
    ]
    ungated("detokenizer-text")
    patched = load(name)
    same = 0
    for tokens, old in zip(every, before, strict=True):
        wanted = whole(decode(tokens))
        ways = stream_segments(patched.detokenizer, tokens), send_texts(utils, patched, tokens)
        for now, then in zip(ways, old, strict=True):
            # mlx-vlm ends a text without a replacement character for invalid bytes.
            if now and distribution == "mlx-vlm":
                assert "".join(now).replace(CUT, "") == wanted.replace(CUT, ""), tokens
            elif now:
                assert whole("".join(now)) == wanted, tokens
            if whole("".join(then)) == wanted:
                assert now == then, tokens
                same += 1
    assert same > 50 or name == TEKKEN


def test_reset_and_copy(distribution, load, ungated):
    ungated("detokenizer-text")
    name = "sentencepiece"
    tokenizer, names = load(name), vocabulary(KINDS[name])
    tokens = [names.index(one) for one in (SPACE, f"{SPACE}it", f"{SPACE}is")]
    detokenizer = tokenizer.detokenizer
    for _ in range(2):
        assert "".join(stream_segments(detokenizer, tokens)) == " it is"
        assert "".join(stream_segments(detokenizer, tokens[1:])) == "it is"
    other = copy.copy(detokenizer)
    assert "".join(stream_segments(other, tokens)) == " it is"


def test_skipped_token_keeps_space(distribution, load, ungated):
    if distribution == "mlx-lm":
        pytest.skip("its detokenizers skip no tokens")
    ungated("detokenizer-text")
    name = "sentencepiece"
    names = vocabulary(KINDS[name])
    space, word = names.index(SPACE), names.index(f"{SPACE}it")
    detokenizer = load(name).detokenizer
    detokenizer.reset()
    for token, skipped in ((space, []), (word, [word]), (word, [])):
        detokenizer.add_token(token, skip_special_token_ids=skipped)
    detokenizer.finalize()
    assert detokenizer.text == " it"


def test_byte_level_vocabulary(distribution, load, ungated):
    def choose_kinds():
        return {name: type(load(name).detokenizer).__name__[:3] for name in KINDS}

    before = choose_kinds()
    ungated("detokenizer-text")
    assert (before["sentencepiece"], before[TEKKEN]) == ("SPM", "SPM")
    assert choose_kinds() == {**before, TEKKEN: "BPE"}


@pytest.mark.parametrize(
    ("text", "wanted"), [(" it", " it"), ("  it", "  it"), (" , it", ", it"), ("it .", "it.")]
)
def test_cleaning_removes_only_punctuation_space(text, wanted, ungated):
    if not is_tested("mlx-lm"):
        pytest.skip("the detokenizer of mlx-lm")
    kind = importlib.import_module("mlx_lm.tokenizer_utils").BPEStreamingDetokenizer
    probe = pytest.importorskip("mlx_patches.patches.generation.stream_spaces.probe")
    ungated("detokenizer-text")
    cleans = hasattr(kind(probe.Tokenizer()), "clean_spaces")  # none from mlx-lm 0.32 on
    assert probe.stream(kind, probe.Tokenizer(cleaning=True), text) == (wanted if cleans else text)


def test_sentencepiece_is_not_byte_level():
    class Vocabulary:
        unk_token_id = 0

        def __init__(self, *names):
            self.names = ("<unk>", *names)

        def convert_tokens_to_ids(self, names):
            return [self.names.index(one) if one in self.names else 0 for one in names]

    letters = ("Ġ", "Ċ")
    assert patch.is_byte_level(Vocabulary(*letters))
    assert not patch.is_byte_level(Vocabulary(*letters, SPACE))
    assert not patch.is_byte_level(Vocabulary(*letters, "<0x0A>"))
    assert not patch.is_byte_level(Vocabulary("Ġ"))


def test_a_stand_in_with_a_vocabulary_alone_is_not_byte_level():
    """mlx-vlm's own tests use one."""
    stand_in = type("Vocabulary", (), {"vocab": {"Ġ": 0, "Ċ": 1}})
    assert not patch.is_byte_level(stand_in())


def test_every_byte_has_a_letter():
    assert len(set(LETTERS)) == 256
    assert [LETTERS[ord(one)] for one in " \n~"] == ["Ġ", "Ċ", "~"]
