"""Merges rows that keep their first tokens, and decodes past each row's window."""

import inspect
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    feed_one_by_one,
    import_module,
    make_fed_cache,
    module_of,
    module_with,
    mx,
    own_class_of,
    require_names,
)

WINDOW, KEEP = 8, 2
_LENGTHS = (3, 8, 13)
_STEPS = 2 * WINDOW
_VOCABULARY = 64


def probe(target: Target) -> Result:
    """Red if a row attends to other tokens than in a solo run."""
    if target.module == "mlx_lm.generate":
        return probe_generator(target)
    caches = module_of(target)
    kind = own_class_of(target)
    require_names(kind, "merge")
    for feed in (feed_one_by_one, make_fed_cache):
        rows, joining = (
            [feed(caches.RotatingKVCache(max_size=WINDOW, keep=KEEP), n) for n in _LENGTHS]
            for _ in range(2)
        )
        batch = kind.merge(joining)
        for step in range(1, _STEPS):
            new = mx.array([length + step for length in _LENGTHS])[:, None, None, None]
            mask = batch.make_mask(1)
            held = batch.update_and_fetch(new * 1.0, new * 1.0)[0]
            for number, row in enumerate(rows):
                token = new[number : number + 1] * 1.0
                wanted = sorted(row.update_and_fetch(token, token)[0].reshape(-1).tolist())
                keys, on = held[number].reshape(-1).tolist(), mask[number].reshape(-1).tolist()
                seen = sorted(key for key, attended in zip(keys, on, strict=True) if attended)
                if seen != wanted:
                    return Result(True, f"{_LENGTHS[number]}+{step} tokens: {seen}, not {wanted}")
    return Result(False, "each row sees its first and its newest tokens")


def probe_generator(target: Target) -> Result:
    """Red if a row of the batch generator attends to other tokens than in a solo run."""
    generate = module_with(target)
    generator = generate.BatchGenerator
    if "max_kv_size" not in inspect.signature(generator).parameters:
        return Result(False, "the release's batch generator has no max_kv_size: nothing is dropped")
    make = import_module("mlx_lm.models.cache").make_prompt_cache
    if target.name == "_make_cache" and hasattr(generator, "_make_new_cache"):
        # The generator does not call it; hosts may.
        keep = getattr(generate._make_cache(_TokenRecorder(), [0], WINDOW)[0], "keep", 0)
        wanted = make(_TokenRecorder(), WINDOW)[0].keep
        return Result(keep != wanted, f"{keep} first tokens are kept, {wanted} in a solo run")
    model = _TokenRecorder()
    prompts = [list(range(1, length + 1)) for length in _LENGTHS]
    solo = [model.run_solo(prompt, make(model, WINDOW)) for prompt in prompts]
    model.steps.clear()
    batch = generator(model, max_tokens=_STEPS, max_kv_size=WINDOW)
    batch.insert(prompts)
    # A generator computes a step ahead, but not the last one.
    while len(model.steps) < _STEPS - 2:
        batch.next()
    for number, wanted in enumerate(solo):
        for step in model.steps:
            newest = step[number][-1]
            if step[number] != wanted[newest]:
                return Result(True, f"{newest} tokens: {step[number]}, not {wanted[newest]}")
    return Result(False, "each row sees its first and its newest tokens")


class _TokenRecorder:
    """A model that predicts the token after the last one.

    ``steps`` records the tokens that each row attended to, sorted, per decode step.
    """

    layers = (None,)

    def __init__(self) -> None:
        self.steps: list[list[list[int]]] = []

    def __call__(self, tokens: Any, cache: Any = None, **kwargs: Any) -> Any:
        new = tokens[:, None, :, None].astype(mx.float32)
        mask = cache[0].make_mask(tokens.shape[1])
        held = cache[0].update_and_fetch(new, new)[0][:, 0, :, 0]
        if tokens.shape[1] == 1:
            on = mx.ones_like(held) if mask is None else mask.reshape(-1, held.shape[1])
            rows = zip(held.tolist(), mx.broadcast_to(on, held.shape).tolist(), strict=True)
            self.steps.append(
                [
                    sorted(int(key) for key, attended in zip(*row, strict=True) if attended)
                    for row in rows
                ]
            )
        return mx.eye(_VOCABULARY)[(tokens + 1) % _VOCABULARY] * 10.0

    def run_solo(self, prompt: list[int], cache: list[Any]) -> dict[int, list[int]]:
        """For each token of a solo run, the tokens that its decode step attends to."""
        self.steps.clear()
        self(mx.array([prompt[:-1]]), cache=cache)
        for token in range(prompt[-1], prompt[-1] + _STEPS + 2):
            self(mx.array([[token]]), cache=cache)
        return {row[-1]: row for (row,) in self.steps}
