import attribute
import pytest

import mlx_patches
from mlx_patches import MlxPatchesError
from mlx_patches.core.outcome import Outcome, Report, Status
from mlx_patches.lab import Cell, Family, scenarios

FAMILY = Family("mlx-lm", "any")
IDS = ("first", "needed", "third", "fourth")


@pytest.fixture
def effect(monkeypatch):
    """The patches in effect, those that cannot be applied again, and those that stay applied."""
    effect, dead, stuck = set(), set(), set()

    def restore(patches=None):
        effect.difference_update(set(IDS if patches is None else patches) - stuck)
        dead.update(set(dead_after_restore) - effect)

    def apply(patches):
        effect.update(set(patches) - dead)

    def status():
        return Report(
            tuple(Outcome(id_, "mlx-lm", "x:y", Status.APPLIED, "") for id_ in sorted(effect))
        )

    dead_after_restore: set[str] = set()
    monkeypatch.setattr(mlx_patches, "restore", restore)
    monkeypatch.setattr(mlx_patches, "apply", apply)
    monkeypatch.setattr(mlx_patches, "status", status)
    monkeypatch.setattr(attribute, "every_patch", lambda: list(IDS))
    monkeypatch.setattr(attribute, "build_family", lambda family, dtype: (None, ""))
    cell = {"trim": lambda model: Cell("green" if "needed" in effect else "red")}
    monkeypatch.setattr(scenarios, "SCENARIOS", cell)
    return effect, dead_after_restore, stuck


def test_needed_patch_is_found(effect):
    assert attribute.attribute(FAMILY, ["trim"]) == {"trim": ["needed"]}
    assert effect[0] == set(IDS)


def test_patch_of_imported_module_is_found(effect, monkeypatch):
    imported, apply = set(), mlx_patches.apply

    def import_and_run(model):
        if not imported:  # the import hook applies what waited for the module
            imported.add("needed")
            apply(imported)
        return Cell("green" if "needed" in effect[0] else "red")

    monkeypatch.setattr(
        mlx_patches,
        "apply",
        lambda patches: apply([one for one in patches if imported or one != "needed"]),
    )
    monkeypatch.setattr(scenarios, "SCENARIOS", {"trim": import_and_run})
    assert attribute.attribute(FAMILY, ["trim"]) == {"trim": ["needed"]}


@pytest.mark.parametrize(
    ("place", "id_", "message"),
    [(1, "needed", "no longer in effect"), (2, "third", "still in effect")],
)
def test_lost_or_remaining_patch_is_error(effect, place, id_, message):
    effect[place].add(id_)
    with pytest.raises(MlxPatchesError, match=f"{message} .*: {id_} at x:y"):
        attribute.attribute(FAMILY, ["trim"])


@pytest.mark.parametrize("expected", [["needed"], ["needed", "third"], ["third"], ["not applied"]])
def test_wrong_expectation_changes_nothing(effect, expected):
    assert attribute.attribute(FAMILY, ["trim"], expected=expected) == {"trim": ["needed"]}


def test_companion_patch_is_found(effect, monkeypatch):
    """The first patch turns a right cell red, unless another one is in effect."""
    cells = {"trim": lambda model: Cell("red" if effect[0] in harmed else "green")}
    harmed = [{"first"}, {"first", "fourth"}]
    monkeypatch.setattr(scenarios, "SCENARIOS", cells)
    found = attribute.attribute(FAMILY, ["trim"], kept=["first"])
    assert found == {"trim": ["needed"]}
    assert effect[0] == set(IDS)


@pytest.mark.parametrize(
    ("rule", "expected", "found"),
    [
        (lambda on: "needed" in on and on & {"third", "fourth"}, (), ["needed", "fourth"]),
        (lambda on: "needed" in on and on & {"third", "fourth"}, ("third",), ["needed", "third"]),
        (lambda on: on & {"first", "fourth"}, (), ["first"]),
        (
            lambda on: on >= {"first", "third"} or on >= {"needed", "fourth"},
            (),
            ["fourth", "needed"],
        ),
        (lambda on: True, (), []),
    ],
)
def test_found_patches_are_enough(effect, monkeypatch, rule, expected, found):
    """Also if several patches repair a defect, so that removing one changes nothing."""
    on = effect[0]
    cells = {"trim": lambda model: Cell("green" if rule(on) else "red")}
    monkeypatch.setattr(scenarios, "SCENARIOS", cells)
    assert attribute.attribute(FAMILY, ["trim"], expected=expected) == {"trim": found}
    assert rule({*found})
    if found:
        assert not any(rule({*found} - {one}) for one in found)
