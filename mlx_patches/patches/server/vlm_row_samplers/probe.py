"""Compares requests of the server's generator in a batch with single requests; settings differ."""

from typing import Any

from ....probes.kit import NotApplicable, Result, Target, import_module, require_own
from ....probes.vlm_server import running

_PROMPT = [3, 7]
_TOKENS = 16
# The settings of a request, and those of the one in whose batch it runs.
_PAIRS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"temperature": 0.0}, {"temperature": 1.5}),
    ({"temperature": 1.5, "top_k": 1, "seed": 7}, {"temperature": 1.5}),
    ({"temperature": 0.0, "logprobs": True}, {"temperature": 0.0}),
    ({"temperature": 1.5, "seed": 7}, {"temperature": 0.0}),
    ({"temperature": 1.5, "seed": 7}, {"temperature": 1.5, "seed": 8}),
)


def probe(target: Target) -> Result:
    """Red if a request's answer differs in the batch of another one."""
    require_own(target)
    server: Any = import_module("mlx_vlm.server")
    if not hasattr(server, "ResponseGenerator"):
        raise NotApplicable("this release's server has no batch")
    pairs = _PAIRS if hasattr(server, "generation") else _PAIRS[:1]  # 0.5 has no seeds
    for settings, first in pairs:
        with running(top_logprobs_k=2) as generator:
            solo = read_answer(start(server, generator, settings), settings)
        with running(top_logprobs_k=2) as generator:
            _, longer = start(server, generator, first, 10**6)
            next(longer)
            joined = start(server, generator, settings)
            answer = read_answer(joined, settings)
            next(longer)
            longer.close()
        if answer != solo:
            return Result(True, f"{settings} beside {first}: {answer}, solo {solo}")
    return Result(False, "each request gets the answer of its solo run")


def start(server: Any, generator: Any, settings: dict[str, Any], length: int = _TOKENS) -> Any:
    """Start a chat request with these settings: its context and its tokens."""
    messages = [{"role": "user", "content": "hi"}]
    sent = {"model": "m", "messages": messages, "max_tokens": length, **settings}
    args = server._build_gen_args(server.ChatRequest.model_validate(sent))
    return generator.generate(_PROMPT, args=args)


def read_answer(started: tuple[Any, Any], settings: dict[str, Any]) -> list[Any]:
    """The tokens of an answer, with their log-probabilities if they were requested."""
    wanted = settings.get("logprobs")
    return [
        (one.token, round(one.logprobs, 3), [token for token, _ in one.top_logprobs or ()])
        if wanted
        else one.token
        for one in started[1]
    ]
