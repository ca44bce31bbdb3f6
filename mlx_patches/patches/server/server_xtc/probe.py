"""Sends the server a request with XTC and no threshold, and draws from its sampler."""

import io
import json
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_of, mx, require, require_parameter

_PROBABILITIES = (0.5, 0.3, 0.09, 0.06, 0.05)
_ENDS, _NEWLINE, _DRAWS = (3, 4), [2], 30


def probe(target: Target) -> Result:
    """Red if the threshold is zero, the sampler raises, or XTC drops an end token."""
    if target.name == "APIHandler.body":
        return _send_request(module_of(target))
    make = require(target)
    if target.name == "_make_sampler":
        sampling = SimpleNamespace(
            temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, xtc_probability=1.0, xtc_threshold=0.01
        )
        drawn = _draw(make(SimpleNamespace(sampling=sampling), _make_tokenizer()))
        removed = set(_ENDS) - drawn
        return Result(bool(removed), f"draws {sorted(drawn)}; the end tokens are {_ENDS}")
    require_parameter(make, "xtc_probability")
    drawn = _draw(make(1.0, xtc_probability=1.0))
    return Result(1 not in drawn, f"draws {sorted(drawn)} of probabilities {_PROBABILITIES}")


def _make_tokenizer() -> Any:
    return SimpleNamespace(
        eos_token_id=_ENDS[0], eos_token_ids=set(_ENDS), encode=lambda text: _NEWLINE
    )


def _draw(sampler: Any) -> set[int]:
    mx.random.seed(0)
    logprobs = mx.log(mx.array([_PROBABILITIES]))
    return {sampler(logprobs).item() for _ in range(_DRAWS)}


def _send_request(module: Any) -> Result:
    """Red if the server's handler reads a threshold of zero from the request."""

    class Handler(module.APIHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            body = json.dumps({"prompt": "hi", "xtc_probability": 0.5}).encode()
            self.path, self.rfile, self.wfile = "/v1/completions", io.BytesIO(body), io.BytesIO()
            self.headers = {"Content-Length": str(len(body))}
            options = SimpleNamespace(
                max_tokens=8, temp=1.0, top_p=1.0, top_k=0, min_p=0.0, num_draft_tokens=3
            )
            self.response_generator = SimpleNamespace(cli_args=options)
            # Releases without a generation thread have this instead.
            self.model_provider = SimpleNamespace(
                cli_args=options, load=lambda *names: (None, _make_tokenizer())
            )

        def ignore(self, *args: Any) -> None:
            pass

        handle_completion = send_response = send_header = end_headers = ignore

    handler = Handler()
    if "response_generator" not in vars(handler):
        raise NotApplicable("this release's server has no response generator")
    handler.do_POST()
    threshold = handler.xtc_threshold
    return Result(not threshold, f"a request without a threshold gets {threshold}")
