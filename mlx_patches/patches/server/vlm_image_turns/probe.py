"""Applies the chat template to two turns, of which the first or the last one has an image."""

from typing import Any

from ....probes.kit import Result, Target, module_of, require_own

IMAGE, TEXT = {"type": "image_url"}, {"type": "text", "text": "a"}


def probe(target: Target) -> Result:
    """Red if an image is in another message than before."""
    require_own(target)
    module = module_of(target)
    found = [find_images(module, make_turns(turn)) for turn in (0, 1)]
    return Result(found != [[0], [2]], f"images in messages {found}, not [[0], [2]]")


def find_images(module: Any, messages: list[dict[str, Any]]) -> list[int]:
    """The messages that have an image in the template."""
    config = {"model_type": "qwen2_vl"}
    made = module.apply_chat_template(None, config, messages, num_images=1, return_messages=True)
    return [number for number, one in enumerate(made) if "'image'" in str(one)]


def make_turns(turn: int) -> list[dict[str, Any]]:
    """Two messages of the user, one of which has an image, and an answer between them."""
    first, last = [[IMAGE, TEXT] if one == turn else [TEXT] for one in (0, 1)]
    answer = {"role": "assistant", "content": "b"}
    return [{"role": "user", "content": first}, answer, {"role": "user", "content": last}]
