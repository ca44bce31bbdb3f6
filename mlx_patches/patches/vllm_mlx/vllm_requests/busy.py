"""vllm-mlx's simple engine in company: streams and /v1/responses get an internal error, not 503.

Why: The simple engine serves one request at a time, and rejects others with an error that only
    ``/v1/chat/completions`` and ``/v1/completions`` turn into status 503. A stream ends with
    "Internal server error", and the other endpoints answer with status 500: clients do not retry.
How: The error is one that every endpoint answers with status 503 and its text.
    ``VLLM_MLX_SIMPLE_ENGINE_LOCK_ADMISSION=wait`` makes requests wait instead.
Upstream: Not fixed in vllm-mlx 0.6.0.
Retire when: Every endpoint answers a busy engine's error with status 503.
"""

import importlib
from typing import Any

from ....core.verbs import Patch, result
from ..._shared.refusals import answer_with
from .outputs import SIMPLE


class Slot:
    """The engine's turn of a request."""

    def __init__(self, slot: Any):
        self.slot = slot

    async def __aenter__(self) -> Any:
        busy: Any = importlib.import_module("vllm_mlx.engine.base").EngineBusy
        try:
            return await self.slot.__aenter__()
        except busy as error:
            raise answer_with(503, busy)(str(error)) from None

    async def __aexit__(self, *error: Any) -> Any:
        return await self.slot.__aexit__(*error)


def answer_busy(slot: Any) -> Slot:
    """A turn that every endpoint can refuse."""
    return Slot(slot)


PATCH = Patch(
    id="vllm-simple-busy",
    severity="feature",
    every_model=True,
    probe=".probe_busy:probe",
    targets=result(f"{SIMPLE}._acquire_generation_slot", answer_busy),
)
