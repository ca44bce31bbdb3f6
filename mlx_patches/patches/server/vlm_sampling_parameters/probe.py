"""Samples with parameters that leave only the likeliest token, and twice with a seed."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx, require_names, require_own

_ROWS, _VOCABULARY = 24, 32
# Each leaves only the likeliest token.
_LIKELIEST: tuple[dict[str, Any], ...] = (
    {"top_k": 1},
    {"min_p": 0.999},
    {"min_p": 0.999, "top_p": 0.9},
)
_SEEDED: dict[str, Any] = {"min_p": 0.05, "seed": 7}


def probe(target: Target) -> Result:
    """Red if another token is drawn, or if a seed does not repeat its draws."""
    require_own(target)
    if target.module == "mlx_vlm.server":
        return find_accepted(module_of(target))
    require_names(import_module("mlx_vlm.server.generation"), "make_sampler")
    server: Any = import_module("mlx_vlm.server")
    logits = mx.random.normal((_ROWS, _VOCABULARY), key=mx.random.key(3))
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    for sent in _LIKELIEST:
        drawn = sample(server, logprobs, sent)
        if drawn != mx.argmax(logprobs, axis=-1).tolist():
            return Result(True, f"{sent} draws other tokens than the likeliest")
    if sample(server, logprobs, _SEEDED) != sample(server, logprobs, _SEEDED):
        return Result(True, f"{_SEEDED} draws different tokens")
    return Result(False, "min_p and top_k leave the likeliest token; a seed repeats its draws")


def find_accepted(server: Any) -> Result:
    """Red if the server of mlx-vlm 0.5 accepts a parameter that it ignores."""
    for name, value in (("top_k", 1), ("seed", 7), ("repetition_penalty", 1.2)):
        try:
            server._build_gen_args(SimpleNamespace(**{name: value}))
        except ValueError as error:
            detail = str(error)
        else:
            return Result(True, f"{name} is accepted")
    return Result(False, detail)


def sample(server: Any, logprobs: Any, sent: dict[str, Any]) -> Any:
    """The tokens that a chat request with these parameters draws."""
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "m", "messages": messages, "temperature": 2.0, **sent}
    args = server._build_gen_args(server.ChatRequest.model_validate(body))
    kind = server.ResponseGenerator
    sampler = kind._make_sampler(SimpleNamespace(stop_tokens=set()), args)
    if not hasattr(sampler, "sample_target"):
        return sampler(logprobs).tolist()
    return sampler.sample_target(
        logprobs, row_ids=[0] * _ROWS, positions=list(range(_ROWS))
    ).tolist()
