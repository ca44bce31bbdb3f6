import pytest

from mlx_patches.patches.vllm_mlx.vllm_gemma4_reasoning import patch as gemma4_reasoning

ANSWERS = {
    "plain": (None, "plain"),
    "<|channel>thought\nA\n<channel|>B": ("A", "B"),
    "<|channel>thought\nA<|channel>response\nB": ("A", "B"),
    "thought A<channel|>B": ("A", "B"),
    "<|channel>thought\nA": ("A", None),
    "<|channel>thought\nA<channel|>B<|channel>thought\nC<channel|>D": ("AC", "BD"),
    "<|channel>Hm<channel|>B": ("Hm", "B"),
    "thoughtful": (None, "thoughtful"),
}


@pytest.mark.parametrize(("answer", "meant"), ANSWERS.items())
def test_thought_and_answer_are_split(answer, meant):
    assert gemma4_reasoning.parse_answer(answer) == meant


@pytest.mark.parametrize("answer", [a for a in ANSWERS if not a.startswith("thought A")])
def test_longer_text_only_adds(answer):
    # A marker is one token, so it always arrives whole.
    chunks = [p for part in split_markers(answer) for p in ([part] if part[:1] == "<" else part)]
    text, before = "", ("", "")
    for chunk in chunks:
        text += chunk
        now = gemma4_reasoning.split_channels(text)
        assert all(new.startswith(old) for old, new in zip(before, now, strict=True)), text
        before = now
    reasoning, content = (part.strip() or None for part in before)
    assert (reasoning, content) == gemma4_reasoning.parse_answer(answer)


def split_markers(text):
    for marker in (gemma4_reasoning.START, gemma4_reasoning.END):
        text = text.replace(marker, f"\0{marker}\0")
    return [chunk for chunk in text.split("\0") if chunk]
