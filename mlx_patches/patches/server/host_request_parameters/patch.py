"""mlx_vlm.server, vllm-mlx, Rapid-MLX, mlx-openai-server ignore n and other parameters.

Why: They read only the fields that they know, and drop the others: ``n``, ``min_tokens`` and
    ``guided_json`` have no effect. ``max_completion_tokens``, which clients send in place of
    ``max_tokens``, leaves the answer unlimited. vllm-mlx also ignores ``logprobs``, and refuses a
    ``stop`` that is not a list, as does mlx-openai-server. Both ignore ``enable_thinking``:
    vllm-mlx in its simple engine, up to 0.4.1. mlx-openai-server and Rapid-MLX only put
    ``json_object`` into the prompt, if at all. Rapid-MLX's completions ignore ``logit_bias``.
    vllm-mlx drops images at ``/v1/responses``, and up to 0.4.1 at ``/v1/messages``. mlx-vlm drops
    videos at ``/v1/responses``, and up to 0.5 in chats.
    Values that make no sense are ignored or answered with status 500: ``seed: "x"``, NaN,
    ``messages: []``, and each invalid field of vllm-mlx's ``/v1/messages``. Its text models drop
    media.
How: In each body that an endpoint for answers or embeddings reads, a parameter that the server
    knows by another name or form gets it. One that the server cannot follow, and a value that makes
    no sense, is refused with status 400; the message names it. A value without effect, such as
    ``n: 1``, and fields that describe the request, such as ``user``, are accepted. A null field is
    absent. Embeddings are base64 if ``encoding_format`` is. This depends on two names of Starlette
    and FastAPI.
Upstream: Not fixed in mlx-vlm 0.7.10 and vllm-mlx 0.6.0.
Retire when: The servers refuse fields that they do not read.
"""

import base64
import importlib
import json
import struct
import sys
from typing import Any

from ....core.errors import is_refusal
from ....core.verbs import Function, Patch, before, wrap
from ..._shared.host_bodies import find_host
from ..._shared.refusals import answer, client_error
from ..._shared.request_fields import FIELDS
from ..._shared.request_values import VIDEOS, find_value_fault, has_media, read_numbers

_BOTH = (
    *("best_of", "echo", "suffix", "min_tokens", "ignore_eos", "stop_token_ids", "bad_words"),
    *("prompt_logprobs", "use_beam_search", "length_penalty", "functions", "function_call"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
)
_NONE = ("n", "logprobs", "top_logprobs", "typical_p", "dimensions")
_ADAPTERS = ("adapters", "adapter_path")
_SIZES = ("presence_context_size", "frequency_context_size")
_BUDGETS = ("thinking_budget", "thinking_token_budget")
# The parameters that each server ignores, by its package.
IGNORED = {
    "mlx_vlm": frozenset({"n", "dimensions", *_BOTH}),
    "vllm_mlx": frozenset({*_NONE, *_ADAPTERS, *_BOTH}),
    "rapid_mlx": frozenset({*_ADAPTERS, *_SIZES}),
    "app": frozenset({*_NONE, *_ADAPTERS, *_BUDGETS, *_SIZES, *_BOTH}),
}
SERVERS = {
    "mlx_vlm": "mlx_vlm.server",
    "vllm_mlx": "vllm-mlx",
    "rapid_mlx": "Rapid-MLX",
    "app": "mlx-openai-server",
}
# Values without effect, besides false ones.
_NEUTRAL = {"n": 1, "best_of": 1, "typical_p": 1, "length_penalty": 1, "function_call": "none"}
# Fields that a server knows by one of two names.
_OTHER_NAMES = (
    ("max_tokens", "max_completion_tokens"),
    ("thinking_token_budget", "thinking_budget"),
    ("repetition_penalty_range", "repetition_context_size"),
)
_OBJECT = {"name": "object", "schema": {"type": "object"}, "strict": True}
_ENDPOINTS = ("completion", "response", "message", "embedding")


async def read_body(read: Function, request: Any) -> Any:
    """Starlette's ``Request.json``, which reads the body of each request."""
    package = find_host(request)
    name = getattr(request.scope.get("endpoint"), "__name__", "")
    if package not in IGNORED:
        return await read(request)
    try:
        body = await read(request)
    except (ValueError, RecursionError) as error:
        # Some hosts read a body that is not JSON again.
        if isinstance(error, json.JSONDecodeError) or is_refusal(error):
            raise
        raise client_error(f"the body is not JSON: {error}") from None
    is_read = isinstance(body, dict) and any(one in name for one in _ENDPOINTS)
    if is_read:
        body |= read_numbers(body)
        check_fields(body, package)
    # Where images or speech are made, the format is a text.
    is_made = isinstance(body, dict) and not is_read
    fault = find_value_fault({**body, "response_format": None} if is_made else body)
    if not fault and package == "vllm_mlx" and has_media(body) and not takes_media():
        fault = "the model takes no images, audio or videos"
    if not fault and package == "mlx_vlm" and drops_videos(name) and has_media(body, VIDEOS):
        fault = "this endpoint of mlx_vlm.server reads no videos: send frames as images"
    if fault:
        raise client_error(fault)
    if is_read:
        body = adapt_fields(body, package)
        FIELDS.set(body)
    return body


def takes_media() -> bool:
    """Whether vllm-mlx's model does; the server drops the media of other requests."""
    engine = getattr(sys.modules.get("vllm_mlx.server"), "_engine", None)
    return getattr(engine, "is_mllm", True)


def drops_videos(endpoint: str) -> bool:
    """Whether an endpoint of mlx_vlm.server answers without a request's videos."""
    server = sys.modules.get("mlx_vlm.server.openai")
    is_chat = "completion" in endpoint and hasattr(server, "_extract_video_reference")
    return not is_chat and ("completion" in endpoint or "response" in endpoint)


def check_fields(body: dict[str, Any], package: str) -> None:
    """Refuse a request with a parameter that the server ignores.

    Raises:
        ValueError: it has one; the server answers with status 400.
    """
    bias = {"logit_bias"} if package == "rapid_mlx" and "prompt" in body else set()
    for name in sorted((IGNORED[package] | bias).intersection(body)):
        if body[name] and body[name] != _NEUTRAL.get(name):
            raise client_error(f"{name}: not supported by {SERVERS[package]}; remove it")
    hot = body.get("temperature")
    if package == "mlx_vlm" and "input" in body and isinstance(hot, float | int) and hot > 2:
        # The server repeats it in an answer that allows no more.
        raise client_error("temperature: /v1/responses of mlx_vlm.server allows no more than 2")
    items = body.get("input") if package == "vllm_mlx" else ()
    for item in items if isinstance(items, list) else ():
        for part in (item.get("content") if isinstance(item, dict) else None) or ():
            kind = str(part.get("type")) if isinstance(part, dict) else ""
            if kind.startswith("input_") and kind != "input_text":
                raise client_error(f"{kind}: /v1/responses of vllm-mlx only reads text; remove it")


def refuse_images(msg: Any) -> None:
    """Refuse a message with an image, which the server would drop."""
    if any(getattr(one, "type", "") == "image" for one in msg.content):
        raise client_error("image: /v1/messages of this vllm-mlx only reads text; remove it")


def adapt_fields(body: dict[str, Any], package: str) -> dict[str, Any]:
    """The body, with the fields that the server reads."""
    changes: dict[str, Any] = {}
    for name, other in _OTHER_NAMES:
        if body.get(other) is not None and body.get(name) is None:
            changes[name] = body[other]
    if package in ("vllm_mlx", "app") and isinstance(body.get("stop"), str):
        changes["stop"] = [body["stop"]]
    thinking = body.get("enable_thinking")
    if package in ("vllm_mlx", "app") and isinstance(thinking, bool):
        given = body.get("chat_template_kwargs") or {}
        changes["chat_template_kwargs"] = {"enable_thinking": thinking, **given}
    if package in ("app", "rapid_mlx"):
        changes |= constrain_objects(body)
    # In these APIs null means that a field is absent; mlx_vlm.server refuses it.
    return {name: value for name, value in (body | changes).items() if value is not None}


async def answer_request(call: Function, **arguments: Any) -> Any:
    """FastAPI's call of an endpoint; embeddings are in the format that the request names."""
    found = await answer(call, **arguments)
    return encode_vectors(found) if FIELDS.get({}).get("encoding_format") == "base64" else found


def encode_vectors(found: Any) -> Any:
    """The answer of an endpoint, with its embeddings in base64."""
    body = found.model_dump() if hasattr(found, "model_dump") else found
    if not isinstance(body, dict) or not isinstance(body.get("data"), list):
        return found
    for entry in body["data"]:
        entry["embedding"] = encode(entry["embedding"])
    return importlib.import_module("starlette.responses").JSONResponse(body)


def encode(vector: Any) -> Any:
    """The numbers as float32, in base64; of each of several vectors."""
    if isinstance(vector, str):
        return vector
    if isinstance(vector[0], list):
        return list(map(encode, vector))
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def constrain_objects(body: dict[str, Any]) -> dict[str, Any]:
    """The fields that ask for any JSON object, with a schema: only schemas constrain an answer."""
    changes: dict[str, Any] = {}
    form, text = body.get("response_format"), body.get("text")
    if names_any_object(form):
        changes["response_format"] = {"type": "json_schema", "json_schema": _OBJECT}
    if isinstance(text, dict) and names_any_object(text.get("format")):
        changes["text"] = {**text, "format": {"type": "json_schema", **_OBJECT}}
    return changes


def names_any_object(form: Any) -> bool:
    return isinstance(form, dict) and form.get("type") == "json_object"


PATCH = Patch(
    id="host-request-parameters",
    severity="feature",
    targets=(
        *wrap("starlette.requests:Request.json", read_body),
        *wrap("fastapi.routing:run_endpoint_function", answer_request, supports=True),
        *before("vllm_mlx.api.anthropic_adapter:_convert_message", refuse_images),
    ),
)
