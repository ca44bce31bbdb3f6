"""mlx_vlm.server: images of a conversation are all put into its last turn, or all into its first.

Why: The chat template gets the texts of the messages and the number of all images. Up to mlx-vlm
    0.4.3 it puts the images into the first message, later into the last one of the user.
How: Each message of the user has its own images, as they are in the messages of ``mlx_vlm``'s
    ``apply_chat_template``, or in the body of the server's request.
Upstream: Fixed in mlx-vlm 0.7.
Retire when: No measured release is affected.
"""

import importlib
from typing import Any

from ....core.verbs import Function, Patch, argument, wrap
from ..._shared.request_fields import FIELDS

_IMAGES = ("image", "image_url", "input_image")
# Models whose template gets only the last message.
_LAST_ONLY = ("paligemma", "molmo", "florence2", "falcon_ocr")


class Text(str):
    """The text of a message, and the number of its images."""

    images: int


def has_no_videos(video: Any) -> bool:
    """Whether ``vlm-video-turns`` does not place the images."""
    return not video


def place_images(prompt: Any, num_images: int, config: Any) -> Any:
    """The messages with the number of images in each; the same ones if that is not certain."""
    kind = config["model_type"] if isinstance(config, dict) else config.model_type
    if not (num_images and isinstance(prompt, list)) or kind in _LAST_ONLY:
        return prompt
    counts = count_images(prompt)
    if not any(counts):  # the server has only kept the texts
        body = FIELDS.get({})
        counts = count_images(body.get("messages", body.get("input")))
    if len(counts) != sum(map(is_user, prompt)) or sum(counts) != num_images:
        return prompt
    left = iter(counts)
    return [mark(one, next(left)) if is_user(one) else one for one in prompt]


def count_images(messages: Any) -> list[int]:
    """The number of images in each message of the user."""
    users = filter(is_user, messages if isinstance(messages, list) else ())
    return [sum(part in _IMAGES for part in list_types(one)) for one in users]


def is_user(message: Any) -> bool:
    """Whether a message is the user's, and has more than results of tools."""
    return (
        isinstance(message, dict)
        and message.get("role") not in (None, "system", "assistant", "tool")
        and not {"tool_calls", "tool_call_id"} & {*message}
        and {*list_types(message)} != {"tool_result"}
    )


def list_types(message: dict[str, Any]) -> list[Any]:
    """The types of a message's parts."""
    parts = message.get("content")
    return (
        [one.get("type") for one in parts if isinstance(one, dict)]
        if isinstance(parts, list)
        else []
    )


def mark(message: dict[str, Any], images: int) -> dict[str, Any]:
    """A copy of a message whose text has the number of its images."""
    prompts = importlib.import_module("mlx_vlm.prompt_utils")
    extract = getattr(prompts, "extract_text_from_content", join_texts)
    text = Text(extract(message.get("content")))
    text.images = images
    return {**message, "content": text}


def join_texts(content: Any) -> str:
    """The text of a message in mlx-vlm up to 0.3.9, which has no function for it."""
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(one["text"]) for one in parts if isinstance(one, dict) and one.get("text"))


def format_message(call: Function, model_name: str, prompt: Any, *args: Any, **options: Any) -> Any:
    """The message for the template, with its own images."""
    if isinstance(prompt, Text):
        options |= {"num_images": prompt.images, "skip_image_token": not prompt.images}
        prompt = str(prompt)
    return call(model_name, prompt, *args, **options)


PATCH = Patch(
    id="vlm-image-turns",
    targets=(
        *argument(
            "mlx_vlm.prompt_utils:apply_chat_template", "prompt", place_images, when=has_no_videos
        ),
        *wrap("mlx_vlm.prompt_utils:get_message_json", format_message, supports=True),
    ),
)
