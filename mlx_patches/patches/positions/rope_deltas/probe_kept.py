"""Feeds a row with an image and a text in turn, then a batch between a text's two chunks."""

from typing import Any

from ....lab import EXACT, engine
from ....probes.kit import Result, Target, measure_distance, mx, tiny_of
from ..._shared.row_calls import accepts_deltas
from .kept_deltas import KEPT

# The rope delta of the row with the image: its positions are that far behind its tokens.
DELTA = -3
PROMPT = (5, 9, 2, 7, 3, 11)
OTHER = (8, 4, 13, 6, 10, 1)
STEPS = (12, 3, 8)


def probe(target: Target) -> Result:
    """Red if rows use the deltas that another request left on the model."""
    model = tiny_of(target)
    if not (hasattr(model.module, KEPT) and accepts_deltas(type(model.module).__call__)):
        return Result(False, "the release's model accepts no rope deltas")
    for row, distance in zip(("the image's row", "the text"), decode_in_turn(model), strict=True):
        if not distance <= EXACT.logits:
            return Result(True, f"{row} differs by {distance:.2g} of the logits' scale", distance)
    left = count_left(model)
    if left not in (0, 1):
        return Result(True, f"a prompt of one row leaves the deltas of {left} on the model")
    return Result(False, "each row has its own delta", 0.0)


def decode_in_turn(model: Any) -> list[float]:
    """Each row's distance from its solo run, relative to the logits, if both take turns."""
    texts = {PROMPT: {"rope_deltas": mx.array([[DELTA]])}, OTHER: {}}
    solo = []
    for prompt, deltas in texts.items():
        engine.forget(model)
        solo.append(feed_rows(model, [prompt], [deltas], pass_on=True)[0])
    engine.forget(model)
    logits = feed_rows(model, list(texts), list(texts.values()))
    return [measure_distance(one, own) for one, own in zip(logits, solo, strict=True)]


def feed_rows(
    model: Any,
    prompts: list[tuple[int, ...]],
    arguments: list[dict[str, Any]],
    pass_on: bool = False,
) -> list[Any]:
    """Each row's logits; the rows have separate caches and are fed one token each in turn.

    ``pass_on`` passes the arguments in decode steps too; a host that decodes one row passes none.
    """
    caches = [model.make_cache() for _ in prompts]
    logits: list[list[Any]] = [[] for _ in prompts]
    for row, (prompt, own) in enumerate(zip(prompts, arguments, strict=True)):
        logits[row].append(model.call([list(prompt)], caches[row], **own)[:, -1])
    for token in STEPS:
        for row, (cache, own) in enumerate(zip(caches, arguments, strict=True)):
            step = own if pass_on else {}
            logits[row].append(model.call([[token]], cache, **step)[:, -1])
    return [mx.concatenate(row) for row in logits]


def count_left(model: Any) -> int:
    """The number of rows whose deltas are on the model after the prompt of one, 0 for none.

    A batch of two rows comes between its chunks. An engine reads the row's delta from the model.
    """
    engine.forget(model)
    cache, own = engine.batch_cache(model, [0, 0]), engine.batch_cache(model, [0])
    model.call([list(PROMPT[:-1])], own)
    model.call([list(PROMPT), list(OTHER)], cache)
    model.call([[token] for token in STEPS[:2]], cache, rope_deltas=mx.zeros((2, 1), mx.int32))
    model.call([list(PROMPT[-1:])], own)
    deltas = getattr(model.module, KEPT)
    return 0 if deltas is None else int(deltas.size)
