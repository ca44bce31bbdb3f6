"""Single-request results of model types, compared with another implementation."""

import json

import pytest

from mlx_patches.auditing import screen, verdict
from mlx_patches.auditing.verdict import Measured, PatchState
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.evidence import outside
from mlx_patches.evidence.outside import (
    Held,
    HeldCell,
    find_compared,
    list_configs,
    own_prefill,
    with_images,
)

YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    monkeypatch.setattr(outside.store, "folder", lambda: tmp_path / "lab")
    (tmp_path / "reference").mkdir()

    def write(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "reference" / "mlx-lm-9.9.json").write_text(text)
        outside.read_compared.cache_clear()
        return find_compared("mlx-lm 9.9", "other", "tiny")

    yield write
    outside.read_compared.cache_clear()


CELLS = {"plain": "r", "plain old": "g", "yarn old": "r", "attention_bias=true": "r", "window": "g"}


def write_tiny(evidence, **more):
    return evidence({"outside": "transformers 5", "without": {"tiny": CELLS}, **more})


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, []),
        ({"rope_theta": 1e4, "attention_bias": False}, []),
        ({"rope_scaling": YARN}, ["yarn old"]),
        ({"rope_scaling": {"type": "yarn"}}, ["yarn old"]),
        ({"rope_scaling": {"type": "linear"}}, []),
        ({"attention_bias": True}, ["attention_bias=true"]),
        ({"text_config": {"attention_bias": True}}, ["attention_bias=true"]),
        # The spelling of transformers 5, which does not load at all.
        ({"rope_parameters": YARN}, ["plain"]),
    ],
)
def test_folder_has_defects_of_its_config(evidence, config, names):
    found = write_tiny(evidence)
    assert [one.name for one in found.defects(config)] == names


def test_all_defects_without_folder(evidence):
    found = write_tiny(evidence)
    assert [one.name for one in found.defects()] == ["plain", "yarn old", "attention_bias=true"]
    assert (
        list_configs(found.defects())
        == "rope type yarn, current config format, attention_bias true"
    )
    names = ["linear old", "longrope short", "longrope", "theta", "linear"]
    cells = [HeldCell(name, "rr") for name in names]
    assert list_configs(cells) == "rope type linear/longrope, another rope theta"


def test_config_field_counts():
    cell = HeldCell("window", "rr")
    assert cell.is_of({"sliding_window": 4096}, old=True)
    assert not cell.is_of({"sliding_window": None}, old=True)
    assert not cell.is_of({"sliding_window": 4096, "use_sliding_window": False}, old=True)
    # The lab halved it: 0.5 is wrong, so 1.0 was right.
    cell = HeldCell("key_multiplier=0.5", "rr")
    assert cell.is_of({"key_multiplier": 0.25}, old=True)
    assert not cell.is_of({"key_multiplier": 1.0}, old=True)
    assert not cell.is_of({}, old=True)


def test_plain_config_decides():
    """A type without rope settings, or one that is younger than transformers 5."""
    held_ = Held("transformers 5", (HeldCell("plain", "gg"), HeldCell("yarn", "rr")))
    assert [one.name for one in held_.defects({"rope_parameters": YARN})] == ["yarn"]
    assert held_.defects({}) == ()
    # The lab's own config may be at fault.
    held_ = Held("transformers 5", (HeldCell("plain old", "rr"), HeldCell("yarn old", "rr")))
    assert not held_.comparable and held_.defects() == ()
    assert Held("transformers 5", (HeldCell("plain old", "rg"),)).comparable


def test_repaired_config_needs_its_patches(evidence):
    after = dict.fromkeys(CELLS, "g") | {"attention_bias=true": "r", "yarn": "r"}
    needs = {"tiny": {"plain": ["a-patch"]}}
    found = write_tiny(evidence, **{"with": {"tiny": after}, "needs": needs})
    by_name = {one.name: one for one in found.cells}
    plain = by_name["plain"]
    assert plain.is_open(False, ()) and plain.is_open(True, {"a-patch"})
    assert not plain.is_open(True, {"another-patch"})
    assert by_name["attention_bias=true"].is_open(True, ())
    assert not by_name["window"].is_open(False, ())
    # Measured only with the patches: no folder of this kind loads without them.
    assert by_name["yarn"].pair == "nr" and by_name["yarn"] in found.defects()


def test_config_that_did_not_run_does_not_match(evidence):
    """Other configs of a spelling run only if its plain config is right."""
    before, after = {"plain": "r", "plain old": "g"}, {"plain": "g", "plain old": "g"}
    after |= {"theta": "g", "yarn": "r"}
    found = write_tiny(evidence, **{"without": {"tiny": before}, "with": {"tiny": after}})
    assert found.sentence == (
        "As released, single requests match transformers 5 in 1 of 4 configs;"
        " with the patches also for current config format; not for rope type yarn; 2 not measured."
    )
    measured = Measured({"without": {}}, held=found)
    one = verdict.judge(measured, "mlx-lm", "9.9", "tiny")
    for here, text, wrong in (
        (PatchState(False), "1 of 4 configs; 2 not measured", ["plain"]),
        (PatchState(True), "3 of 4 configs", ["yarn"]),
    ):
        assert screen.count_matches(one, found.cells, "config", here) == text
        solo = one.as_dict(here)["solo"]
        assert solo["wrong"] == ["plain"] and solo["wrong_here"] == wrong
        matches = solo["configs"] - len(wrong) - len(solo["not_measured_here"])
        assert text.startswith(f"{matches} of")


def test_load_failure_is_crash(evidence):
    found = write_tiny(evidence, crash={"tiny": ["plain"]})
    assert [one.name for one in found.cells if one.crash] == ["plain"]


@pytest.mark.parametrize("content", ["{", "[]", '{"outside": "transformers 5"}'])
def test_broken_file_is_one_line(evidence, content):
    with pytest.raises(MlxPatchesError, match=r"mlx-lm-9\.9\.json: no evidence .*reinstall"):
        evidence(content)


def test_unknown_release_or_type(evidence):
    assert write_tiny(evidence)
    assert find_compared("mlx-lm 9.8", "tiny") is None
    assert find_compared("mlx-lm 9.9", "other") is None


SOLO = {
    "without": {"own-prefill": {"tiny": "r", "other": "r", "fine": "g", "silent": "n"}},
    "with": {"own-prefill": {"tiny": "g", "other": "r", "fine": "g"}},
    "details_without": {
        "own-prefill": {
            "tiny": "TypeError: no x (ar.py:4)",
            "other": "a text: token 4: differs by 0.2 of the logits' scale",
        }
    },
    "needs": {"own-prefill": {"tiny": ["a-patch"]}},
}


@pytest.fixture
def prefills(tmp_path, monkeypatch):
    monkeypatch.setattr(outside.store, "folder", lambda: tmp_path / "lab")
    (tmp_path / "solo").mkdir()

    def write(text):
        (tmp_path / "solo" / "mlx-lm-9.9.json").write_text(text)
        outside._read_cells.cache_clear()

    yield write
    outside._read_cells.cache_clear()


def test_own_prefill(prefills):
    prefills(json.dumps(SOLO))
    tiny, other, fine, *none = (
        own_prefill("mlx-lm 9.9", name) for name in ("tiny", "other", "fine", "silent", "absent")
    )
    assert none == [None, None] and own_prefill("mlx-lm 9.8", "tiny") is None
    assert (tiny.pair, tiny.crash, tiny.needs) == ("rg", True, ("a-patch",))
    assert (other.pair, other.crash, other.is_usual) == ("rr", False, True)
    assert [one.is_open(True, ()) for one in (tiny, other, fine)] == [False, True, False]
    assert [one.is_open(False, ()) for one in (tiny, other, fine)] == [True, True, False]


WHOLE = {
    "without": {"features": {"tiny": "r", "other": "r", "text": "n"}},
    "with": {
        "features": {"tiny": "g", "other": "r", "text": "n"},
        "features-chunked": {"other": "r", "text": "n"},
    },
    "details_without": {"features": {"tiny": "ValueError: a", "other": "ValueError: b"}},
    "details_with": {
        "features": {"other": "row 1, step 0: token 19 instead of 30"},
        "features-chunked": {"other": "ValueError: c"},
    },
    "needs": {"features": {"tiny": ["a-patch"]}},
}


def test_image_scenarios(prefills):
    prefills(json.dumps(WHOLE))
    tiny, other, *none = (
        with_images("mlx-lm 9.9", name) for name in ("tiny", "other", "text", "absent")
    )
    assert none == [(), ()] and with_images("mlx-lm 9.8", "tiny") == ()
    assert tiny == (HeldCell("features", "rg", True, ("a-patch",)),)
    # Crashes that become wrong text with the patches; and models built only with them.
    assert other == (HeldCell("features", "rr"), HeldCell("features-chunked", "nr", True))
    assert [one.severity for one in other] == ["wrong-text", "crash"]


@pytest.mark.parametrize("content", ["{", "[]", '{"without": {"own-prefill": []}}'])
def test_broken_prefills_are_one_line(prefills, content):
    prefills(content)
    with pytest.raises(MlxPatchesError, match=r"mlx-lm-9\.9\.json: no evidence .*reinstall"):
        own_prefill("mlx-lm 9.9", "tiny")
