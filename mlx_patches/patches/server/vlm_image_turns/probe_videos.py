"""Applies the chat template to a conversation with a video, then an image and a video."""

from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_of, require_own
from .probe import IMAGE, TEXT

VIDEO = {"type": "video_url"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [VIDEO, TEXT]},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": [TEXT, VIDEO, IMAGE]},
]
EXPECTED = [[], ["video"], [], ["text", "video", "image"]]


def probe(target: Target) -> Result:
    """Red if a medium is in another message, or in another order, than before."""
    require_own(target)
    try:
        found = find_media(module_of(target), MESSAGES)
    except KeyError as error:
        raise NotApplicable("up to 0.4.3 the template raises for any video") from error
    return Result(found != EXPECTED, f"messages with {found}, not {EXPECTED}")


def find_media(module: Any, messages: list[dict[str, Any]], videos: Any = ("1", "2")) -> list[Any]:
    """The parts of each message in the template, without the last text."""
    made = module.apply_chat_template(
        None,
        {"model_type": "qwen2_vl"},
        messages,
        num_images=1,
        video=list(videos),
        return_messages=True,
    )
    found = []
    for message in made:
        content = message["content"]
        parts = [one["type"] for one in content] if isinstance(content, list) else ["text"]
        found.append(parts[:-1] if parts[-1] == "text" else parts)
    return found
