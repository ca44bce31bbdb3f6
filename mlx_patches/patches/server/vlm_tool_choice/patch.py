"""mlx_vlm.server ignores tool_choice: an answer may lack the required call.

Why: For ``tool_choice: "required"``, or a tool's name, the server adds a sentence to the prompt,
    and the model may still answer with text. ``/v1/responses``, and mlx-vlm 0.5, also ignore
    ``"none"`` and the name.
How: The request keeps only the tools that may be called; without any, mlx-vlm 0.5 no longer looks
    for calls. If a call is required, the answer begins with the marker of a call: a logits
    processor allows only the marker's tokens. It waits for the end of thinking, like the processor
    of a JSON schema. Without a parser for the model's calls, such a request is refused with status
    400.
Upstream: Not fixed in mlx-vlm 0.7.10. The server of mlx-vlm below 0.5 is not repaired.
Retire when: The server constrains the answer to a call.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Patch, argument, mx, result, wrap
from ..._shared.refusals import client_error
from ..._shared.targets import vlm_server
from ..._shared.vlm_calls import find_parser


class StartCall:
    """A logits processor that begins an answer with these tokens."""

    def __init__(self, tokens: Sequence[int]):
        self._tokens, self._place = tokens, 0

    def clone(self) -> "StartCall":
        return StartCall(self._tokens)

    def reset(self) -> None:
        self._place = 0

    def __call__(self, tokens: Any, logits: Any) -> Any:
        place, self._place = self._place, self._place + 1
        return allow(logits, self._tokens[place]) if place < len(self._tokens) else logits

    def process_last_token(self, token: int, logits: Any) -> Any:
        return self(None, logits)


def allow(logits: Any, token: int) -> Any:
    """Logits that only one token can be sampled from."""
    return mx.where(mx.arange(logits.shape[-1]) == token, logits, -mx.inf)


async def read_body(read: Callable[..., Any], request: Any) -> Any:
    """Starlette's ``Request.json``, which reads the body of each request."""
    body = await read(request)
    endpoint = request.scope.get("endpoint")
    if getattr(endpoint, "__module__", "").startswith("mlx_vlm.server") and isinstance(body, dict):
        return select_tools(body)
    return body


# Whether the request that a task handles forbids calls.
FORBIDDEN: ContextVar[bool] = ContextVar("mlx_patches_forbidden", default=False)


def select_tools(body: dict[str, Any]) -> dict[str, Any]:
    """A request with the tools that may be called.

    Raises:
        ValueError: it requires a call of an unknown tool; the server answers with status 400.
    """
    kind, name = read_choice(body.get("tool_choice"))
    FORBIDDEN.set(kind == "none")
    if kind == "none":
        return {**body, "tools": None}
    if not name or not isinstance(body.get("tools"), list):
        return body
    tools = [one for one in body["tools"] if find_name(one) == name]
    if not tools:
        raise client_error(f"tool_choice: tools has no {name}; add it")
    return {**body, "tools": tools}


def read_choice(choice: Any) -> tuple[Any, Any]:
    """The kind of a choice, and the tool's name if it has one, in any form of an endpoint."""
    if isinstance(choice, dict):
        return choice.get("type"), find_name(choice)
    return choice, None


def find_name(one: Any) -> Any:
    """The name of a tool, or in a choice."""
    if not isinstance(one, dict):
        return None
    function = one.get("function")
    return (function if isinstance(function, dict) else one).get("name")


def require_call(built: Any, request: Any, processor: Any) -> Any:
    """The generation arguments of a request, whose answer begins with a call if it must.

    Raises:
        ValueError: that is not possible; the server answers with status 400.
    """
    if processor is None or not requires_call(request):
        return built
    parser = find_parser(request, processor)
    if not parser or built.logits_processors:
        why = "with response_format" if parser else "for this model, whose calls it cannot read"
        text = f"tool_choice: a required call is not supported by mlx_vlm.server {why}; remove it"
        raise client_error(text)
    built.logits_processors = [StartCall(encode(processor, parser.tool_call_start))]
    return built


def encode(processor: Any, text: str) -> list[int]:
    """The tokens of a text.

    The tokenizer's own ``encode`` sets its padding, which fails while another thread uses it.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return list(tokenizer.encode(text, add_special_tokens=False))
    return list(backend.encode(text, add_special_tokens=False).ids)


def requires_call(request: Any) -> bool:
    kind, _ = read_choice(getattr(request, "tool_choice", None))
    return kind in ("required", "any", "function", "tool")


def forget_parser(found: Any) -> Any:
    """The name of the model's parser of calls; None if calls are forbidden."""
    return None if FORBIDDEN.get() else found


def free_summary(request: Any) -> Any:
    """A request without its choice, which is for the answer, not for the summary."""
    return request.model_copy(update={"tool_choice": "auto"}) if requires_call(request) else request


PATCH = Patch(
    id="vlm-tool-choice",
    severity="feature",
    targets=(
        *result(vlm_server("app", "_build_gen_args"), require_call),
        *result(
            "mlx_vlm.tool_parsers:_infer_tool_parser_from_processor",
            forget_parser,
            supports=True,
            answers_none=True,
        ),
        *argument(
            "mlx_vlm.server.compaction:compact_response_context",
            "request",
            free_summary,
            supports=True,
        ),
        *wrap("starlette.requests:Request.json", read_body, supports=True),
    ),
)
