"""Decodes speculatively with toy models that have more, or fewer, caches than layers."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx

_VOCABULARY = 32
_LAYERS = 2
_TOKENS = 8
_PROMPT = [5, 9, 2]


def probe(target: Target) -> Result:
    """Red if the tokens differ from those of the model without a draft model."""
    module = module_of(target)
    wanted: list[int] = []
    for _ in range(_TOKENS):  # each is the sum of all before it
        wanted.append(sum([*_PROMPT, *wanted]) % _VOCABULARY)
    for count in (_LAYERS - 1, _LAYERS, _LAYERS + 1):
        # The draft model is wrong at every second position.
        model, draft = Toy(count), Toy(1, wrong_every=2)
        steps = getattr(module, target.name)(
            mx.array(_PROMPT),
            model,
            draft,
            prompt_cache=[*model.make_cache(), *draft.make_cache()],
            max_tokens=_TOKENS,
        )
        try:
            tokens = [int(step[0]) for step in steps]
        except Exception as error:
            return Result(True, f"{count} caches: {type(error).__name__}: {error}")
        if tokens != wanted:
            return Result(True, f"{count} caches: {tokens}, not {wanted}")
    return Result(False, "each model has its own caches")


class Toy:
    """A model that adds up the tokens in its caches; wrong at multiples of ``wrong_every``."""

    def __init__(self, count: int, wrong_every: int = 0):
        self.layers = [None] * _LAYERS
        self.count, self.wrong_every = count, wrong_every

    def make_cache(self) -> list[Any]:
        caches: Any = import_module("mlx_lm.models.cache")
        return [caches.KVCache() for _ in range(self.count)]

    def __call__(self, tokens: Any, cache: Sequence[Any]) -> Any:
        assert len(cache) == self.count, f"{len(cache)} caches for a model of {self.count}"
        before = cache[0].offset
        keys = tokens[:, None, :, None].astype(mx.float32)
        held = [layer.update_and_fetch(keys, keys)[0].reshape(-1) for layer in cache]
        sums = mx.cumsum(held[-1])[before:]
        places = mx.arange(before, before + tokens.shape[1])
        off = (places % self.wrong_every == 0) if self.wrong_every else mx.zeros_like(places)
        chosen = (sums + off).astype(mx.int32) % _VOCABULARY
        return mx.where(mx.arange(_VOCABULARY) == chosen[:, None], 9.0, 0.0)[None]
