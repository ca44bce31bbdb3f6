"""mlx_lm.server, vllm-mlx and two other servers: a client's chat template is run.

Why: Servers hand ``chat_template_kwargs`` of a request to ``apply_chat_template``. Its
    ``chat_template`` replaces the model's: a client's program runs in the server, and where mlx-vlm
    compiles it without a sandbox, a shell command of the client. Other arguments replace the
    conversation, open the media in it, or change the result's type, which drops the connection.
How: In each body that a server reads, these arguments are refused in ``chat_template_kwargs``, and
    a ``chat_template`` at the top level or in ``extra_body`` too. The answer is 400 and names the
    field. Arguments that a template reads, such as ``enable_thinking``, are passed on. In the
    servers with FastAPI this depends on the name of one method of Starlette. Optional: requests
    that were answered before may be refused.
Upstream: Not fixed in mlx-lm 0.32.2, vllm-mlx 0.6.0, Rapid-MLX 0.16.10 and mlx-openai-server 1.8.1.
Retire when: The servers accept only named arguments of a template.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ....core.verbs import Patch, wrap
from ..._shared.host_bodies import read_checked
from ..._shared.refusals import Refused, as_refusal
from ..._shared.targets import LIMIT

ID = "host-request-templates"
# Where a request may have arguments of a template, and whatever is put inside of these.
_NESTED = frozenset({"extra_body", "chat_template_kwargs", "chat_template_args", "template_kwargs"})
# Names of a template itself.
_TEMPLATES = frozenset(
    {"chat_template", "chat_template_path", "chat_template_file", "chat_template_type", "jinja"}
)
# Arguments that set what is rendered, what is opened, or what is returned.
_NAMES = """
    template conversation conversations messages tokenize tokenizer tokenizer_kwargs
    processor_kwargs padding truncation max_length return_tensors return_dict
    return_assistant_tokens_mask load_audio_from_video images videos audio
"""
_ARGUMENTS = _TEMPLATES.union(_NAMES.split())


def find_template(body: Any, path: str = "", names: frozenset[str] = _TEMPLATES) -> Iterator[str]:
    """The fields of a request that bring a template, or an argument that a request may not set."""
    if not isinstance(body, Mapping):
        return
    for name, value in body.items():
        plain = str(name).strip().lower().replace("-", "_")
        if plain in _NESTED:
            inner = names if plain == "extra_body" else _ARGUMENTS
            yield from find_template(value, f"{path}{name}.", inner)
        elif plain in names and value is not None:
            yield f"{path}{name}"


def check_body(body: Any) -> None:
    """Refuse a request that brings a template.

    Raises:
        ValueError: it does; a server with FastAPI answers it with status 400.
    """
    field = next(find_template(body), None)
    if field is not None:
        reason = "a request may not set it; leave it out, or start the server with this template"
        raise as_refusal(ID, field, Refused(reason), "use")


async def read_body(read: Callable[..., Any], request: Any) -> Any:
    """Starlette's ``Request.json``, which reads the body of each request."""
    return await read_checked(read, request, check_body)


def complete(run: Callable[..., Any], handler: Any, *args: Any, **kwargs: Any) -> None:
    """mlx_lm.server: answer a request that brings a template with 400."""
    try:
        check_body(handler.body)
    except ValueError as error:
        handler._set_completion_headers(400)
        handler.end_headers()
        handler.wfile.write(json.dumps({"error": str(error)}).encode())
        return
    run(handler, *args, **kwargs)


PATCH = Patch(
    id=ID,
    **LIMIT,
    targets=(
        *wrap("mlx_lm.server:APIHandler.handle_completion", complete),
        *wrap("starlette.requests:Request.json", read_body),
    ),
)
