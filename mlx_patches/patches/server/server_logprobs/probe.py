"""Requests log-probabilities from the server, with an answer that is not the most probable one."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_with, mx
from ....probes.lm_server import CHAT, COMPLETIONS, make_response, post

_LOGPROBS = [-0.25 - 37 * token % 64 for token in range(64)]
_ANSWER = [3, 1, 0]
_BEST = 9
_TOKENIZER = SimpleNamespace(convert_ids_to_tokens=lambda ids: [f"w{one}" for one in ids])


def probe(target: Target) -> Result:
    """Red if the entries are not those of the answer's tokens, or their lists are not sorted."""
    module = module_with(target)
    if not hasattr(module, "_format_top_logprobs"):
        raise NotApplicable("this release reports log-probabilities in another format")
    if target.name == "_format_top_logprobs":
        best = [entry["logprob"] for entry in find_best(module, 9)]
        return Result(best != sorted(best, reverse=True), f"the best tokens: {best}")
    for path in (CHAT, COMPLETIONS):
        for stream in (False, True):
            entries = report(module, path=path, stream=stream, logprobs=True, top_logprobs=_BEST)
            seen = [(entry["id"], entry["logprob"]) for entry in entries]
            wanted = [(token, _LOGPROBS[token]) for token in _ANSWER]
            if seen != wanted:
                how = "streamed" if stream else "not streamed"
                return Result(True, f"{path}, {how}: {seen}, not {wanted}")
            for entry in entries:
                best = [one["logprob"] for one in entry["top_logprobs"]]
                if best != sorted(_LOGPROBS, reverse=True)[:_BEST]:
                    return Result(True, f"the most probable tokens have {best}")
    return Result(False, "each entry is the answer's")


def find_best(module: Any, count: int) -> Any:
    """The most probable tokens, as the server finds them."""
    return module._format_top_logprobs(mx.array(_LOGPROBS), count, _TOKENIZER)


def report(module: Any, **body: Any) -> list[dict[str, Any]]:
    """The entries of an answer's tokens."""
    count = body.get("top_logprobs", 0)
    responses = [
        make_response(
            module,
            token,
            f"w{token}",
            logprob=_LOGPROBS[token],
            top_tokens=find_best(module, count),
            finish_reason="length" if token == _ANSWER[-1] else None,
        )
        for token in _ANSWER
    ]
    choices = [chunk["choices"][0] for chunk in post(module, responses, **body)]
    return [entry for one in choices for entry in (one.get("logprobs") or {}).get("content", ())]
