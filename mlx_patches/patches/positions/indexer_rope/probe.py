"""Selects tokens with a tiny indexer, and scores the selection by the model's formula."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_with, mx

_LENGTH, _WIDTH, _HEADS, _HEAD, _ROTATED, _KEPT, _BASE = 48, 32, 4, 16, 8, 6, 10000.0
# The loss that rounding may cause, relative to the best score.
TOLERANCE = 1e-4


def probe(target: Target) -> Result:
    """Red if the selected tokens have lower scores than the best ones."""
    indexer = make(module_with(target), "deepseek_v32")
    worst = float(measure_loss(indexer, rotate_halves).item())
    return Result(
        not worst <= TOLERANCE, f"the selection loses {worst:.2g} of the best score", worst
    )


def make(module: Any, model_type: str) -> Any:
    mx.random.seed(0)
    return module.Indexer(
        SimpleNamespace(
            model_type=model_type,
            hidden_size=_WIDTH,
            index_n_heads=_HEADS,
            index_head_dim=_HEAD,
            qk_rope_head_dim=_ROTATED,
            index_topk=_KEPT,
            q_lora_rank=_WIDTH,
            rope_theta=_BASE,
            max_position_embeddings=4 * _LENGTH,
            rope_scaling=None,
            indexer_rope_interleave=model_type != "deepseek_v32",
        )
    )


def measure_loss(indexer: Any, rotate: Any) -> Any:
    """The largest loss of score by any token's selection, relative to the best score."""
    x, latent = (mx.random.normal((1, _LENGTH, _WIDTH), key=mx.random.key(k)) for k in (1, 2))
    mask = mx.tril(mx.ones((_LENGTH, _LENGTH), dtype=mx.bool_))
    chosen = indexer(x, latent, mask).reshape(1, 1, _LENGTH, _KEPT)
    queries = (latent @ indexer.wq_b.weight.T).reshape(1, _LENGTH, _HEADS, _HEAD)
    queries = rotate(queries.swapaxes(1, 2))
    keys = rotate(indexer.k_norm(x @ indexer.wk.weight.T)[:, None])
    scores = mx.maximum(queries @ keys.swapaxes(-1, -2), 0)
    weights = (x @ indexer.weights_proj.weight.T).swapaxes(-1, -2)[..., None]
    scores = (scores * weights).sum(axis=1, keepdims=True)
    scores = mx.where(mask, scores, -1e3)[:, :, _KEPT:]
    got = mx.take_along_axis(scores, chosen[:, :, _KEPT:], axis=-1).sum(axis=-1)
    best = mx.sort(scores, axis=-1)[..., -_KEPT:].sum(axis=-1)
    return ((best - got) / mx.abs(best).max()).max()


def rotate_halves(x: Any) -> Any:
    """Rotate ``x`` to its positions, pairing each dimension of the first half with the second."""
    half = _ROTATED // 2
    first, second, rest = x[..., :half], x[..., half:_ROTATED], x[..., _ROTATED:]
    angles = mx.arange(x.shape[2])[:, None] * _BASE ** (-mx.arange(half) / half)
    cos, sin = mx.cos(angles), mx.sin(angles)
    rotated = (first * cos - second * sin, first * sin + second * cos, rest)
    return mx.concatenate(rotated, axis=-1)
