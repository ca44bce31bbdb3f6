"""Feeds the release's batch generator prompts with and without images, in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import BATCH_PATCHES, with_patches

_LAYERS = 2
_TOKENS = 3
_PIECE = 4
_FAMILY = "qwen3_vl"
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "rope-deltas")


def probe(target: Target) -> Result:
    """Red where a row's logits differ from those of its prompt fed alone in one call."""
    from ....lab import EXACT, engine
    from ....lab.compare import compare_generated

    in_model = target.module.startswith("mlx_vlm.models.")
    model = tiny("mlx-vlm", target.module.split(".")[2] if in_model else _FAMILY)
    if not engine.own_positions(model):
        raise NotApplicable("the release passes no image positions to its generator")
    prompts = prompts_of(model)
    with with_patches(_OTHERS):
        arguments = [embedded(model, tokens, grid) for tokens, grid in prompts]
        expected = [
            alone(model, tokens, own) for (tokens, _), own in zip(prompts, arguments, strict=True)
        ]
        said = generate_together(model, [list(tokens) for tokens, _ in prompts], arguments)
        cell = compare_generated(said, expected, EXACT)
    return Result(cell.verdict == "red", cell.detail, cell.figure)


def prompts_of(model: Any) -> list[tuple[Sequence[int], Any]]:
    """Token ids and image grids of three prompts; the second has no image."""
    from ....lab import engine
    from ....lab.rows import rows_of

    first, text, last = (list(row.text[: row.chunks[0]]) for row in rows_of(model, (11, 8, 10)))
    images = [engine.with_image(model, first, (2, 2)), engine.with_image(model, last, (3, 2))]
    (one, other) = ((image.tokens, image.grid) for image in images)
    return [one, (text, None), other]


def embedded(model: Any, tokens: Any, grid: Any) -> dict[str, Any]:
    """The keyword arguments that embedding a prompt returns, except the embeddings."""
    import mlx.core as mx

    own = dict(zip(("position_ids", "rope_deltas"), index(model, tokens, grid), strict=True))
    if grid is None:
        return own
    mask = mx.array([[token == max(tokens, key=tokens.count) for token in tokens]])
    shape = (int(mask.sum().item()), model.module.args.hidden_size)
    features = [mx.random.normal(shape, key=mx.random.key(layer)) for layer in range(_LAYERS)]
    return {**own, "visual_pos_masks": mask, "deepstack_visual_embeds": features}


def index(model: Any, tokens: Any, grid: Any) -> tuple[Any, Any]:
    """A prompt's positions, and its rope delta (1, 1)."""
    import mlx.core as mx

    positions, deltas, *_ = model.module.get_rope_index(mx.array([tokens]), grid)
    return positions, mx.array(deltas).reshape(1, 1)


def alone(model: Any, tokens: Any, arguments: dict[str, Any]) -> list[Any]:
    """The logits of ``_TOKENS`` greedy tokens of one row; its prompt is fed in one call."""
    import mlx.core as mx

    from ....lab import engine

    engine.forget(model)
    cache = model.make_cache()
    said = [model.call([list(tokens)], cache, **arguments)[0, -1]]
    while len(said) < _TOKENS:
        token = int(mx.argmax(said[-1]).item())
        deltas = arguments["rope_deltas"]
        said.append(model.call([[token]], cache, rope_deltas=deltas)[0, -1])
    return said


def generate_together(model: Any, prompts: list[list[int]], arguments: list[dict[str, Any]]) -> Any:
    """The rows' tokens and logits in the generator, their prompts fed in chunks."""
    from ....lab import engine, generators

    engine.forget(model)
    generator = generators.make_generator(model, _TOKENS, prefill_step_size=_PIECE)
    return generators.collect_tokens(generator, generator.add(prompts, arguments), _TOKENS)
