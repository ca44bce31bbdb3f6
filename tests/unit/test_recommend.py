import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.auditing import recommend
from mlx_patches.evidence import outside
from mlx_patches.evidence.outside import HeldCell, Picture, Pictures


def release_set(mlx, name, **families):
    distribution, version = name.split()
    return {"versions": {"mlx": mlx, distribution: version}, "families": families}


SUMMARY = {
    "sets": {
        name: release_set(mlx, name, **families)
        for mlx, name, families in (
            ("0.30.6", "mlx-lm 0.30.7", {"a": "green"}),
            ("0.31.2", "mlx-lm 0.31.3", {"a": "repaired"}),
            ("0.32.4", "mlx-lm 0.32.2", {"a": "red", "b": "not-built"}),
            ("0.32.4", "mlx-vlm 0.7.10", {"a": "green"}),
        )
    }
}


def test_order_and_results():
    (found,) = recommend.recommend({"mlx-lm": "a"}, summary=SUMMARY)
    assert found.green == ("mlx-lm 0.30.7",)
    assert found.repaired == ("mlx-lm 0.31.3",)
    assert found.red == ("mlx-lm 0.32.2",)
    assert found.best_green == "mlx-lm 0.30.7"
    assert found.best_repaired == "mlx-lm 0.31.3"


def test_wrong_single_requests_are_not_right_as_released():
    """As the audit: Molmo 2's batches match its single requests, which are wrong."""
    (found,) = recommend.recommend({"mlx-vlm": "molmo2"})
    assert found.green == () and found.best_green is None
    assert "mlx-vlm 0.7.10" in found.repaired
    assert found.best_repaired == "mlx-vlm 0.7.10"


def test_stages_of_images_that_stay_wrong_are_named(monkeypatch):
    cells = (HeldCell("load", "gg"), HeldCell("model", "rg"), HeldCell("chunks", "nr"))
    pictures = Pictures("transformers 5", (Picture("a", {}, "", cells),))
    monkeypatch.setattr(
        outside, "pictures", lambda name, family: pictures if name == "mlx-lm 0.30.7" else None
    )
    (found,) = recommend.recommend({"mlx-lm": "a"}, summary=SUMMARY)
    assert found.with_images == {"mlx-lm 0.30.7": "single requests (chunks)"}
    assert found.as_dict()["wrong_with_images"] == ["mlx-lm 0.30.7"]
    assert found.green == ()  # `model` is wrong as released


def test_host_limits(monkeypatch):
    monkeypatch.setattr(recommend, "host_limits", lambda host: {"mlx-lm": ">=0.31", "mlx": ""})
    (found,) = recommend.recommend({"mlx-lm": "a"}, host="x", summary=SUMMARY)
    assert (found.green, found.repaired) == ((), ("mlx-lm 0.31.3",))
    assert found.best_green is None
    assert found.best_repaired == "mlx-lm 0.31.3"


def test_host_that_allows_no_measured_release(monkeypatch):
    monkeypatch.setattr(recommend, "host_limits", lambda host: {"mlx-lm": "<0.1"})
    (found,) = recommend.recommend({"mlx-lm": "a"}, host="x", summary=SUMMARY)
    assert found.best_repaired is None
    assert not any(found.by_word.values())


def test_unmeasured_families_are_skipped():
    assert recommend.recommend({"mlx-lm": "b", "mlx-vlm": "zz"}, summary=SUMMARY) == []


def test_missing_host():
    with pytest.raises(MlxPatchesError, match="no-such-host is not installed"):
        recommend.host_limits("no-such-host")


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        (["fake-lm>=0.99", "fake-lm<2"], {"fake-lm": "<2,>=0.99"}),
        (["Fake.LM>=0.99", "fake_lm<2,!=1.1"], {"fake-lm": "!=1.1,<2,>=0.99"}),
        (["fake-lm>=0.99", "fake-lm"], {"fake-lm": ">=0.99"}),
        (["fake-lm>=0.99", "fake-lm<1; python_version < '3'"], {"fake-lm": ">=0.99"}),
    ],
)
def test_all_requirements_count(site, lines, limits):
    required = "".join(f"Requires-Dist: {line}\n" for line in lines)
    head = "Metadata-Version: 2.1\nName: their-server\nVersion: 1.2\n"
    site.install("their-server", "1.2", metadata=head + required)
    assert recommend.host_limits("Their_Server") == limits


def test_broken_summary(monkeypatch, tmp_path):
    monkeypatch.setattr(recommend, "SUMMARY", tmp_path / "missing.json")
    with pytest.raises(MlxPatchesError, match="no evidence"):
        recommend.load_summary()
