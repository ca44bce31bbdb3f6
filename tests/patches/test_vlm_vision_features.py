import os
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.server.vlm_vision_features.patch import (
    ByState,
    drop_other_media,
    name_pixels,
    name_state,
    replace_names,
)

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="tests of mlx-vlm")


def inputs(pixels, **more):
    ids = more.pop("input_ids", mx.array([[1, 2, 3]]))
    return {"input_ids": ids, "attention_mask": ids * 0 + 1, "pixel_values": pixels, **more}


def test_text_is_not_part_of_key():
    pixels = mx.arange(6.0).reshape(2, 3)
    one = name_pixels(inputs(pixels))
    assert one == name_pixels(inputs(mx.arange(6.0).reshape(2, 3), input_ids=mx.array([[4, 5]])))


def test_tower_inputs_are_part_of_key():
    import numpy as np

    pixels = mx.arange(6.0).reshape(2, 3)
    others = [
        inputs(pixels),
        inputs(pixels + 1),
        inputs(pixels.reshape(3, 2)),
        inputs(pixels.T.reshape(2, 3)),
        inputs(pixels.astype(mx.bfloat16)),
        inputs(np.array(pixels)),
        inputs([pixels[0], pixels[1]]),
        inputs([pixels]),
        inputs(pixels, image_grid_thw=mx.array([[1, 2, 3]])[None]),
        inputs(pixels, image_grid_thw=mx.array([[1, 3, 2]])[None]),
        inputs(pixels, image_sizes=[(2, 3)]),
    ]
    assert len({name_pixels(one) for one in others}) == len(others)


def test_server_without_cache_reads_no_pixels(device_reads):
    class Server:
        vision_cache = None

    raw = inputs(mx.ones((1, 2)))
    assert replace_names(Server(), raw, ["a.png"]) == ["a.png"]
    Server.vision_cache = object()
    assert replace_names(Server(), raw, None) is None
    assert replace_names(Server(), inputs(None), ["a.png"]) == ["a.png"]
    assert not device_reads


def test_changed_file_changes_key(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"one")
    before = name_state([str(file), "no file", "data:image/png;base64,AA"])
    assert before == name_state([str(file), "no file", "data:image/png;base64,AA"])
    assert before[1:] == ["no file", "data:image/png;base64,AA"]
    os.utime(file, ns=(1, 1))
    assert before != name_state([str(file), "no file", "data:image/png;base64,AA"])
    picture = object()
    assert name_state(picture) is picture


def test_urls_are_not_cached():
    class Features(dict):
        put = dict.__setitem__

    kept = Features()
    features = ByState(kept)
    for image in ("http://a/b.png", "HTTPS://a/b.png", ["a.png", "https://a/b.png"]):
        features.put(image, 1)
        assert features.get(image) is None
    assert not kept
    features.put("data:image/png;base64,AA", 2)
    assert features.get("data:image/png;base64,AA") == 2


def test_caches_of_other_media_are_dropped(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"one")
    turn = SimpleNamespace(cache="kept", token_ids=[1])
    for media in ([str(file), None], [str(file)], [None, str(file)]):
        drop_other_media(turn, media)
        assert turn.cache == "kept"
    file.write_bytes(b"another")
    drop_other_media(turn, [str(file)])
    assert turn.cache is turn.token_ids is None
    turn.cache = "next"
    drop_other_media(turn, [str(file), "a sound"])
    assert turn.cache is None
