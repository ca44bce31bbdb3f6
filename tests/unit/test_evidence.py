"""The committed matrix is built from the evidence and covers only measured releases."""

import contextlib
import json
import re
from pathlib import Path

import declarations
import families_chart
import findings
import lab_evidence
import matrix_file
import measure_lab
import measure_matrix
import model_rows
import patch_evidence
import pytest
import release_sets
import write_docs
from packaging.specifiers import SpecifierSet

from mlx_patches import report
from mlx_patches.activation import git_hosts
from mlx_patches.auditing import recommend, verdict
from mlx_patches.evidence import store
from mlx_patches.evidence.words import FAIL_ON, MEMORY, METAL_EMULATED, WRONG_TEXT, family_result
from mlx_patches.matrix import matrix
from mlx_patches.patches import catalogue

from .conftest import letters, patch_of, registry_of, target

ROOT = Path(__file__).parents[2]
LAB = lab_evidence.load()
EVIDENCE = matrix_file.load_evidence()
DOCUMENT = matrix_file.document()
MATRIX = matrix.CompatMatrix(DOCUMENT)
RULES = [
    pytest.param(patch, distribution, id=f"{patch}-{distribution}")
    for patch in MATRIX.patches
    for distribution in ("mlx-lm", "mlx-vlm")
    if MATRIX.rule(patch, distribution)
]


def test_entries_do_not_repeat_default():
    rows = model_rows.rows(LAB, list(MATRIX.always))
    default = rows.pop("default")
    wide = [
        (model, name)
        for model, row in rows.items()
        for name, ids in row.items()
        if set(default[name]) <= set(ids)
    ]
    assert not wide


@pytest.fixture
def made_up(monkeypatch):
    """A catalogue of four patches; one targets mamba's own module."""
    modules = {"chain": "cache", "general": "cache", "of-mamba": "mamba", "mask": "base"}
    patches = [
        patch_of(target("f", f"mlx_lm.models.{module}", distribution="mlx-lm"), id=id_)
        for id_, module in modules.items()
    ]
    monkeypatch.setattr(catalogue, "builtin", lambda: registry_of(*patches))


def test_rows_name_needed_patches(made_up):
    one = {
        "set": "mlx-lm 0.1",
        "without": {"a": {"merge": "r", "trim": "r"}, "b": {"merge": "g"}, "c": {"build": "x"}},
        "with": {"a": {"merge": "g", "trim": "g"}},
        "needs": {"a": {"merge": ["mask"], "trim": ["general"]}},
    }
    found = model_rows.rows([one], always=["chain"])
    assert found["a"] == {"mlx-lm": ["general", "mask"]}
    assert found["b"] == {"mlx-lm": []}
    assert "c" not in found  # never built: the entry `default` applies
    # Without mamba, the patch of its module is one of the general ones.
    assert found["default"]["mlx-lm"] == ["general", "of-mamba", "mask"]


GENERAL = ["chain", "general", "mask"]
TRACED = {
    "set": "mlx-lm 0.2",
    "versions": {"mlx-lm": "0.2"},
    "without": {"mamba": {"merge": "r"}},
    "with": {"mamba": {"merge": "g"}},
    "needs": {"mamba": {"merge": ["mask"]}},
}
OLDER = {**TRACED, "set": "mlx-lm 0.1", "versions": {"mlx-lm": "0.1"}, "needs": {}}
UNPATCHED = {key: OLDER[key] for key in ("set", "versions", "without")}
UNBUILT = {"without": {"mamba": {"build": "x"}}, "with": {}, "needs": {}}
NEWEST = {"releases": {"mlx-lm": "0.2"}}


@pytest.mark.parametrize(
    ("sets", "own", "measured"),
    [
        # Not measured with the patches: its own and the general ones.
        ([UNPATCHED], ["chain", "general", "of-mamba", "mask"], []),
        # An entry holds for the sets whose repairs were traced.
        ([OLDER, TRACED], ["of-mamba", "mask"], [NEWEST]),
        # It has the companions of its patches.
        (
            [TRACED | {"companions": {"mamba": {"growth": ["chain"]}}}],
            ["chain", "of-mamba", "mask"],
            [NEWEST],
        ),
        # It does not hold for a set that could not build the family.
        (
            [OLDER | UNBUILT, TRACED],
            ["of-mamba", "mask"],
            [{"releases": {"mlx-lm": "0.1"}, "unbuilt": ["mamba"]}, NEWEST],
        ),
        # A family that no traced set could build.
        ([OLDER, TRACED | UNBUILT], ["chain", "general", "of-mamba", "mask"], [NEWEST]),
    ],
)
def test_entry_is_traced_or_general(made_up, sets, own, measured):
    found = model_rows.rows(sets, always=[])
    assert found["default"]["mlx-lm"] == GENERAL
    assert found["mamba"]["mlx-lm"] == own
    assert model_rows.list_measured(sets) == ({"mlx-lm": measured} if measured else {})


def test_family_without_needs_has_no_entry(made_up):
    one = UNPATCHED | {"without": {"mamba": {"merge": "r"}, "olmo2": {"merge": "g"}}}
    assert "olmo2" not in model_rows.rows([one], always=[])


@pytest.mark.parametrize("one", [one for one in LAB if "needs" in one], ids=lambda one: one["set"])
def test_no_cell_lists_every_patch(one):
    """A patch that cannot be applied again is not counted for every patch tried after it."""
    for family, scenarios in one["needs"].items():
        # Every cell of Gemma 3n meets four defects in mlx-vlm 0.3 and 0.4, `last-chunk` two more.
        most = 6 if family == "gemma3n" else 4
        for scenario, ids in scenarios.items():
            assert len(ids) <= most, (family, scenario, ids)


@pytest.mark.parametrize(
    ("write", "file"),
    [
        (lambda: matrix_file.yaml_text(DOCUMENT), matrix_file.MATRIX),
        (lambda: matrix_file.compile_text(DOCUMENT), matrix.COMPILED),
        (write_docs.catalogue, write_docs.CATALOGUE),
        (write_docs.api, write_docs.API),
        (declarations.text, write_docs.DECLARATIONS),
        (write_docs.chart, write_docs.CHART),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_generated_files_are_current(write, file):
    assert write() == file.read_text()


def test_readme_numbers_equal_evidence(tmp_path, monkeypatch):
    text = write_docs.README.read_text()
    assert write_docs.readme() == text
    stale = tmp_path / "README.md"
    monkeypatch.setattr(write_docs, "README", stale)
    numbers = write_docs.numbers()
    monkeypatch.setattr(write_docs, "numbers", lambda: numbers)  # counted once
    for sentence, counts in numbers.items():
        now, then = (sentence.format(*numbers) for numbers in (counts, [9999] * len(counts)))
        assert now in text
        stale.write_text(text.replace(now, then))
        assert write_docs.readme() == text
        stale.write_text(text.replace(now, ""))
        with pytest.raises(SystemExit, match="no sentence"):
            write_docs.readme()


def test_chart_findings_and_page_agree():
    bars = families_chart.bars(LAB)
    page = findings.FINDINGS.read_text()
    shown = {pack["name"]: pack for pack in report.content(LAB)["packages"]}
    for one, bar in zip(LAB, bars, strict=True):
        green, repaired = bar.released, bar.patched - bar.released
        assert f"\n|{one['set']}|{green}|{repaired}|" in page
        pack = shown[bar.package]
        column = [release["version"] for release in pack["releases"]].index(bar.version)
        cells = [cell for row in pack["families"].values() if (cell := row[column])]
        right = [cell for cell in cells if cell["result"] in ("green", "repaired")]
        assert len(right) == bar.patched
        assert sum(cell["result"] == "green" and not cell["solo"] for cell in right) == green
        assert f">{bar.patched}</text>" in write_docs.CHART.read_text()


def test_catalogue_has_one_line_per_patch():
    ids = re.findall(r"^\|\[([\w-]+)\]", write_docs.catalogue(), re.MULTILINE)
    of_git = [one.patch.id for one in git_hosts.contributions(str)]
    assert sorted(ids) == sorted([*catalogue.builtin().ids(), *of_git])


def test_evidence_sets_are_listed():
    assert {one["set"] for one in (*EVIDENCE, *LAB)} <= set(release_sets.load())


def test_every_set_measured_every_patch():
    for one in EVIDENCE:
        distribution = one["set"].split()[0]
        patches = {
            patch.id
            for patch in catalogue.builtin()
            if any(t.distribution == distribution and not t.supports for t in patch.targets)
        }
        assert set(one["patches"]) == patches, one["set"]


@pytest.mark.parametrize(("patch", "distribution"), RULES)
def test_ranges_end_at_measured_releases(patch, distribution):
    rule = MATRIX.rule(patch, distribution)
    ends = {s.operator: s.version for s in SpecifierSet(rule.affected) if s.operator != "!="}
    assert set(ends) == {">=", "<="}
    assert set(ends.values()) <= set(MATRIX.releases[distribution])


@pytest.mark.parametrize(("patch", "distribution"), RULES)
def test_ranges_contain_only_red_releases(patch, distribution):
    rule = MATRIX.rule(patch, distribution)
    for one in EVIDENCE:
        name, version = one["set"].split()
        if name != distribution:
            continue
        red = any(cell["without"] == "red" for cell in one["patches"][patch].values())
        assert (rule.decide(version) == "affected") == red, version


def test_patches_turn_red_green():
    for one in EVIDENCE:
        for patch, targets in one["patches"].items():
            assert {cell["with"] for cell in targets.values()} <= {"green"}, (one["set"], patch)


def test_wide_range_is_found():
    """Without the evidence of the last red release the rules differ."""
    fewer = [one for one in EVIDENCE if one["set"] != "mlx-lm 0.31.3"]
    assert matrix_file.build_rules(fewer) != matrix_file.build_rules(EVIDENCE)
    changed = json.loads(json.dumps(EVIDENCE))
    cells = next(one for one in changed if one["set"] == "mlx-lm 0.31.3")["patches"]
    for cell in next(filter(None, cells.values())).values():
        cell["with"] = "red"
    with pytest.raises(SystemExit, match="did not repair"):
        matrix_file.build_rules(changed)


def test_no_green_cell_turns_red():
    for one in LAB:
        for family, cells in store.cell_pairs(one).items():
            assert "gr" not in cells.values(), (one["set"], family)


def test_findings_and_summary_equal_evidence():
    assert findings.findings(LAB) == findings.FINDINGS.read_text()
    assert findings.summary(LAB) == recommend.load_summary()


@pytest.mark.parametrize(
    ("cells", "result"),
    [
        ({"a": "gg", "b": "nn"}, "green"),
        ({"a": "gg", "b": "rg"}, "repaired"),
        ({"a": "rr", "b": "rg"}, "red"),
        ({"a": "gr"}, "red"),
        ({"a": "r", "b": "g"}, "red"),  # not measured with the patches
        ({"a": "nr"}, "red"),
        ({"a": "ii", "b": "gg"}, "insensitive"),
        ({"build": "xx"}, "not-built"),
        ({"a": "gg", "max-kv-size": "rg"}, "green"),  # a feature that few use
        ({"a": "gg", "max-kv-size": "rr"}, "green"),
        ({"a": "rg", "max-kv-size": "rr"}, "repaired"),
    ],
)
def test_family_result_is_worst_cell(cells, result):
    assert family_result(cells) == result


def test_remeasured_cells_are_replaced():
    old = {"a": {"merge": "r", "trim": "g"}, "b": {"merge": "g"}}
    new = {"a": {"merge": "g"}, "c": {"build": "x"}}
    only = lab_evidence.Only
    assert lab_evidence.update_cells(old, new, only()) == new
    expected = {"a": {"merge": "g", "trim": "g"}, "c": {"build": "x"}}
    assert lab_evidence.update_cells(old, new, only(scenarios=("merge",))) == expected
    new = {"a": {"merge": "g", "trim": "g"}}
    assert lab_evidence.update_cells(old, new, only(families=("a",))) == {
        **new,
        "b": {"merge": "g"},
    }


def judge_cells(**cells):
    pairs = {name.replace("_", "-"): pair for name, pair in cells.items()}
    details = {"a": {"growth": "205 edges of the graph are left, 370 later"}}
    one = {"set": "mlx-lm 0.1", **letters({"a": pairs}), "details_without": details}
    return verdict.judge(verdict.Measured(one), "mlx-lm", "0.1", "a")


def test_growth_is_memory_defect():
    here = verdict.PatchState(active=False, missing=frozenset({"a-patch"}))
    for pair in ("rg", "rr"):
        one = judge_cells(growth=pair, merge="gg")
        assert [cell.severity for cell in one.wrong] == [MEMORY]
        assert one.exit_code(here) == 0
        assert one.exit_code(here, FAIL_ON | {MEMORY}) == 1
        assert "has a memory defect" in verdict.headline(one, here)
    worse = judge_cells(growth="rg", merge="rg")
    assert [cell.severity for cell in worse.wrong] == [WRONG_TEXT, MEMORY]
    assert worse.exit_code(here) == 1


def test_missing_cell_has_no_verdict():
    one = judge_cells(merge="gg")
    assert [cell.name for cell in one.cells] == ["merge"]
    assert one.inapplicable == 0


SENT = {
    "set": "mlx-lm 0.32.2",
    "device": "metal",
    "dtype": "float32",
    "mlx_patches": "0.2.0",
    "versions": {"mlx": "0.99.0", "mlx-lm": "0.32.2", "transformers": "5.0.0"},
    "without": {"llama": {"merge": "r", "trim": "g"}},
    "details_without": {"llama": {"merge": "differs"}},
    "with": {"llama": {"merge": "g", "trim": "g"}},
    "details_with": {},
}


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """Writes a file as sent by users; accepted evidence goes to a folder of the test."""
    folder = tmp_path / "lab"
    folder.mkdir()
    plain = lab_evidence.EVIDENCE / "mlx-lm-0.32.2.json"
    (folder / plain.name).write_bytes(plain.read_bytes())
    monkeypatch.setattr(lab_evidence, "EVIDENCE", folder)

    def write(content=SENT, **changes):
        file = tmp_path / "sent.json"
        whole = {**content, **changes} if isinstance(content, dict) else content
        file.write_text(whole if isinstance(whole, str) else json.dumps(whole))
        return file

    return write


def test_sent_evidence_is_kept_beside_cpu(sent):
    message = lab_evidence.take(sent())
    assert message == "mlx-lm 0.32.2, metal, float32: added 1: `llama`"
    (one,) = lab_evidence.load()
    pairs = store.cell_pairs(one)["llama"]
    assert (pairs["merge@metal"], pairs["trim@metal"]) == ("rg", "gg")
    assert pairs["merge"] in ("gg", "rg")  # the CPU's result is unchanged
    assert one["details_without"]["llama"]["merge@metal"] == "differs"


def test_remeasured_only_when_asked(sent):
    lab_evidence.take(sent())
    other = {
        "without": {"llama": {"trim": "r"}, "gemma": {"trim": "g"}},
        "details_without": {"llama": {"trim": "NaN"}},
        "with": {"llama": {"trim": "g"}, "gemma": {"trim": "g"}},
    }
    with pytest.raises(SystemExit, match="measured before: 1: `llama`; --again"):
        lab_evidence.take(sent(**other))
    lab_evidence.take(sent(without={"gemma": {"trim": "g"}}, **{"with": {"gemma": {"trim": "g"}}}))
    lab_evidence.take(sent(**other), again=True)
    taken = json.loads((lab_evidence.EVIDENCE / "mlx-lm-0.32.2-metal-float32.json").read_text())
    assert taken["without"] == {"gemma": {"trim": "g"}, "llama": {"trim": "r"}}
    assert taken["details_without"] == {"llama": {"trim": "NaN"}}


def test_kernel_ran_in_any_file(sent):
    def file(family, ran, left):
        kernels = {"mlx_lm": {"ran": ran, "not_reached": left}}
        cells = {"without": {family: {"trim": "g"}}, "with": {family: {"trim": "g"}}}
        return sent(device="metal-emulated", details_without={}, kernels=kernels, **cells)

    lab_evidence.take(file("a", ["ssm:1"], ["scan:2", "loss:3"]))
    lab_evidence.take(file("b", ["scan:2"], ["ssm:1", "loss:3"]))
    name = "mlx-lm-0.32.2-metal-emulated-float32.json"
    taken = json.loads((lab_evidence.EVIDENCE / name).read_text())
    assert taken["kernels"]["mlx_lm"]["not_reached"] == ["loss:3"]
    assert sorted(taken["kernels"]["mlx_lm"]["ran"]) == ["scan:2", "ssm:1"]


def test_emulation_runs_only_metal_families(sent, monkeypatch):
    plain = json.loads((lab_evidence.EVIDENCE / "mlx-lm-0.32.2.json").read_text())
    known = plain["needs"]["olmo_hybrid"]["merge"]
    monkeypatch.setattr(release_sets, "environment", lambda one: contextlib.nullcontext("python"))
    monkeypatch.setattr(release_sets, "versions", lambda python: plain["versions"])
    ran, traced = [], []

    def cells(lab, part):
        ran.append(lab.only.families)
        found = {"verdict": "red" if part == "without" else "green", "detail": "differs"}
        rows = [("mlx-lm:olmo_hybrid", "merge"), ("mlx-lm:muse_spark", "state")]
        return [{"family": family, "scenario": name, **found} for family, name in rows]

    def trace(lab, wanted, likely):
        traced.append(wanted)
        return {"muse_spark": {"state": ["a-patch"]}}

    monkeypatch.setattr(measure_lab.Lab, "cells", cells)
    monkeypatch.setattr(measure_lab.Lab, "trace", trace)
    emulated = lab_evidence.Place(METAL_EMULATED)
    one = release_sets.load()["mlx-lm 0.32.2"]
    measure_lab.measure(one, ("without", "with"), 1, again=False, place=emulated)
    assert ran == [tuple(store.metal_branches("mlx-lm 0.32.2"))] * 2
    assert traced == [{"olmo_hybrid": [], "muse_spark": ["state"]}]
    (joined,) = lab_evidence.load()
    assert joined["needs"]["olmo_hybrid"]["merge@metal-emulated"] == known
    assert joined["needs"]["muse_spark"]["state@metal-emulated"] == ["a-patch"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an object"),
        ("{}", "'set' is missing"),
        ({"more": 1}, "unknown key 'more'"),
        ({"set": "mlx-lm 0.32.1"}, "is not a release in 'versions'"),
        ({"set": 3}, "is not a release in 'versions'"),
        ({"set": "mlx 0.99.0"}, "is not a release in 'versions'"),
        ({"versions": {"mlx-lm": "0.32.2"}}, "no mlx"),
        ({"versions": ["mlx"]}, "is not an object of strings"),
        ({"device": "tpu"}, "device 'tpu' is not one of cpu, cuda, metal"),
        ({"dtype": ["float32"]}, "is not one of bfloat16, float32"),
        ({"mlx_patches": None}, "'mlx_patches' is not a string"),
        ({"without": {}, "with": {}}, "no family was measured"),
        ({"without": ["llama"]}, "do not map families to scenarios to strings"),
        ({"without": {"llama": {"merge": 1}}}, "do not map families to scenarios to strings"),
        ({"without": {"llama": {"merge": "z"}}}, "unknown letter 'z'"),
        ({"without": {"llama": {"merge": "gg"}}}, "unknown letter 'gg'"),
        ({"without": {"llama": {"guess": "g"}}}, "unknown scenario 'guess'"),
        ({"details_without": {}}, "no detail of the failure"),
        ({"with": {}}, "'llama' was not measured both"),
        ({"details_with": 3}, "do not map families to scenarios to strings"),
        ({"kernels": ["ssm"]}, "'kernels' does not map packages to lists of kernels"),
        ({"kernels": {"mlx_lm": {"ran": "ssm"}}}, "does not map packages to lists of kernels"),
        ({"kernels": {"mlx_lm": {"ran": []}}}, "does not map packages to lists of kernels"),
        ({"kernels": {"mlx_lm": {"ran": [], "not_reached": [1]}}}, "lists of kernels"),
        (
            {"set": "mlx-lm 9.9.9", "versions": {"mlx": "1", "mlx-lm": "9.9.9"}},
            "mlx-lm 9.9.9 is not in tools/release_sets.toml",
        ),
        (
            {"versions": {"mlx": "1", "mlx-lm": "0.32.2", "mlx-vlm": "0.1"}},
            "measured with mlx-vlm 0.1, its set has none",
        ),
    ],
)
def test_malformed_file_is_one_line(sent, changes, why):
    file = sent(changes) if isinstance(changes, str) else sent(**changes)
    before = sorted(lab_evidence.EVIDENCE.iterdir())
    with pytest.raises(SystemExit) as refused:
        lab_evidence.take(file)
    message = str(refused.value)
    assert message.startswith(f"{file}: ") and why in message
    assert "\n" not in message
    assert sorted(lab_evidence.EVIDENCE.iterdir()) == before


def test_missing_file_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="cannot be read"):
        lab_evidence.take(tmp_path / "none.json")


@pytest.mark.parametrize("accepted", [True, False])
def test_mlx_patch_uses_newest_mlx(accepted, tmp_path, monkeypatch):
    made = []

    @contextlib.contextmanager
    def environment(one):
        made.append(one.requirements()[0])
        if not accepted:
            raise release_sets.Unsolvable("no solution")
        yield "python"

    def child(one, python, patches, *flags):
        verdict = "green" if flags else "red"
        row = {"target": place, "body": "b", "verdict": verdict, "detail": "text"}
        return [{"patch": id_, **row} for id_ in patches]

    monkeypatch.setattr(patch_evidence, "PATCHES", tmp_path)
    monkeypatch.setattr(patch_evidence, "folder_of", lambda patch: tmp_path)
    monkeypatch.setattr(measure_matrix, "child", child)
    monkeypatch.setattr(release_sets, "environment", environment)
    patch = patch_of(target("f", distribution="mlx-lm"), id="of-mlx", mlx=("0.31.2", "0.32.0"))
    place = patch.targets[0].path
    monkeypatch.setattr(catalogue, "builtin", lambda: registry_of(patch))
    measure_matrix.Measuring().measure(release_sets.load()["mlx-lm 0.31.3"]).add()
    (evidence,) = patch_evidence.load()
    cell = {"body": "b", "without": "red", "with": "green", "detail": "text"}
    assert evidence["patches"] == {"of-mlx": {place: cell} if accepted else {}}
    (mlx,) = made
    assert mlx.endswith("==0.32.0")


@pytest.mark.parametrize(("body", "probed"), [("b", 0), ("c", 2)])
def test_new_set_measures_only_new_code(body, probed, tmp_path, monkeypatch):
    run = []

    def child(one, python, patches, *flags):
        run.extend(flag for flag in [flags] if flag != ("--code",))
        row = {"patch": "a-patch", "target": place, "body": body, "detail": "new"}
        return [row | {"verdict": "green" if flags else "red"}]

    monkeypatch.setattr(patch_evidence, "PATCHES", tmp_path)
    monkeypatch.setattr(patch_evidence, "VERSIONS", tmp_path / "versions.json")
    monkeypatch.setattr(patch_evidence, "folder_of", lambda patch: tmp_path)
    monkeypatch.setattr(measure_matrix, "child", child)
    monkeypatch.setattr(release_sets, "environment", lambda one: contextlib.nullcontext("python"))
    monkeypatch.setattr(release_sets, "versions", lambda python: {})
    patch = patch_of(target("f", distribution="mlx-lm"), id="a-patch")
    place = patch.targets[0].path
    monkeypatch.setattr(catalogue, "builtin", lambda: registry_of(patch))
    seen = {"body": "b", "without": "red", "with": "green", "detail": "old"}
    patch_evidence.add(patch, "mlx-lm 0.1", {place: seen})
    new = release_sets.ReleaseSet("mlx-lm 0.2", "2026-01-01", {})
    measure_matrix.Measuring(distinct=True).run([new], 1)
    assert len(run) == probed
    (cell,) = patch_evidence.load()[-1]["patches"]["a-patch"].values()
    assert cell == seen | ({"body": "c", "detail": "new"} if probed else {})


def test_new_set_reuses_known_evidence(tmp_path, monkeypatch):
    old = {
        "set": "mlx-lm 0.1",
        "versions": {"mlx-lm": "0.1"},
        "without": {"a": {"merge": "r"}, "b": {"merge": "g"}},
        "with": {"a": {"merge": "g"}},
        "needs": {"a": {"merge": ["a-patch"]}},
    }
    (tmp_path / "mlx-lm-0.1.json").write_text(json.dumps(old))
    monkeypatch.setattr(lab_evidence, "EVIDENCE", tmp_path)
    monkeypatch.setattr(release_sets, "environment", lambda one: contextlib.nullcontext("python"))
    monkeypatch.setattr(release_sets, "versions", lambda python: {"mlx-lm": "0.2"})
    versions = json.dumps({"a": "mlx-lm 0.1", "b": "", "c": ""})
    monkeypatch.setattr(release_sets, "run", lambda *arguments: versions)
    one = release_sets.ReleaseSet("mlx-lm 0.2", "2026-01-01", {})
    assert measure_lab.take_known(one) == ("b", "c")
    assert lab_evidence.evidence_of(one) == {
        "set": "mlx-lm 0.2",
        "versions": {"mlx-lm": "0.2"},
        "same_code": {"a": "mlx-lm 0.1"},
        "without": {"a": {"merge": "r"}, "b": {}, "c": {}},
        "with": {"a": {"merge": "g"}},
        "needs": {"a": {"merge": ["a-patch"]}},
    }


def test_newer_mlx_than_set_date():
    one = release_sets.load()["mlx-lm 0.28.0"]
    other = one.with_mlx("0.32.0")
    assert "mlx-lm[cpu]==0.28.0" in other.requirements()
    assert "mlx=2999-12-31" in other.age_limit()
    assert "mlx=2999-12-31" not in one.age_limit()
