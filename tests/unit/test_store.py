import json

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.evidence import store, words

PLAIN = {
    "set": "mlx-lm 0.1",
    "versions": {"mlx-lm": "0.1"},
    "without": {"a": {"merge": "g", "trim": "g"}, "b": {"merge": "r"}},
    "with": {"a": {"merge": "g", "trim": "g"}, "b": {"merge": "g"}},
    "needs": {"b": {"merge": ["x"]}},
    "details_without": {"b": {"merge": "differs"}},
}
OTHER = {
    "set": "mlx-lm 0.1",
    "versions": {"mlx-lm": "0.1"},
    "device": "cpu",
    "dtype": "bfloat16",
    "without": {"a": {"merge": "r", "trim": "n"}, "b": {"merge": "i"}, "c": {"build": "x"}},
    "with": {"a": {"merge": "g", "trim": "n"}, "b": {"merge": "g"}, "c": {"build": "x"}},
    "needs": {"a": {"merge": ["y"]}},
    "details_without": {"a": {"merge": "TypeError"}, "c": {"build": "no kernel"}},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "folder", lambda: tmp_path)
    for name, one in (("mlx-lm-0.1", PLAIN), ("mlx-lm-0.1-cpu-bfloat16", OTHER)):
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    return tmp_path


def test_places_are_joined(place):
    assert {file.name for file in place.iterdir()} == {
        "mlx-lm-0.1.json",
        "mlx-lm-0.1-cpu-bfloat16.json",
    }
    (found,) = store.load()
    assert store.load_set("mlx-lm 0.1") == found
    pairs = store.cell_pairs(found)
    assert pairs["a"] == {"merge": "gg", "trim": "gg", "merge@bfloat16": "rg"}
    assert words.family_result(pairs["a"]) == words.REPAIRED
    assert found["needs"] == {"a": {"merge@bfloat16": ["y"]}, "b": {"merge": ["x"]}}
    assert found["details_without"]["a"] == {"merge@bfloat16": "TypeError"}
    assert "device" not in found

    (found,) = store.load()
    pairs = store.cell_pairs(found)
    assert pairs["b"] == {"merge": "rg"}
    assert "c" not in pairs


def test_needs_apply_on_other_devices(place):
    """If its patches were not traced there."""
    other = {"set": "mlx-lm 0.1", "versions": {}, "device": "cuda", "dtype": "float32"}
    cells = {"merge": "r", "trim": "r"}
    other |= {"without": {"b": cells}, "with": {"b": dict.fromkeys(cells, "g")}}
    (place / "mlx-lm-0.1-cuda-float32.json").write_text(json.dumps(other))
    (found,) = store.load()
    assert found["needs"]["b"] == {"merge": ["x"], "merge@cuda": ["x"]}
    assert not store.is_traced(found)  # the patches of `trim` were not


def test_own_trace_comes_first(place):
    """The rest of its cells need what they need on a CPU in float32."""
    cells = {"merge": "r", "trim": "r"}
    other = OTHER | {"without": {"b": cells}, "with": {"b": dict.fromkeys(cells, "g")}}
    for traced, found in (({"trim": ["z"]}, ["x"]), ({"merge": ["w"], "trim": ["z"]}, ["w"])):
        file = place / "mlx-lm-0.1-cpu-bfloat16.json"
        file.write_text(json.dumps(other | {"needs": {"b": traced}}))
        (one,) = store.load()
        needed = {"merge": ["x"], "merge@bfloat16": found, "trim@bfloat16": ["z"]}
        assert one["needs"]["b"] == needed


def test_set_measured_only_elsewhere(place):
    (place / "mlx-lm-0.1.json").unlink()
    (found,) = store.load()
    assert store.cell_pairs(found) == {"a": {"merge@bfloat16": "rg"}}
    assert store.load_set("mlx-lm 0.1") == found


def test_unmeasured_set(place):
    assert store.load_set("mlx-lm 0.2") is None
    (place / "mlx-lm-0.3.json").write_text('{"set": "mlx-lm 0.3"}')
    with pytest.raises(MlxPatchesError, match="reinstall"):
        store.load_set("mlx-lm 0.3")


@pytest.mark.parametrize(
    ("place", "name", "text"),
    [
        (("cpu", "float32"), "trim", "a trimmed batch"),
        (("cpu", "bfloat16"), "trim@bfloat16", "a trimmed batch (bfloat16)"),
        (("metal", "float32"), "trim@metal", "a trimmed batch (metal)"),
        (("cuda", "bfloat16"), "trim@cuda bfloat16", "a trimmed batch (cuda bfloat16)"),
    ],
)
def test_cell_names(place, name, text):
    assert words.cell_name("trim", *place) == name
    assert words.place_of(name) == ("trim", *place)
    assert words.scenario(name) == words.scenario("trim")._replace(words=text)
