"""vllm-mlx with Claude Code: a billing line per request keeps the prefix cache from hitting.

Why: The client puts ``x-anthropic-billing-header: …`` into the system prompt, with a hash that
    changes with each request. The tokens of any two prompts differ from there on. Optional: the
    patch removes text from the prompt.
How: The line is removed from the system prompt.
Upstream: vllm-mlx 0.2.8 removes it.
Retire when: vllm-mlx below 0.2.8 is no longer supported.
"""

import re
from typing import Any

from ....core.verbs import Patch, argument

_LINE = re.compile(r"(?im)^x-anthropic-billing-header:[^\n]*(?:\n|\Z)")


def remove_line(request: Any) -> Any:
    system = cut_line(request.system)
    return request if system == request.system else request.model_copy(update={"system": system})


def cut_line(system: Any) -> Any:
    """A system prompt, text or blocks, without the line; a block with nothing else is dropped."""
    if isinstance(system, str):
        return _LINE.sub("", system)
    if not isinstance(system, list):
        return system
    blocks = []
    for block in system:
        text = block.get("text") if isinstance(block, dict) else block
        if not isinstance(text, str) or not _LINE.search(text):
            blocks.append(block)
        elif rest := _LINE.sub("", text):
            blocks.append({**block, "text": rest} if isinstance(block, dict) else rest)
    return blocks


PATCH = Patch(
    id="vllm-billing-header",
    severity="feature",
    targets=argument("vllm_mlx.api.anthropic_adapter:anthropic_to_openai", "request", remove_line),
    optional=True,
)
