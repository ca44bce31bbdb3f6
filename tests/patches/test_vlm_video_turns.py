"""``vlm-video-turns``: each message of a conversation keeps its videos."""

import contextvars

import pytest

from mlx_patches.patches._shared.request_fields import FIELDS
from mlx_patches.patches.server.vlm_image_turns import probe_videos
from mlx_patches.patches.server.vlm_image_turns.probe import IMAGE, TEXT
from mlx_patches.patches.server.vlm_image_turns.probe_videos import EXPECTED, MESSAGES, VIDEO

from ..releases.models import module_or_skip

TEXTS = [one | {"content": "a"} for one in MESSAGES]


@pytest.fixture
def find_media(ungated):
    prompts = module_or_skip("mlx_vlm.prompt_utils", "apply_chat_template")
    try:
        probe_videos.find_media(prompts, MESSAGES)
    except KeyError:
        pytest.skip("the template raises for any video")
    ungated("vlm-image-turns", "vlm-video-turns")
    return lambda *args: probe_videos.find_media(prompts, *args)


def test_servers_texts_have_the_videos_of_the_body(find_media):
    context = contextvars.copy_context()
    context.run(FIELDS.set, {"messages": MESSAGES})
    assert context.run(find_media, TEXTS) == EXPECTED


def test_videos_of_unknown_messages_are_in_the_last(find_media):
    assert find_media(TEXTS) == [[], [], [], ["image", "video", "video"]]


def test_image_of_another_message_stays_there(find_media):
    turns = [{"role": "user", "content": [IMAGE, TEXT]}, {"role": "user", "content": [VIDEO, TEXT]}]
    found = find_media(turns, ["1"])
    assert [[kind in one for kind in ("image", "video")] for one in found] == [[1, 0], [0, 1]]


def test_texts_are_not_prompts_of_other_messages(find_media):
    assert find_media(["a", "b"], ["1"]) == [[], ["image", "video"]]
