"""``vlm-image-turns``: each message of a conversation keeps its images."""

import contextvars

import pytest

from mlx_patches.patches._shared.request_fields import FIELDS
from mlx_patches.patches.server.vlm_image_turns import patch
from mlx_patches.patches.server.vlm_image_turns.probe import IMAGE, TEXT, find_images, make_turns

from ..releases.models import module_or_skip

SKIPPED = {"vlm-image-turns": ((None, {}, []), {"video": ["a.mp4"]})}


def texts(messages):
    """The messages as a server keeps them: only the text parts."""
    return [one | {"content": "a"} if isinstance(one["content"], list) else one for one in messages]


def call_with(body, function, *args):
    """The result of a function in the task of a request with this body."""
    context = contextvars.copy_context()
    context.run(FIELDS.set, body)
    return context.run(function, *args)


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("field", ["messages", "input"])
def test_servers_texts_have_the_images_of_the_body(turn, field, ungated):
    prompts = module_or_skip("mlx_vlm.prompt_utils", "apply_chat_template")
    ungated("vlm-image-turns")
    turns = make_turns(turn)
    assert call_with({field: turns}, find_images, prompts, texts(turns)) == [2 * turn]


RESULT = {"role": "user", "content": [{"type": "tool_result", "content": "3"}]}
USER = {"role": "user", "content": [IMAGE, TEXT]}


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ([USER, {"role": "assistant", "content": [IMAGE]}, USER], [1, 1]),
        ([{"role": "user", "content": [IMAGE, IMAGE]}, RESULT], [2]),
        ([{"type": "function_call", "name": "f"}, USER, "x"], [1]),
        ("text", []),
    ],
)
def test_images_of_the_users_messages_are_counted(body, counts):
    assert patch.count_images(body) == counts


@pytest.mark.parametrize(
    ("images", "kind", "body"),
    [
        (2, "qwen2_vl", [USER, RESULT]),
        (1, "qwen2_vl", [USER, USER]),
        (1, "molmo", [USER, USER | {"content": "a"}]),
        (0, "qwen2_vl", [USER]),
    ],
)
def test_uncertain_messages_stay(images, kind, body):
    prompt, config = texts([USER, USER]), {"model_type": kind}
    made = call_with({"messages": body}, patch.place_images, prompt, images, config)
    assert made is prompt
