"""Feeds a tiny model of the target's family two unequal prompts, with left and right padding."""

import contextlib
from typing import Any

from ....lab import engine
from ....lab.scenarios import SCENARIOS
from ....probes.kit import (
    NotApplicable,
    Result,
    Target,
    import_module,
    require_own,
    tiny_of,
    with_patches,
)
from ....probes.model_batch import (
    CHUNK,
    PROMPTS,
    TOLERANCE,
    decode_steps,
    feed_chunks,
    measure_rows,
    run_padded,
    run_solo,
)
from .patch import MASK_LEFT, MASKED
from .probe_layers import compare_states

_HISTORY = 2


def probe(target: Target) -> Result:
    """Red if a row's logits in the batch differ from those of its solo run."""
    if target.supports:
        return compare_states(target)
    require_own(target)
    model = tiny_of(target)
    family = model.family
    require_merge(target)
    try:
        run_solo(model, PROMPTS[0])
    except Exception as error:
        raise NotApplicable(f"a single request fails too: {engine.where(error)}") from None
    worst, place, fed = 0.0, "", 0
    masked = family.distribution == "mlx-lm" and family.name in MASKED
    with with_patches((*_OTHERS, "arrays-mask", "kimi-states") if masked else _OTHERS):
        for name, feed in _FEEDS.items():
            try:
                engine.forget(model)
                logits = feed(model)
            except NotApplicable:
                continue
            except Exception as error:
                return Result(True, f"{name}: {engine.where(error)}")
            fed += 1
            for row, prompt in enumerate(PROMPTS):
                distance = measure_rows(logits[row], run_solo(model, prompt))
                if not distance <= worst:
                    worst, place = distance, f"{name}, row {row}"
        if family.name in MASK_LEFT and worst <= TOLERANCE:
            # Whether these families mask padding depends on whether they get position ids.
            cell = SCENARIOS["history"](model)
            if cell.verdict == "red":
                return Result(True, f"history: {cell.detail}", cell.figure)
    if not fed:
        raise NotApplicable("this release does not batch such caches")
    if not worst <= TOLERANCE:
        return Result(True, f"{place}: differs by {worst:.2g} of the logits' scale", worst)
    return Result(False, f"largest difference {worst:.2g} of the logits' scale", worst)


# Patches for other defects of some of the families.
_OTHERS = ("offset-alias", "mask-by-offset", "rope-deltas")


def require_merge(target: Target) -> None:
    """Check that the release can merge rows that were prefilled separately."""
    package = target.module.partition(".")[0]
    names = (f"{package}.models.cache", "mlx_lm.models.cache")
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            if hasattr(getattr(import_module(name), "BatchKVCache", None), "merge"):
                return
    raise NotApplicable("the release merges no rows")


def feed_right(model: Any) -> list[list[Any]]:
    """Feed the prompts with right padding, as engines that merge new rows do."""
    return feed_rest(model, engine.empty_batch(model, len(PROMPTS)), 0)


def feed_with_history(model: Any) -> list[list[Any]]:
    """Feed the prompts with right padding after a separate history per row."""
    caches = [model.make_cache() for _ in PROMPTS]
    for prompt, cache in zip(PROMPTS, caches, strict=True):
        engine.forget(model)
        model.call([prompt[:_HISTORY]], cache)
    return feed_rest(model, engine.merge(model, caches), _HISTORY)


def feed_rest(model: Any, cache: Any, fed: int) -> list[list[Any]]:
    """Feed the rest of the prompts with right padding, then decode."""
    rests = [prompt[fed:-1] for prompt in PROMPTS]
    engine.prepare(cache, [len(rest) for rest in rests])
    longest = max(map(len, rests))
    table = [rest + [0] * (longest - len(rest)) for rest in rests]
    feed_chunks(model, cache, table, longest if fed else CHUNK)
    engine.finalize(cache)
    out = model.call([[prompt[-1]] for prompt in PROMPTS], cache)
    return decode_steps(model, cache, [[row[-1]] for row in out])


_FEEDS = {
    "left-padded": run_padded,
    "right-padded": feed_right,
    "right-padded with a history": feed_with_history,
}
