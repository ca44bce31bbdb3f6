"""Continues a prompt of LongCat Flash Ngram, embedded separately and by the whole model."""

from collections.abc import Iterator
from typing import Any

from ....lab import EXACT
from ....lab.offline import shell
from ....probes.kit import Result, Target, measure_distance, mx, tiny_of

PROMPT = (5, 9, 2, 7, 3)
ANSWER = (8, 4, 6, 1)


def probe(target: Target) -> Result:
    """Red if the logits of the answer differ from those of the whole text in one call."""
    model = tiny_of(target)
    whole, text = shell(model), mx.array([[*PROMPT, *ANSWER]])
    expected = model.call(text, model.make_cache())[:, len(PROMPT) :]
    for by_whole in (False, True):
        logits = mx.concatenate(list(decode_answer(model, whole, by_whole)), axis=1)
        difference = measure_distance(logits, expected)
        if not difference <= EXACT.logits:
            caller = "the whole model" if by_whole else "the language model"
            return Result(
                True, f"{caller} differs by {difference:.2g} of the logits' scale", difference
            )
    return Result(False, "equals the whole text in one call")


def decode_answer(model: Any, whole: Any, by_whole: bool) -> Iterator[Any]:
    """The logits (1, 1, vocabulary) after each token of the answer.

    With ``by_whole`` they are those of the whole model, which some hosts call.
    """
    prompt, cache = mx.array([PROMPT]), model.make_cache()
    if by_whole:
        whole(prompt, cache=cache)
    else:
        embeddings = whole.get_input_embeddings(prompt).inputs_embeds
        whole.language_model(prompt, inputs_embeds=embeddings, cache=cache)
    for token in ANSWER:
        ids = mx.array([[token]])
        out = whole(ids, cache=cache) if by_whole else whole.language_model(ids, cache=cache)
        yield out.logits
