"""A request to ``mlx_vlm.server`` that fails ends all others, and some wait forever.

Why
    The generation thread takes the waiting requests together and computes their embeddings one
    after the other. It handles an error there, such as an image whose tokens do not match, as one
    of the whole batch: requests that are being decoded end with the error of another. Below
    mlx-vlm 0.7.0 the failed request and those behind it are never answered.
How
    An error of a request's embeddings is raised where the thread inserts the request. There the
    release answers the request with it and goes on with the others.
Upstream
    mlx-vlm 0.7.0 answers all of them with the error. Not fixed in mlx-vlm 0.7.10. An error in a
    step of the batch still ends all its requests. Below 0.7.0 so does any error in the loops that
    drafters have of their own.
Retire when
    The server answers a request whose embeddings fail, and goes on with the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

logger = logging.getLogger("mlx_patches")


def embedded(embed: Callable[..., Any], server: Any, *args: Any, **kwargs: Any) -> Any:
    """A request's tokens and embeddings; where they fail, tokens that raise the error when used."""
    try:
        return embed(server, *args, **kwargs)
    except Exception as error:
        if not is_generating(server):
            raise
        logger.exception("mlx_patches: a request failed; the server goes on with the others")
        # The traceback would keep the request's arrays alive.
        return Failed(error.with_traceback(None)), {}


def is_generating(server: Any) -> bool:
    """Whether the caller is the loop of the server's own thread."""
    return getattr(server, "_thread", None) is threading.current_thread()


class Failed:
    """The tokens of a request that failed: the release inserts them, and answers the error."""

    def __init__(self, error: Exception):
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


PATCH = Patch(
    id="vlm-request-failure",
    severity="crash",
    every_model=True,
    summary="mlx_vlm.server: one failing request kills all others; some hang forever",
    targets=tuple(
        Target(
            "mlx-vlm",
            module,
            "ResponseGenerator._gpu_embed",
            around(embedded),
            # The loop, which is called _run_impl since 0.7.0, has the defect.
            fingerprint_of=(
                "ResponseGenerator._gpu_embed",
                "ResponseGenerator._run",
                "ResponseGenerator._run_impl",
            ),
        )
        for module in ("mlx_vlm.server", "mlx_vlm.server.generation")
    ),
)
