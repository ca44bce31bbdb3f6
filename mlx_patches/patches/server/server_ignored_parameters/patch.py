"""mlx_lm.server ignores n, response_format, tool_choice and others (refused now).

Why: The server reads the parameters that it implements and drops all others: a request for a JSON
    schema gets free text, one for two answers gets one, and no reply mentions it. Before mlx-lm
    0.32.1, a parameter with an invalid value gets no reply at all: the connection is closed.
How: A known parameter of other servers that changes an answer is refused with status 400, unless it
    has the value that changes nothing. ``tool_choice: "none"`` drops the tools, ``enable_thinking``
    and ``reasoning_effort`` are passed to the chat template, and ``stream_options`` may lack
    ``include_usage``. An invalid value gets status 400 in every release, also in ``logit_bias``,
    and so do ``top_logprobs`` without ``logprobs`` and a request without a prompt.
Upstream: Invalid values are fixed in mlx-lm 0.32.1; the rest is not fixed in mlx-lm 0.32.2. The
    server of mlx-lm up to 0.28.3 is not repaired.
Retire when: The server honours or refuses these parameters.
"""

import json
from typing import Any

from ....core.verbs import Function, Patch, refusal, wrap
from ..._shared.request_fields import LARGEST, find_bias_fault

# Parameters that the server does not implement, and the values that change nothing.
IGNORED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1, 0),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "typical_p": (1, 0),
    "top_a": (0,),
    "tfs": (1,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "dry_multiplier": (0,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "json_schema": (),
    "grammar": ("",),
    "prompt_logprobs": (),
    # Refused only with tools.
    "parallel_tool_calls": (True,),
    "thinking_budget": (),
    "repeat_penalty": (1,),
    "truncate_prompt_tokens": (),
}
TEMPLATE = ("enable_thinking", "reasoning_effort")


class BadRequest(ValueError):
    """A request that gets status 400."""


def check_parameters(validate: Function, handler: Any) -> None:
    """Honour or refuse what the server ignores, then let it check the rest."""
    body = handler.body
    required = "prompt" if handler.path == "/v1/completions" else "messages"
    if required not in body:
        raise refusal(BadRequest(f"{required}: missing"))
    for name in find_ignored(body):
        remedy = "remove it" + "".join(
            f" or set it to {json.dumps(one)}" for one in IGNORED[name][:1]
        )
        raise refusal(BadRequest(f"{name} is not supported by mlx_lm.server: {remedy}"))
    fault = find_bias_fault(body.get("logit_bias")) or find_top_fault(body) or find_overflow(body)
    if fault:
        raise refusal(BadRequest(fault))
    if body.get("tool_choice") == "none":
        body.pop("tools", None)
    given = {name: body[name] for name in TEMPLATE if body.get(name) is not None}
    kept = getattr(handler, "chat_template_kwargs", None)
    if given and (kept is None or isinstance(kept, dict)):
        handler.chat_template_kwargs = given | (kept or {})
    if isinstance(handler.stream_options, dict):
        handler.stream_options = {"include_usage": False} | handler.stream_options
    try:
        validate(handler)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def find_top_fault(body: dict[str, Any]) -> str:
    """What is wrong with a request's ``top_logprobs``; empty if it is right, or none."""
    top = body.get("top_logprobs")
    if isinstance(top, bool):
        return "top_logprobs: not a number"
    needs = top and not body.get("logprobs") and top != -1
    return "top_logprobs: needs logprobs; set it to true" if needs else ""


def find_overflow(body: dict[str, Any]) -> str:
    """Which number of a request MLX cannot hold, such as NaN; empty if it can hold all."""
    names = [name for name, value in body.items() if isinstance(value, (int, float))]
    wrong = next((one for one in names if not abs(body[one]) <= LARGEST), "")
    return wrong and f"{wrong}: not a number up to {LARGEST:g}"


def find_ignored(body: dict[str, Any]) -> list[str]:
    found = [
        name
        for name in body.keys() & IGNORED.keys()
        if body[name] is not None and body[name] not in IGNORED[name]
    ]
    return sorted(name for name in found if name != "parallel_tool_calls" or body.get("tools"))


def reply_to_bad_requests(post: Function, handler: Any) -> None:
    """Answer a request; a bad one gets status 400."""
    try:
        post(handler)
    # The release does not reply to bytes that are no text, or to JSON that is nested too deeply.
    except (BadRequest, UnicodeDecodeError, RecursionError) as error:
        handler._set_completion_headers(400)
        handler.end_headers()
        handler.wfile.write(json.dumps({"error": str(error)}).encode())


PATCH = Patch(
    id="server-ignored-parameters",
    severity="feature",
    targets=(
        *wrap("mlx_lm.server:APIHandler.validate_model_parameters", check_parameters),
        *wrap(
            "mlx_lm.server:APIHandler.do_POST",
            reply_to_bad_requests,
            fingerprint_of=("APIHandler.do_POST", "APIHandler.validate_model_parameters"),
        ),
    ),
)
