"""vllm-mlx --mllm, simple engine: answers that max_tokens cuts off look complete or lack their end.

Why: mlx-vlm yields an answer's tokens, then the rest of its text with the finish reason. A chat
    ignores this reason and reports ``stop`` even if ``max_tokens`` cut it off; its usage also
    counts the rest and a last output without text. A completion ends at its last token, before the
    rest of its text.
How: A streamed chat that had all its tokens and the rest reports ``length``, and the number of its
    tokens. So does an answer that is not streamed, if it has ``max_tokens`` tokens. The last output
    of a completion has the rest of the text and the reason. Chats that vllm-mlx's own text model
    answers are unchanged.
Upstream: Not fixed in vllm-mlx 0.6.0.
Retire when: The engine passes on mlx-vlm's finish reason and its count of tokens.
"""

import importlib
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from ....core.verbs import Patch, result


async def correct_end(outputs: Any, max_tokens: int) -> AsyncIterator[Any]:
    """A chat's outputs; the last one has the number of tokens and the reason."""
    async with aclosing(outputs):
        async for output in outputs:
            if output.finish_reason == "stop" and not output.new_text:
                # One output per token, one with the rest, and this one.
                output.completion_tokens -= 1
                report_cut(output, max_tokens + 1)
                output.completion_tokens = min(output.completion_tokens, max_tokens)
            yield output


def report_cut(output: Any, max_tokens: int) -> Any:
    """The output of an answer, whose reason is ``length`` if it has ``max_tokens`` tokens."""
    if output.completion_tokens >= max_tokens:
        output.finish_reason = "length"
    return output


def join_end(outputs: Iterator[Any], max_tokens: int) -> Iterator[Any]:
    """A completion's outputs, one per token; the last one has the rest of the text."""
    rest = []
    for number, output in enumerate(outputs, 1):
        if number < max_tokens:
            yield output
        else:
            rest.append(output)
    if rest:
        rest[-1].text = "".join(one.text for one in rest)
        yield rest[-1]


def is_media_chat(engine: Any, /, messages: Any) -> bool:
    """Whether mlx-vlm answers a chat: if there is a text model, that one answers texts."""
    utils = importlib.import_module("vllm_mlx.api.utils")
    return engine._is_mllm and (engine._text_model is None or utils.has_media_content(messages))


_MODEL = "vllm_mlx.models.mllm:MLXMultimodalLM"

PATCH = Patch(
    id="vllm-media-end",
    targets=(
        *result(
            "vllm_mlx.engine.simple:SimpleEngine._stream_chat_impl",
            correct_end,
            when=is_media_chat,
        ),
        *result(f"{_MODEL}.chat", report_cut),
        *result(f"{_MODEL}.stream_generate", join_end),
    ),
)
