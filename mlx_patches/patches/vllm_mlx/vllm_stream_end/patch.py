"""vllm-mlx with a reasoning parser: streamed JSON answers lack their end and fail with status 422.

Why: The last output of a stream has no text of its own. The server skips it if the reasoning parser
    has nothing to add, and with it the last characters of a JSON answer, which it holds back in
    case they begin a Markdown fence. The answer is then no valid JSON.
How: The parser's result for the last output is an empty one instead of none, so the server handles
    the output as it does without a reasoning parser.
Upstream: New in vllm-mlx 0.6.0, where it is not fixed.
Retire when: The server handles the last output of each stream.
"""

import importlib
from typing import Any

from ....core.verbs import Patch, result


def keep_end(delta: Any, finished: bool) -> Any:
    """The reasoning and the content of an output; those of the last one may be empty."""
    if delta is None and finished:
        return importlib.import_module("vllm_mlx.reasoning").DeltaMessage()
    return delta


PATCH = Patch(
    id="vllm-stream-end",
    severity="crash",
    targets=result("vllm_mlx.server:_extract_streaming_reasoning_delta", keep_end),
)
