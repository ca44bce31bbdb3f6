"""Feeds prompts that differ in the first token to a model of one layer with a window."""

from typing import Any

from ....core.distributions import source_file
from ....probes.kit import (
    Result,
    Target,
    config_class,
    family_of,
    import_module,
    module_of,
    mx,
    require,
    tiny_of,
)

WINDOW, PROMPT, STEPS = 4, 7, 3
TOLERANCE = 1e-5
# The family that shows what the configs keep.
_SHOWN = {"mlx-lm": "mlx_lm.models.gemma2", "mlx-vlm": "mlx_vlm.models.gemma2.language"}


def probe(target: Target) -> Result:
    """Red if a token sees beyond its window, or less than it."""
    if target.supports:
        place = target.distribution
        if not source_file(_SHOWN[place]):  # mlx-vlm has these families since 0.6.6
            place = "mlx-lm"
        target = target._replace(distribution=place, module=_SHOWN[place], name="GemmaModel")
    require(target)
    model, cache = _make(target)
    rows = mx.array([[first, *range(3, 2 + PROMPT + STEPS)] for first in (1, 2)])
    chunks = [rows[:, :PROMPT], *(rows[:, i : i + 1] for i in range(PROMPT, PROMPT + STEPS))]
    out = [model(chunk, cache=cache) for chunk in chunks]
    logits = mx.concatenate([getattr(one, "logits", one) for one in out], axis=1)
    distance = mx.abs(logits[0] - logits[1]).max(axis=-1).tolist()
    if min(distance[:WINDOW]) <= TOLERANCE:
        return Result(True, "a token does not see its window")
    worst = max(distance[WINDOW:])
    return Result(not worst <= TOLERANCE, f"a token beyond the window moves {worst:.2g}", worst)


def _make(target: Target) -> tuple[Any, list[Any]]:
    family = family_of(target)
    module = module_of(target)
    built = tiny_of(target)
    named = {"model_type": family, "sliding_window": WINDOW, "num_hidden_layers": 1}
    mx.random.seed(0)
    config = config_class(target.distribution, family).from_dict({**built.config, **named})
    model = (module.Model if target.distribution == "mlx-lm" else module.LanguageModel)(config)
    caches = import_module(f"{target.module.partition('.')[0]}.models.cache")
    return model, caches.make_prompt_cache(model)
