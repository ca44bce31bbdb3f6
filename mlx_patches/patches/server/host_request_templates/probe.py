"""Sends a template in a request's ``chat_template_kwargs``."""

import asyncio
import io
import json
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_of, read_body

_BODY = {"messages": [], "chat_template_kwargs": {"chat_template": "x", "enable_thinking": True}}


def probe(target: Target) -> Result:
    """Red if the server hands the template on."""
    module = module_of(target)
    owner, _, attribute = target.name.rpartition(".")
    kind = getattr(module, owner)
    if target.distribution == "mlx-lm":
        return _probe_generator(module, kind, attribute)
    try:
        body = asyncio.run(read_body(kind, "mlx_vlm.server", _BODY))
    except ValueError as error:
        return Result(False, str(error))
    return Result("chat_template" in body["chat_template_kwargs"], "the body has a chat_template")


def _probe_generator(module: Any, kind: Any, attribute: str) -> Result:
    """Red if ``mlx_lm.server`` hands the template to its generator."""
    arguments = getattr(module, "GenerationArguments", None)
    if "chat_template_kwargs" not in getattr(arguments, "__dataclass_fields__", ()):
        raise NotApplicable("this release reads no arguments of a template")
    seen: list[Any] = []

    def generate(request: Any, args: Any, **kwargs: Any) -> Any:
        seen.append(args.chat_template_kwargs)
        raise LookupError("the probe ends here")

    handler = _Handler(body=_BODY, **_BODY)
    handler.response_generator = SimpleNamespace(generate=generate)
    getattr(kind, attribute)(handler, SimpleNamespace(), [])
    text = json.loads(handler.wfile.getvalue())["error"]
    return Result(bool(seen), f"status {handler.status}: {text}")


class _Handler(SimpleNamespace):
    """A request handler; each parameter that it was not given is None."""

    def __init__(self, **fields: Any):
        super().__init__(**fields, wfile=io.BytesIO(), status=0)

    def __getattr__(self, name: str) -> Any:
        return None

    def _set_completion_headers(self, status: int) -> None:
        self.status = status

    def end_headers(self) -> None:
        """The headers are not recorded."""
