"""mlx_vlm.server: one failing request kills all others; some hang forever.

Why: The generation thread takes all waiting requests and computes their embeddings one by one. It
    treats an error there, such as an image whose tokens do not match, as an error of the whole
    batch: requests that are being decoded end with another request's error. Below mlx-vlm 0.7.0 the
    failed request and those behind it are never answered.
How: The error is raised later, when the thread inserts the request. There the release answers the
    request with the error and continues with the others.
Upstream: mlx-vlm 0.7.0 answers all of them with the error. Not fixed in mlx-vlm 0.7.10. An error in
    a step of the batch still ends all its requests; below 0.7.0 so does any error in the loops of
    drafters.
Retire when: The server answers a request whose embeddings fail, and continues with the others.
"""

import logging
import threading
from typing import Any

from ....core.verbs import Function, Patch, refusal, wrap
from ..._shared.targets import vlm_server

logger = logging.getLogger("mlx_patches")


def embed_or_fail_later(embed: Function, server: Any, *args: Any, **kwargs: Any) -> Any:
    """A request's tokens and embeddings; after an error, tokens that raise it when used."""
    try:
        return embed(server, *args, **kwargs)
    except Exception as error:
        if not is_generating(server):
            raise
        logger.exception("mlx_patches: a request failed; the server goes on with the others")
        # The traceback would keep the request's arrays alive. Without it, the layers of the
        # request's thread would be blamed: the error is marked as one that a patch passes on.
        return FailedTokens(refusal(error.with_traceback(None))), {}


def is_generating(server: Any) -> bool:
    return getattr(server, "_thread", None) is threading.current_thread()


class FailedTokens:
    """The tokens of a failed request: the release inserts them, and answers with the error."""

    def __init__(self, error: Exception):
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


PATCH = Patch(
    id="vlm-request-failure",
    severity="crash",
    targets=wrap(
        vlm_server("generation", "ResponseGenerator._gpu_embed"),
        embed_or_fail_later,
        # The defect is in the loop, which is called _run_impl since 0.7.0.
        fingerprint_of=(
            "ResponseGenerator._gpu_embed",
            "ResponseGenerator._run",
            "ResponseGenerator._run_impl",
        ),
    ),
)
