"""Applies top_p to many improbable tokens, in bfloat16 and in float16."""

from typing import Any

from ....probes.kit import Result, Target, mx, require

_TOKENS = 12_918
_NUCLEI = (0.5, 0.95)
# Tolerances in probability. A release may keep all tokens that are as likely as the last one.
_TOO_LITTLE, _TOO_MUCH = 0.01, 0.02
_DRAWS = 100


def probe(target: Target) -> Result:
    """Red if the nucleus is too small or too large."""
    function = require(target)
    return _check_drawn(function) if target.name == "top_p_sampling" else _check_kept(function)


def _check_kept(apply_top_p: Any) -> Result:
    logits = _logits()
    for dtype in (mx.bfloat16, mx.float16):
        rounded = logits.astype(dtype)
        logprobs = rounded - mx.logsumexp(rounded, axis=-1, keepdims=True)
        probabilities = mx.softmax(logprobs.astype(mx.float32), axis=-1)
        for nucleus in _NUCLEI:
            kept = apply_top_p(logprobs, nucleus) > -mx.inf
            share = mx.where(kept, probabilities, 0).sum().item()
            if not -_TOO_LITTLE <= share - nucleus <= _TOO_MUCH:
                return Result(
                    True,
                    f"top_p={nucleus} keeps {kept.sum().item()} of {_TOKENS} {_name(dtype)} "
                    f"tokens, {share:.0%} of the probability",
                    figure=share,
                )
    return Result(False, "the nucleus has the requested probability")


def _check_drawn(top_p_sampling: Any) -> Result:
    mx.random.seed(0)
    logits = _logits()
    for dtype in (mx.bfloat16, mx.float16):
        probabilities = mx.softmax(logits.astype(dtype).astype(mx.float32), axis=-1)[0]
        order = mx.argsort(-probabilities)
        ranks = mx.argsort(order).tolist()
        size = (mx.cumsum(probabilities[order]) < _NUCLEI[0]).sum().item()
        drawn = [
            mx.array(top_p_sampling(logits.astype(dtype), _NUCLEI[0], 1.0)).item()
            for _ in range(_DRAWS)
        ]
        last = max(ranks[token] for token in drawn)
        if not size / 2 < last < size * 1.2:
            return Result(
                True,
                f"top_p={_NUCLEI[0]} draws rank {last} in {_name(dtype)}; the nucleus has {size}",
                figure=last,
            )
    return Result(False, "all draws are from the nucleus")


def _logits() -> Any:
    return 2 * mx.random.normal((1, _TOKENS), key=mx.random.key(0))


def _name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]
