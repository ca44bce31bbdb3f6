"""mlx-vlm: a conversation with a video crashes, or its images are dropped or out of order.

Why: With videos the chat template gets all of them in each message, those of the system and of the
    assistant too. A prompt of several messages has more placeholders than videos, which raises. Up
    to mlx-vlm 0.6 images beside a video get no placeholder; later they precede all videos.
How: Each message of the user has its own images, sounds and videos, in their order. Media whose
    message is not known are in the user's last message, as those without videos are.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: ``apply_chat_template`` keeps a video in its message.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ....core.verbs import Function, Patch, argument, wrap
from ..._shared.request_fields import FIELDS
from ..._shared.request_values import MEDIA
from .patch import is_user, join_texts, list_types

# The kinds of media, by the types of their parts.
KINDS = {name: kind for kind in ("image", "audio", "video") for name in MEDIA if kind in name}
# A part of a message: its kind, and its text if it is one.
Part = tuple[str, str]


class Turn(str):
    """The text of a message, with its parts and its own videos."""

    parts: Sequence[Part]
    videos: Sequence[Any]


def has_videos(video: Any) -> bool:
    return bool(video)


def place_videos(prompt: Any, num_images: int, num_audios: int, video: Any) -> Any:
    """The messages with the media of each."""
    if not isinstance(prompt, list):
        return prompt
    videos = video if isinstance(video, list) else [video]
    messages = [{"role": "user", "content": one} if isinstance(one, str) else one for one in prompt]
    users = list(filter(is_user, messages))
    counts = {"image": num_images, "audio": num_audios, "video": len(videos)}
    turns = find_turns(users, counts)
    left, own = iter(videos), iter(turns)
    return [mark(one, next(own) if is_user(one) else [], left) for one in messages]


def find_turns(users: Sequence[Mapping[str, Any]], counts: Mapping[str, int]) -> list[list[Part]]:
    """The parts of each message of the user."""
    body = FIELDS.get({})
    sent = body.get("messages")
    for messages in (users, [*filter(is_user, sent)] if isinstance(sent, list) else []):
        turns = list(map(list_parts, messages))
        kinds = [kind for parts in turns for kind, _ in parts]
        if len(turns) == len(users) and all(kinds.count(kind) == counts[kind] for kind in counts):
            return turns
    *before, last = [[("text", join_texts(read_content(one)))] for one in users] or [[]]
    media = [(kind, "") for kind in ("image", "video", "audio") for _ in range(counts[kind])]
    return [*before, [*media, *last]]


def read_content(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    return content if isinstance(content, list) else [{"text": content or ""}]


def list_parts(message: Mapping[str, Any]) -> list[Part]:
    """The parts of a message, in their order."""
    found = []
    for part in read_content(message):
        if not isinstance(part, dict):
            continue
        kind = KINDS.get(part.get("type", ""), "text")
        text = part.get("text") or part.get("content") or ""
        if kind != "text" or text:
            found.append((kind, str(text)))
    return found


def mark(message: Any, parts: Sequence[Part], left: Any) -> Any:
    """A copy of a message whose text has its media; its videos are the next ones."""
    content = message.get("content")
    if not isinstance(content, (str, list)) or {"tool_calls", "tool_call_id"} & {*message}:
        return message
    text = Turn(" ".join(text for _, text in list_parts(message) if text).strip())
    text.parts, text.videos = parts, [next(left) for kind, _ in parts if kind == "video"]
    return {**message, "content": text}


def format_turn(call: Function, model_name: str, prompt: Any, *args: Any, **options: Any) -> Any:
    """The message for the template, with its own media."""
    if not isinstance(prompt, Turn):
        return call(model_name, prompt, *args, **options)
    for kind in ("image", "audio"):
        count = [one for one, _ in prompt.parts].count(kind)
        options |= {f"num_{kind}s": count, f"skip_{kind}_token": not count}
    options["video"] = list(prompt.videos) or None
    message = call(model_name, str(prompt), *args, **options)
    content = message.get("content") if isinstance(message, dict) else None
    if prompt.videos and isinstance(content, list) and "video" in list_types(message):
        message = {**message, "content": arrange(content, prompt.parts)}
    return message


def arrange(content: Sequence[Any], parts: Sequence[Part]) -> list[Any]:
    """The parts of a message for the template, in the order of the request's."""
    build: Any = importlib.import_module("mlx_vlm.prompt_utils").MessageBuilder
    videos = (one for one in content if one.get("type") == "video")
    make = {
        "image": lambda _: build.image_message(),
        "audio": lambda _: build.audio_message(),
        "video": lambda _: next(videos),
        "text": build.text_message,
    }
    return [make[kind](text) for kind, text in parts]


PATCH = Patch(
    id="vlm-video-turns",
    targets=(
        *argument(
            "mlx_vlm.prompt_utils:apply_chat_template", "prompt", place_videos, when=has_videos
        ),
        *wrap("mlx_vlm.prompt_utils:get_message_json", format_turn, supports=True),
    ),
    probe=".probe_videos:probe",
)
