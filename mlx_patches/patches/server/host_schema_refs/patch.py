"""vllm-mlx, Rapid-MLX: a client's JSON schema makes the server fetch URLs and files.

Why: vllm-mlx and Rapid-MLX validate structured output and tool arguments with jsonschema, which
    resolves a ``$ref`` of the client's schema with ``urlopen``: any address that the server
    reaches, and any ``file:`` URL. The message of a failed validation has the content.
How: A body whose schemas have a ``$ref`` with a scheme gets 400. Whatever is left, such as a
    relative ``$ref`` below an ``$id``, is refused when a host's call makes jsonschema retrieve it.
    References inside the schema work as before. This depends on the names of one method each of
    Starlette and of referencing. Optional: schemas that were fetched before are refused.
Upstream: Not fixed in vllm-mlx 0.6.0 and Rapid-MLX 0.16.10; deprecated in jsonschema 4.26.
Retire when: jsonschema does not retrieve anything automatically.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ....core.errors import is_refusal
from ....core.verbs import Patch, wrap
from ..._shared.callers import RELEASES, callers
from ..._shared.host_bodies import read_checked
from ..._shared.refusals import Refused, as_refusal
from ..._shared.targets import LIMIT

ID = "host-schema-refs"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Fields of a request without schemas, and keywords of a schema with data.
_OTHER = frozenset({"messages", "input", "prompt", "system", "metadata", "documents"})
_DATA = frozenset({"const", "default", "enum", "examples"})
_REASON = "a schema may not refer to another document; put it into $defs"


def find_reference(body: Any) -> str:
    """The first reference of a request's schemas to another document; empty if there is none."""
    if not isinstance(body, Mapping):
        return ""
    rest = [(str(name), value) for name, value in body.items() if name not in _OTHER]
    while rest:
        field, value = rest.pop()
        if isinstance(value, list):
            rest += [(field, one) for one in value]
        elif isinstance(value, Mapping):
            for name in _REFERENCES:
                reference = value.get(name)
                if isinstance(reference, str) and has_scheme(reference):
                    return f"{field}: {name} {reference}"
            rest += [(field, one) for name, one in value.items() if name not in _DATA]
    return ""


def has_scheme(reference: str) -> bool:
    """Whether a reference begins with a scheme, as ``http:``."""
    scheme, colon, _ = reference.partition(":")
    return bool(colon) and not any(mark in scheme for mark in "/?#")


def check_body(body: Any) -> None:
    """Refuse a request with a schema that refers to another document.

    Raises:
        ValueError: it has one; a server with FastAPI answers it with status 400.
    """
    reference = find_reference(body)
    if reference:
        raise as_refusal(ID, reference, Refused(_REASON), "use")


async def read_body(read: Callable[..., Any], request: Any) -> Any:
    """Starlette's ``Request.json``, which reads the body of each request."""
    return await read_checked(read, request, check_body)


def retrieve_known(get: Callable[..., Any], registry: Any, uri: str) -> Any:
    """referencing's ``Registry.get_or_retrieve``: jsonschema's own retrieval is refused."""
    retrieve = registry._retrieve
    if getattr(retrieve, "__module__", "").partition(".")[0] != "jsonschema":
        return get(registry, uri)
    from attrs import evolve  # referencing needs it

    def retrieve_checked(address: str) -> Any:
        check_caller(address)
        return retrieve(address)

    try:
        return get(evolve(registry, retrieve=retrieve_checked), uri)
    except Exception as error:
        # referencing raises its own error, from the refusal.
        cause = error.__cause__
        raise (cause if cause is not None and is_refusal(cause) else error) from None


def check_caller(address: str) -> None:
    """Refuse to retrieve a document for a host."""
    if any(module.partition(".")[0] in RELEASES for module, _ in callers()):
        raise as_refusal(ID, address, Refused(_REASON), "retrieve")


PATCH = Patch(
    id=ID,
    **LIMIT,
    targets=(
        *wrap("starlette.requests:Request.json", read_body),
        *wrap("referencing._core:Registry.get_or_retrieve", retrieve_known),
    ),
)
