"""The audit, the recommendation, ``needs`` and the page agree on each model."""

import dataclasses
import functools
import json
import sys
import time
from collections import Counter

import pytest
from lab_evidence import results_of

import mlx_patches
from mlx_patches import report as page
from mlx_patches.activation import boot
from mlx_patches.activation import session as activation
from mlx_patches.auditing import audit, preflight, recommend, screen, verdict
from mlx_patches.auditing.verdict import PatchState
from mlx_patches.core import distributions
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.core.model_files import MAX_CONFIG_BYTES
from mlx_patches.core.outcome import Outcome, Status
from mlx_patches.core.resolve import Found
from mlx_patches.evidence import code as measured_code
from mlx_patches.evidence import outside, store, words
from mlx_patches.matrix import gate
from mlx_patches.patches import catalogue

from .conftest import letters, patch_of, session_for

EVIDENCE = store.load()
BY_NAME = {one["set"]: one for one in EVIDENCE}
# The mlx-lm of most hosts; a set of mlx-vlm takes a minute or two.
OFTEN = {"mlx-lm 0.31.3"}
SETS = [
    pytest.param(one, id=one["set"], marks=() if one["set"] in OFTEN else pytest.mark.slow)
    for one in EVIDENCE
]
EVERY = words.SEVERITIES
# Patches of these severities; other ids of these tests are made up.
WRONG, FEATURE = (
    next(patch.id for patch in catalogue.builtin() if patch.severity == severity)
    for severity in (words.WRONG_TEXT, words.FEATURE)
)


@pytest.fixture
def release(site, monkeypatch):
    """Installs a release set of the evidence, with model files that hold no code."""
    # There is no code to compare: the version decides which patches a release needs.
    for module in (audit, preflight):
        monkeypatch.setattr(module, "in_file", lambda target, names=(): Found())
    by_code = gate.decide_by_rule
    monkeypatch.setattr(
        gate, "decide_by_rule", lambda rule, installed, *rest: by_code(rule, installed, "", None)
    )
    # The table of affected models has its own tests, and takes most of an audit's time.
    monkeypatch.setattr(audit.measured, "find_affected", lambda *arguments: {})
    # No package declares a host; to look reads the metadata of every package of the tests.
    monkeypatch.setattr(audit.contributions, "hosts", lambda blocked: {})
    monkeypatch.setattr(distributions, "_packages", {})
    monkeypatch.setattr("mlx_patches.core.model_types.remapping", lambda package: {})

    def install(evidence, active=False, versions=None):
        for name, version in {**evidence["versions"], **(versions or {})}.items():
            site.install(name, version)
        own = evidence["set"].split()[0].replace("-", "_")
        for package in {own, *(n.replace("-", "_") for n in evidence["versions"] if "-" in n)}:
            site.write(f"{package}/models/cache.py")
            site.write(f"{package}/models/__init__.py")
        for family in evidence["without"]:
            (site.root / own / "models" / f"{family}.py").write_text("")
        names = {f"{n} {v}" for n, v in {**evidence["versions"], **(versions or {})}.items()}
        monkeypatch.setattr(
            measured_code,
            "differing",
            lambda name, modules, find: [] if name in names else list(modules),
        )
        monkeypatch.setattr(activation, "_session", None)
        monkeypatch.setattr(boot, "active", lambda: active)

    return install


def expect_code(result, pairs, active, evidence, family):
    word = words.verdict_of(result)
    if word in (words.RIGHT, "cannot batch"):
        return {0}
    if word == words.NOT_MEASURED:
        return {2}
    wrong = {name for name, pair in pairs.items() if pair[0] == "r" or words.is_red(pair)}
    if active:
        wrong = {name for name in wrong if words.is_red(pairs[name])}
    parts = (evidence.get("details_without", {}), evidence.get("details_with", {}))
    details = {name: "".join(p.get(family, {}).get(name, "") for p in parts) for name in wrong}
    return {int(any(words.severity_of(n, details[n]) in words.FAIL_ON for n in wrong))}


@pytest.mark.parametrize("evidence", SETS)
def test_all_commands_agree(release, monkeypatch, evidence):
    release(evidence)
    name, version = evidence["set"].split()
    overview = mlx_patches.audit()
    plain = {one.family: one for one in overview.verdicts if one.distribution == name}
    pairs = store.cell_pairs(evidence)
    assert set(plain) == set(pairs)
    (shown,) = (one for one in page.content([evidence])["packages"] if one["name"] == name)
    column = [one["version"] for one in shown["releases"]].index(version)
    # The README, the chart and docs/findings.md count the same families.
    counts = Counter(results_of(evidence).values())
    count = counts[words.REPAIRED] + counts[words.RED]
    fact = f"{evidence['set']}: {count} of {len(pairs)} model families wrong as released"
    assert any(one.startswith(fact) for one in screen.facts(overview)) or not count
    summary = recommend.load_summary()["sets"][evidence["set"]]["families"]
    for index, (family, cells) in enumerate(pairs.items()):
        result = words.family_result(cells)
        word = words.verdict_of(result)
        report = mlx_patches.audit(family)
        (own,) = report.verdicts
        on_page = shown["families"][family][column]["result"]
        assert (own.verdict, plain[family].verdict) == (word, word), family
        if result == words.GREEN:  # right only if single requests are right too
            beside = bool(recommend.list_wrong_beside(evidence["set"], family))
            assert on_page == (words.REPAIRED if beside else words.GREEN), family
        else:
            assert on_page == result or (on_page, result) == (page.PARTLY, words.RED)
        assert words.verdict_of(summary[family]) == word
        code = report.exit_code()
        # None of the lab's scenarios shows this.
        solo = own.measured.solo or wrong_beside(evidence["set"], family, "without")
        wanted = {1} if solo else expect_code(result, cells, False, evidence, family)
        assert code in wanted, (family, word)
        if result == words.GREEN:  # right as released only if single requests are right too
            (found,) = recommend.recommend({name: family})
            assert (evidence["set"] in found.green) is (code == 0), family
        if index % 7 == 0:  # the JSON form takes as long as the audit
            assert report.as_dict()["exit_code"] == code
        message = screen.verdict(report)
        assert message.startswith(family) and word_in(message, own, report.here()), message
        needed = {need.patch for need in mlx_patches.needs(family)}
        assert needed <= set(own.patches)
        assert needed >= set(own.measured.solo)
        if word in (words.RIGHT, "cannot batch"):
            spared = {
                *own.measured.solo,
                *(own.measured.prefill.needs if own.measured.prefill else ()),
                *(id_ for cell in own.shown for id_ in cell.needs),
            }
            # A batch that a patch refuses, in place of a failure of the release.
            spared |= {
                id_
                for cell, ids in evidence.get("needs", {}).get(family, {}).items()
                if cells.get(cell) == "rn"
                for id_ in ids
            }
            assert {verdict.patch_severity(id_) for id_ in needed - spared} <= {words.FEATURE}
    # Enabled: every family's verdict is judged again, and every seventh family is audited again.
    monkeypatch.setattr(boot, "active", lambda: True)
    enabled = mlx_patches.audit()
    assert enabled.exit_code() == 0
    here = enabled.here()
    for index, (family, one) in enumerate(plain.items()):
        expected = expect_code(one.result, pairs[family], True, evidence, family)
        if wrong_beside(evidence["set"], family, "with"):
            expected = {1}
        elif 1 not in expected and any(cell.pair == "r" for cell in one.shown):
            expected = {2}  # images that the patches may repair
        assert one.exit_code(here) in expected, family
        if index % 7 == 0:
            assert mlx_patches.audit(family).exit_code() in expected, family


def wrong_beside(name, family, part):
    """Whether decoded text differs from its prefill, or images are wrong."""
    shown = outside.pictures(name, family)
    pairs = [cell.pair for cell in (shown.cells() if shown else ())]
    if any(pair.startswith("r", part == "with") for pair in pairs):
        return True
    found = load_solo(name)
    scenarios = ("own-prefill", outside.FEATURES, outside.CHUNKED)
    letters = [
        found.get(part, {}).get(one, {}).get(family) or found["with"].get(one, {}).get(family)
        for one in scenarios
        if found
    ]
    return "r" in letters


@functools.cache
def load_solo(name):
    """The evidence of single requests in a set; empty if there is none."""
    file = store.folder().parent / "solo" / f"{name.replace(' ', '-')}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def word_in(message, one, here):
    if one.wrong_solo(here):
        return " gives wrong text here " in message and "even for a single request" in message
    if one.verdict == words.RIGHT:
        return " is right " in message
    if one.verdict == "cannot batch":
        return " cannot be batched " in message
    if one.verdict == words.NOT_MEASURED:
        return " was not measured " in message
    return (" is repaired here " in message) is (not one.wrong_here(here))


def test_recommendation_uses_verdicts():
    names = {"green": "right as released", "repaired": "right with the patches", "red": "wrong"}
    for family in ("llama4", "qwen3", "gemma4"):
        (found,) = recommend.recommend({"mlx-lm": family})
        for one in EVIDENCE:
            pairs = store.pairs_of(one, family)
            if not one["set"].startswith("mlx-lm ") or not pairs:
                continue
            result = words.family_result(pairs)
            if result == words.GREEN and recommend.list_wrong_beside(one["set"], family):
                result = words.REPAIRED
            word = names.get(result, words.verdict_of(result))
            assert one["set"] in found.by_word[word]


def test_unmeasured_release(release):
    evidence = BY_NAME["mlx-lm 0.32.2"]
    release(evidence, versions={"mlx-lm": "0.31.0"})
    report = mlx_patches.audit("qwen3")
    assert [one.verdict for one in report.verdicts] == [words.NOT_MEASURED]
    assert report.exit_code() == 2
    assert "qwen3 was not measured in mlx-lm 0.31.0" in screen.verdict(report)
    assert mlx_patches.audit().unmeasured == ("mlx-lm 0.31.0",)


def test_other_installed_releases_are_named(release):
    evidence = BY_NAME["mlx-lm 0.32.2"]
    release(evidence, versions={"mlx": "9.9"})
    (one,) = mlx_patches.audit("qwen3").verdicts
    assert one.verdict == words.RIGHT
    assert one.note == f"mlx-lm 0.32.2 was measured with mlx {evidence['versions']['mlx']}"


def write_llama(folder, **config):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return str(folder)


@pytest.mark.parametrize(
    ("encoding", "problem"),
    [("utf-8-sig", "line 1: not valid JSON"), ("utf-16", "not UTF-8"), ("latin-1", "not UTF-8")],
)
def test_config_that_no_release_reads(tmp_path, encoding, problem):
    text = json.dumps({"model_type": "llama", "name": "é"}, ensure_ascii=False)
    (tmp_path / "config.json").write_text(text, encoding)
    with pytest.raises(
        mlx_patches.MlxPatchesError, match=f"config.json: {problem}.*download it again"
    ):
        mlx_patches.audit(str(tmp_path))


def test_folder_without_windows(release, tmp_path):
    release(BY_NAME["mlx-lm 0.32.2"])
    full = mlx_patches.audit(write_llama(tmp_path, layer_types=["full_attention"]))
    (one,) = full.verdicts
    assert (one.verdict, full.exit_code(), one.wrong) == (words.RIGHT, 0, ())
    (other,) = mlx_patches.audit(write_llama(tmp_path, sliding_window=9)).verdicts
    assert {cell.name.partition("@")[0] for cell in other.wrong} == {"state", "last-chunk"}
    assert one.inapplicable == other.inapplicable + 2


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("config.json", "model_file"),
        ("config.json", "auto_map"),
        ("tokenizer_config.json", "auto_map"),
        ("preprocessor_config.json", "auto_map"),
        ("video_preprocessor_config.json", "auto_map"),
        ("processor_config.json", "image_processor"),
    ],
)
def test_folder_with_its_own_code_is_not_measured(release, tmp_path, file, field):
    release(BY_NAME["mlx-lm 0.32.2"])
    folder = write_llama(tmp_path, layer_types=["full_attention"])
    assert mlx_patches.audit(folder).exit_code() == 0
    path = tmp_path / file
    content = json.loads(path.read_text()) if path.exists() else {}
    value = "own.py" if field == "model_file" else {"AutoModel": "own.Model"}
    part, field = field, field if field == "model_file" else "auto_map"
    path.write_text(json.dumps({**content, part: value if part == field else {field: value}}))
    report = mlx_patches.audit(folder)
    (one,) = report.verdicts
    assert (one.verdict, report.exit_code()) == (words.NOT_MEASURED, 2)
    assert one.note.startswith(f"this folder runs its own code ({field} in {file})")
    assert report.as_dict()["model"]["own_code"] == f"{field} in {file}"
    text = "\n".join(screen.commands(report))
    assert "MLX_PATCHES_TRUST_REMOTE_CODE=1 mlx-patches lab --weights" in text
    assert "Next:" not in text


def test_file_too_large_to_check(release, tmp_path):
    """A release reads it whole, and runs the code that it names."""
    release(BY_NAME["mlx-lm 0.32.2"])
    folder = write_llama(tmp_path)
    text = json.dumps({"auto_map": {"AutoTokenizer": "own.Tokenizer"}})
    (tmp_path / "tokenizer_config.json").write_text(text + " " * MAX_CONFIG_BYTES)
    with pytest.raises(MlxPatchesError, match=r"tokenizer_config.json: larger than \d+ bytes"):
        mlx_patches.audit(folder)


def test_quiet_audit_names_what_fails_it(release, tmp_path):
    release(BY_NAME["mlx-lm 0.32.2"])
    folder = write_llama(tmp_path, layer_types=["full_attention"])
    (tmp_path / "generation_config.json").write_text("[")
    report = mlx_patches.audit(folder)
    right, why = screen.brief(report).splitlines()
    assert report.exit_code() == 1 and " is right " in right
    assert why.startswith(f"{tmp_path}/generation_config.json: line 1: not valid JSON")


@pytest.mark.parametrize("kind", ["llama", "own-type"])
def test_consent_measures_folder_code(release, site, tmp_path, kind):
    release(BY_NAME["mlx-lm 0.32.2"])
    site.write("mlx_lm/utils.py")
    folder = write_llama(tmp_path, model_file="own.py", model_type=kind)
    assert mlx_patches.audit(folder).exit_code() == 2
    measured = {"set": "mlx-lm 0.32.2", "versions": {}, "note": "a note"}
    measured |= {part: {kind: {"left-padded": "r"}} for part in ("without", "with")}
    report = audit.audit(folder, evidence={"mlx-lm": measured})
    assert (report.verdicts[0].verdict, report.exit_code()) == ("wrong", 1)
    assert report.verdicts[0].note == "a note"
    assert "recommend" not in "\n".join(screen.commands(report))


def test_timed_out_scenario_is_judged_by_family(release, tmp_path):
    release(BY_NAME["mlx-lm 0.31.3"])
    cells = {"llama": {"left-padded": "g"}}
    message = "mlx-lm: 20 scenarios did not end within 26 s"
    measured = {"set": "mlx-lm 0.31.3", "versions": {}, "without": cells, "with": cells}
    folder = write_llama(tmp_path, layer_types=["full_attention"])
    for note, verdict_, wrong in (
        ("", words.RIGHT, set()),
        (message, "repaired", {"processors", "samplers"}),
    ):
        report = audit.audit(folder, evidence={"mlx-lm": {**measured, "note": note}})
        (one,) = report.verdicts
        assert (one.verdict, {cell.name for cell in one.wrong}) == (verdict_, wrong)
        assert one.note == (note and f"{message}: these are judged as in other llama models")


def test_measured_scenario_names_patches(release, tmp_path):
    evidence = BY_NAME["mlx-lm 0.31.3"]
    release(evidence)
    (needed,) = evidence["needs"]["llama"]["processors"]
    cells = {"left-padded": "g", "processors": "r"}
    measured = {
        "set": "mlx-lm 0.31.3",
        "versions": {},
        "note": "",
        "without": {"llama": cells},
        "with": {"llama": dict.fromkeys(cells, "g")},
    }
    folder = write_llama(tmp_path, layer_types=["full_attention"])
    report = audit.audit(folder, evidence={"mlx-lm": measured})
    assert list(screen.effects(report)) == [needed]
    assert any(line.startswith(f"  {needed} ") for line in screen.lines(report))


MEASURED = {
    "set": "mlx-lm 9.9.9",
    "versions": {"mlx-lm": "9.9.9"},
    **letters(
        {
            "fine": {"merge": "gg"},
            "text": {"merge": "rg", "trim": "gg"},
            "dies": {"merge": "rg"},
            "untraced": {"merge": "rg"},
            "partly": {"merge": "rg", "trim": "rr"},
            "window": {"merge": "gg", "max-kv-size": "rg"},
            "unknown": {"merge": "gg", "max-kv-size": "rg"},
            "alone": {"chunked-solo": "gg", "merge": "nn"},
            "blunt": {"merge": "ii"},
        }
    ),
    "details_without": {
        "text": {"merge": "row 0, token 12: differs by 0.2 of the logits' scale"},
        "dies": {"merge": "ValueError: shapes (mlx_lm/models/cache.py:1)"},
        "partly": {"merge": "row 0: NaN", "trim": "ValueError: no (mlx_lm/models/a.py:1)"},
    },
    "needs": {
        "text": {"merge": ["of-masks"]},
        "dies": {"merge": ["of-joins"]},
        "partly": {"merge": ["of-masks"]},
        "window": {"max-kv-size": ["of-windows"]},
    },
}


def judge_family(family, **more):
    measured = verdict.Measured(MEASURED, **more)
    return verdict.judge(measured, "mlx-lm", "9.9.9", family, lambda: [WRONG, FEATURE])


IDLE = PatchState(False, frozenset({"of-masks", "of-joins", WRONG, "of-windows"}))
ACTIVE = PatchState(True)


@pytest.mark.parametrize(
    ("family", "word", "idle", "active", "patches"),
    [
        ("text", "repaired", 1, 0, ("of-masks",)),
        ("dies", "repaired", 1, 0, ("of-joins",)),
        ("untraced", "repaired", 1, 0, (WRONG, FEATURE)),
        ("partly", "wrong", 1, 1, ("of-masks",)),
        ("window", "right", 0, 0, ("of-windows",)),
        ("alone", "cannot batch", 0, 0, ()),
        ("unknown", "right", 0, 0, (FEATURE,)),
        ("blunt", "not measured", 2, 2, (WRONG, FEATURE)),
        ("nowhere", "not measured", 2, 2, (WRONG, FEATURE)),
    ],
)
def test_verdict_follows_cells(family, word, idle, active, patches):
    one = judge_family(family)
    assert (one.verdict, one.patches) == (word, patches)
    assert (one.exit_code(IDLE), one.exit_code(ACTIVE)) == (idle, active)


def list_repaired(name):
    """Each family's verdict, and its repaired cells with the patches that they need."""
    evidence = BY_NAME[name]
    for family in evidence["without"]:
        one = verdict.judge(verdict.Measured(evidence), *name.split(), family)
        yield family, one, {cell.name: cell.needs for cell in one.cells if cell.pair == "rg"}


# Slow, since the cells of a deleted patch have no other until they are measured again.
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OFTEN))
def test_repaired_cells_are_traced_to_patches(name):
    assert [family for family, _, cells in list_repaired(name) if not all(cells.values())] == []


@pytest.mark.parametrize("name", sorted(OFTEN))
def test_disabled_patch_is_listed_with_its_cells(name):
    for family, one, repaired in list_repaired(name):
        assert set().union(*repaired.values()) <= set(one.patches)
        for id_ in one.patches:
            here = PatchState(True, frozenset([id_]))
            listed = {cell.name for cell in one.wrong_here(here)}
            assert listed >= {cell for cell, ids in repaired.items() if id_ in ids}, family
            severe = any(cell.severity in words.FAIL_ON for cell in one.wrong_here(here))
            assert one.verdict != words.REPAIRED or one.exit_code(here) == int(severe), family
        assert not any(cell.pair == "rg" for cell in one.wrong_here(ACTIVE))


def test_companion_keeps_right_scenario_right():
    evidence = {**MEASURED, "companions": {"text": {"trim": ["of-chains"]}}}
    one = verdict.judge(verdict.Measured(evidence), "mlx-lm", "9.9.9", "text")
    assert one.patches == ("of-masks", "of-chains")
    assert not one.wrong_here(ACTIVE)
    missing = frozenset({"of-chains"})
    assert [cell.name for cell in one.wrong_here(PatchState(True, missing))] == ["trim"]
    assert "trim" not in {cell.name for cell in one.wrong_here(PatchState(False, missing))}


def test_severity_and_missing_patches_decide():
    assert judge_family("text").exit_code(PatchState(True, frozenset({"of-joins"}))) == 0
    assert judge_family("dies").exit_code(PatchState(True, frozenset({"of-joins"}))) == 1

    text, dies = judge_family("text"), judge_family("dies")
    assert (text.wrong[0].severity, dies.wrong[0].severity) == ("wrong-text", "crash")
    assert dies.exit_code(IDLE, {"wrong-text"}) == 0
    assert text.exit_code(IDLE, {"wrong-text"}) == 1
    assert "gives wrong text" in verdict.headline(text, IDLE)
    assert "crashes" in verdict.headline(dies, IDLE)
    assert judge_family("alone").exit_code(IDLE, EVERY) == 1  # of severity `feature`

    one = judge_family("window")
    assert verdict.headline(one, IDLE) == (
        "window is right in a batch here (mlx-lm 9.9.9): 1 of 2 scenarios, except max_kv_size in"
        " a batch"
    )
    assert verdict.headline(one, ACTIVE) == (
        "window is right in a batch here (mlx-lm 9.9.9): 2 of 2 scenarios"
    )
    assert one.exit_code(IDLE, EVERY) == 1


@pytest.mark.parametrize(
    ("family", "idle", "active"),
    [
        (
            "fine",
            "fine gives wrong text here (mlx-lm 9.9.9), even for a single request",
            "fine is repaired here (mlx-lm 9.9.9): as released it gives wrong text, even"
            " for a single request",
        ),
        (
            "text",
            "text gives wrong text here (mlx-lm 9.9.9), even for a single request; 1 of 2 batch"
            " scenarios is wrong, all repaired by the patches",
            "text is repaired here (mlx-lm 9.9.9): 1 of 2 scenarios is wrong as released",
        ),
    ],
)
def test_wrong_solo_is_not_right_in_batch(family, idle, active):
    one = judge_family(family, solo=("of-experts",))
    here = PatchState(False, IDLE.missing | {"of-experts"})
    assert "of-experts" in one.patches
    assert (one.exit_code(here), one.exit_code(ACTIVE)) == (1, 0)
    assert (verdict.headline(one, here), verdict.headline(one, ACTIVE)) == (idle, active)
    assert one.as_dict(here)["wrong_solo"]
    assert one.exit_code(here, ["crash"]) == 0


def test_scenario_is_named_once():
    """Its places are named only if a CPU in float32 is not among them."""
    names = ["trim@cuda", "trim", "merge@bfloat16", "growth@cuda", "growth@bfloat16"]
    cells = [verdict.CellVerdict(name, "rg", "wrong-text", None) for name in names]
    texts = [words.scenario(name).words for name in ("trim", "merge", "growth")]
    assert verdict.scenarios_of(cells) == [
        texts[0],
        f"{texts[1]} (bfloat16)",
        f"{texts[2]} (bfloat16, cuda)",
    ]


def test_scenarios_and_severities_are_known():
    from mlx_patches.lab.scenarios import SCENARIOS

    measured = {name for one in EVIDENCE for cells in one["without"].values() for name in cells}
    scenarios = {words.place_of(name)[0] for name in measured}
    assert scenarios - {"build", "process"} <= set(SCENARIOS)
    assert set(SCENARIOS) == set(words.SCENARIOS) - {"process"}
    assert {one.severity for one in words.SCENARIOS.values()} <= set(words.SEVERITIES)
    assert len({one.words for one in words.SCENARIOS.values()}) == len(words.SCENARIOS)

    assert {patch.severity for patch in catalogue.builtin()} == set(words.SEVERITIES)


@pytest.mark.parametrize("active", [False, True], ids=["idle", "active"])
@pytest.mark.parametrize("evidence", SETS)
def test_screen_fits_twenty_lines(release, evidence, active):
    release(evidence, active)
    for model in (None, *list(evidence["without"])[::9]):
        report = mlx_patches.audit(model)
        lines = screen.lines(report)
        assert len(lines) <= 20, model
        assert max(map(len, lines)) <= 80, model
        assert lines[0] == screen.top(report)[0][0]
        text = "\n".join(lines)
        assert screen.describe_places(report) in text and "Environment: " in text
        assert screen.rows(lines) <= 20
        fixes = [line for line in lines if line.startswith("Fix: ")]
        # A leak or a missing feature is no finding by default, but the screen shows the command.
        open_ = [cell for one in report.verdicts for cell in one.wrong_here(report.here())]
        quiet = model is not None and any(cell.severity not in words.FAIL_ON for cell in open_)
        # Nor are unmeasured scenarios, although patches may be needed.
        maybe = report.exit_code() == 2 and bool(screen.effects(report))
        assert len(fixes) == (report.exit_code() == 1 or quiet or maybe), model
        assert not active or not any("enable" in line for line in fixes), model


def test_facts_are_shown_whole_or_dropped(monkeypatch):
    texts = [f"fact {n} {'word ' * 40}end {n}" for n in range(9)]
    monkeypatch.setattr(screen, "facts", lambda report: iter(texts))
    text = " ".join(" ".join(screen.lines(report_of(judge_family("fine")))).split())
    shown = [n for n in range(9) if f"fact {n} " in text]
    assert 0 < len(shown) < 9
    assert all(f"end {n}" in text for n in shown)


@pytest.mark.parametrize(
    "width",
    [pytest.param(40, marks=pytest.mark.slow), 80, pytest.param(200, marks=pytest.mark.slow)],
)
def test_screen_shows_whole_sentences(release, width):
    evidence = next(one for one in EVIDENCE if one["set"] == "mlx-vlm 0.7.10")
    release(evidence)
    for model in (None, *list(evidence["without"])[::27]):
        report = mlx_patches.audit(model)
        lines = screen.lines(report, width=width)
        text = " ".join(" ".join(lines).split())
        shown = {id_ for id_ in screen.effects(report) if f"  {id_}" in "\n".join(lines)}
        for fact in screen.facts(report):
            assert " ".join(fact.split()[:5]) not in text or fact in text
        assert all(effect in text for id_, effect in screen.effects(report).items() if id_ in shown)
        missing = len(screen.effects(report)) - len(shown)
        assert bool(missing) <= ("More (-v): " in text), model
        assert screen.rows(lines, width) <= 20 or width < 80


@pytest.fixture
def mlx_lm(site):
    """mlx-lm 0.32.2 as pip leaves it, without code."""
    site.install("mlx", "0.32.4")
    info = site.install("mlx-lm", "0.32.2")
    for module in ("cache", "base", "qwen3"):
        site.write(f"mlx_lm/models/{module}.py")
    site.write("mlx_lm/generate.py")
    (info / "RECORD").write_text("mlx_lm/models/cache.py,,\nmlx_lm/generate.py,,\n")
    return site


def test_no_audit_without_mlx(site):
    report = mlx_patches.audit()
    assert report.exit_code() == 2
    assert screen.verdict(report).startswith("Nothing could be audited: no known MLX package")
    assert len(screen.lines(report)) <= 20


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda root: (root / "mlx_lm-0.32.2.dist-info" / "METADATA").unlink(), "no metadata"),
        (
            lambda root: (root / "mlx_lm-0.32.2.dist-info" / "METADATA").write_text(
                "Metadata-Version: 2.1\nName: mlx-lm\nVersion: banana\n"
            ),
            "no valid version: 'banana'",
        ),
        (lambda root: (root / "mlx_lm/models/cache.py").unlink(), "models.cache is missing"),
        (lambda root: (root / "mlx_lm/generate.py").unlink(), "generate.py is missing"),
        (lambda root: (root / "mlx_lm/models/cache.py").write_text("def f(:"), "is not Python"),
        (lambda root: (root / "mlx_lm/models/cache.py").write_bytes(b"\0"), "is not Python"),
    ],
)
def test_broken_package_is_not_audited(mlx_lm, monkeypatch, broken, message):
    monkeypatch.setattr(distributions, "_packages", {})
    broken(mlx_lm.root)
    report = mlx_patches.audit()
    assert report.exit_code() == 2
    assert any(message in reason for reason in report.unaudited), report.unaudited
    assert json.loads(json.dumps(report.as_dict()))["exit_code"] == 2


def test_mlx_without_back_end_is_not_audited(mlx_lm, monkeypatch):
    monkeypatch.setattr(distributions, "_packages", {})
    monkeypatch.setenv("PYTHONPATH", str(mlx_lm.root))
    mlx_lm.write("mlx/core.py", "raise ImportError('libmlx.so: cannot open it')")
    (reason,) = mlx_patches.audit("qwen3").unaudited
    assert "cannot be imported (ImportError: libmlx.so: cannot open it): install mlx[c" in reason
    assert mlx_patches.audit().exit_code() == 2
    mlx_lm.write("mlx/core.py", "")
    assert mlx_patches.audit().unaudited == ()


def test_repr_counts_like_the_screen(fake, monkeypatch):
    """One defect, which two targets have."""
    patch = patch_of("attend", "Cache.update")
    monkeypatch.setattr(activation, "_session", session_for(patch, always=["fix"]))
    report = mlx_patches.audit()
    assert len(report.findings) > len(report.open) == 1
    assert repr(report).startswith("<Audit: 1 defect not repaired; exit code 1; ")
    assert screen.verdict(report) == "1 known defect of the installed releases is not repaired here"


def test_hanging_mlx_is_not_audited(mlx_lm, monkeypatch):
    monkeypatch.setattr(distributions, "_packages", {})
    monkeypatch.setattr(preflight, "IMPORT_SECONDS", 1)
    monkeypatch.setenv("PYTHONPATH", str(mlx_lm.root))
    mlx_lm.write("mlx/core.py", "import time; time.sleep(60)")
    begun = time.monotonic()
    report = mlx_patches.audit("qwen3")
    assert report.exit_code() == 2
    assert report.unaudited == ("mlx 0.32.4 was not imported within 1 s: see why its import waits",)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("own", [None, "", "/no/such/python3", "/usr/bin/env"])
def test_python_of_an_embedding_program(mlx_lm, monkeypatch, own, tmp_path):
    monkeypatch.setattr(distributions, "_packages", {})
    monkeypatch.setenv("PYTHONPATH", str(mlx_lm.root))
    mlx_lm.write("mlx/core.py", "raise ImportError('planted')")
    monkeypatch.setattr(sys, "executable", own)
    (reason,) = mlx_patches.audit("qwen3").unaudited
    assert "cannot be imported (ImportError: planted)" in reason
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (reason,) = mlx_patches.audit("qwen3").unaudited
    assert f" was not tried: no Python in {tmp_path}: " in reason


def test_package_of_other_distribution(mlx_lm, monkeypatch):
    """Rapid-MLX installs its own package named ``vllm_mlx``."""
    monkeypatch.setattr(distributions, "_packages", {})
    info = mlx_lm.install("rapid-mlx", "0.16.10", files={"vllm_mlx/__init__.py": ""})
    assert any("vllm_mlx exists" in reason for reason in mlx_patches.audit().unaudited)
    (info / "top_level.txt").write_text("vllm_mlx\n")
    assert mlx_patches.audit().unaudited == ()


def test_invalid_model_file_is_not_audited(mlx_lm, monkeypatch):
    monkeypatch.setattr(distributions, "_packages", {})
    assert mlx_patches.audit("qwen3").unaudited == ()
    (mlx_lm.root / "mlx_lm/models/qwen3.py").write_text("<html>")
    assert "not Python" in mlx_patches.audit("qwen3").unaudited[0]


HELD = {
    "outside": "transformers 5",
    "without": {"qwen3": {"plain old": "g", "yarn old": "r", "plain": "r", "window": "g"}},
    "with": {"qwen3": {"plain old": "g", "yarn old": "r", "plain": "g", "window": "g"}},
    "crash": {"qwen3": ["plain"]},
    "needs": {"qwen3": {"plain": ["of-ropes"]}},
}
YARN = {"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
NEW = {"model_type": "qwen3", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}


@pytest.fixture
def qwen3(release, tmp_path, monkeypatch):
    """Audits qwen3, or a folder of it, in a release that was compared with transformers."""
    folder = tmp_path / "held"
    folder.mkdir()
    (folder / "mlx-lm-0.32.2.json").write_text(json.dumps(HELD))
    real = outside.folder
    monkeypatch.setattr(outside, "folder", lambda n: folder if n == "reference" else real(n))
    outside.read_compared.cache_clear()

    def audit_config(config=None, active=False):
        release(BY_NAME["mlx-lm 0.32.2"], active)
        if config is None:
            return mlx_patches.audit("qwen3")
        (tmp_path / "config.json").write_text(json.dumps(config))
        return mlx_patches.audit(str(tmp_path))

    yield audit_config
    outside.read_compared.cache_clear()


def test_right_in_batch_wrong_solo(qwen3):
    report = qwen3(YARN)
    message = screen.verdict(report)
    assert message.startswith("qwen3 is right in a batch here (mlx-lm 0.32.2)")
    assert message.endswith("; a single request differs from transformers 5 (rope type yarn)")
    assert report.exit_code() == 1 and message in report.findings
    (one,) = report.as_dict()["verdicts"]
    assert one["wrong_solo"] and one["solo"]["wrong_here"] == ["yarn old"]


def test_accepted_defect_hides_no_other(qwen3, monkeypatch):
    """A single request crashes, which was traced to no patch."""

    def audit_untraced():
        report = qwen3(NEW)
        (one,) = report.verdicts
        defects = tuple(cell._replace(needs=()) for cell in one.defects)
        return dataclasses.replace(report, verdicts=(dataclasses.replace(one, defects=defects),))

    report = audit_untraced()
    assert report.exit_code(fail_on=["crash"]) == 1
    for ids in (["rotating-keep"], report.needed):
        ignoring = report.ignoring(ids)
        assert ignoring.exit_code(fail_on=["crash"]) == 1
        assert "accepted by --ignore: rotating-keep" in screen.facts(ignoring)
    monkeypatch.setenv("MLX_PATCHES", "0")
    assert audit_untraced().ignoring(["rotating-keep"]).exit_code(fail_on=["crash"]) == 0


@pytest.mark.parametrize(
    ("cell", "message", "codes"),
    [
        (outside.HeldCell("own-prefill", "rr"), "decodes differently from its own prefill", (1, 1)),
        (outside.HeldCell("own-prefill", "rg", True), "crashes (chunked prefill)", (1, 0)),
        (outside.HeldCell("own-prefill", "gg"), "", (0, 0)),
    ],
)
def test_own_prefill_counts_as_solo(cell, message, codes):
    one = judge_family("fine", prefill=cell)
    for here, code in zip((IDLE, verdict.PatchState(True)), codes, strict=True):
        assert (message in verdict.describe_single(one, here) and bool(message)) is bool(code)
        assert one.exit_code(here) == code and one.as_dict(here)["wrong_solo"] is bool(code)
    assert one.as_dict(IDLE)["own_prefill"] == {
        "wrong": cell.pair[0] == "r",
        "wrong_with_patches": cell.pair[1] == "r",
    }


def with_images(whole, chunked="", crash=False, family="fine"):
    letters = {outside.FEATURES: whole, outside.CHUNKED: chunked or whole}
    cells = [outside.HeldCell(name, pair, crash) for name, pair in letters.items()]
    return dataclasses.replace(judge_family("fine", images=(*cells,)), family=family)


# A family that no patch repairs with images, in this release set, and why.
LEFT, LEFT_SET = "youtu_vl", "mlx-vlm 0.6.5"
REASON = outside.IMAGES_WHY[LEFT]
WITH_PATCHES = f"even with the patches: {REASON}"


@pytest.mark.parametrize(
    ("one", "idle", "active", "codes"),
    [
        (
            with_images("rg", crash=True),
            "a batch with images crashes, which the patches repair",
            "images in a batch are repaired too",
            (1, 0),
        ),
        (
            with_images("gg", "rg"),
            "a batch with images in chunked prefill gives wrong text, which the patches repair",
            "images in a batch are repaired too",
            (1, 0),
        ),
        (
            with_images("rr", family=LEFT),
            f"a batch with images gives wrong text, {WITH_PATCHES}",
            f"a batch with images gives wrong text, {WITH_PATCHES}",
            (1, 1),
        ),
        (
            with_images("rg", "rr", family=LEFT),
            f"a batch with images gives wrong text, in chunked prefill {WITH_PATCHES}",
            f"a batch with images in chunked prefill gives wrong text, {WITH_PATCHES}",
            (1, 1),
        ),
        (with_images("gg"), "", "", (0, 0)),
    ],
)
def test_image_batch_counts(one, idle, active, codes):
    for here, message, code in zip((IDLE, ACTIVE), (idle, active), codes, strict=True):
        text = verdict.headline(one, here)
        scenarios = f"{one.family} is right in a batch here (mlx-lm 9.9.9): 1 of 1 scenarios"
        assert text == (f"{scenarios}; {message}" if message else scenarios)
        assert (one.verdict, one.exit_code(here)) == (words.RIGHT, code)
        assert one.exit_code(here, ["memory"]) == 0


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (outside.HeldCell("features-solo", "rg"), "gives wrong text"),
        (outside.HeldCell("features-solo", "rg", crash=True), "crashes"),
    ],
)
def test_chunked_images_count_as_solo(cell, message):
    right = outside.HeldCell("features", "gg")
    one = judge_family("fine", images=(right, cell))
    text = f"; a single request {message} for images in chunked prefill"
    assert verdict.headline(one, IDLE).endswith(text) and one.exit_code(IDLE) == 1
    assert "single request" not in verdict.headline(one, ACTIVE) and one.exit_code(ACTIVE) == 0
    assert verdict.with_images(one, IDLE) == ""


def test_image_patches_are_needed():
    cell = outside.HeldCell("features", "rg", needs=("of-images",))
    one = judge_family("fine", images=(cell,))
    assert one.patches == ("of-images",)
    assert one.exit_code(PatchState(True, frozenset({"of-images"}))) == 1
    assert one.exit_code(PatchState(True, frozenset({"of-masks"}))) == 0
    cell = outside.HeldCell("features", "rg")
    one = judge_family("window", images=(cell,))
    assert one.fails_with_images(ACTIVE) == ()
    assert one.fails_with_images(PatchState(True, frozenset({"of-windows"})))


def report_of(*verdicts, model=None):
    audited = model and audit.ModelReport(model, None, {}, True, {"mlx-lm": model})
    return audit.Audit((), (), (), {}, False, audited, verdicts=verdicts)


@pytest.mark.parametrize(("pair", "code"), [("rg", 0), ("rr", 1)])
def test_unrepaired_images_count_when_strict(pair, code):
    report = report_of(with_images(pair))
    assert (report.exit_code(), report.exit_code(strict=True)) == (0, code)


IMAGES_SAID = [
    (
        "mlx-vlm 0.5.0",
        "qwen3_vl",
        "; a batch with images gives wrong text, which the patches repair",
        "; images in a batch are repaired too",
        0,
    ),
    (
        LEFT_SET,
        LEFT,
        f"; a batch with images crashes, {WITH_PATCHES}",
        f"; a batch with images crashes, {WITH_PATCHES}",
        1,
    ),
    ("mlx-vlm 0.7.10", "llama", "", "", 0),
]


@pytest.mark.parametrize(("name", "family", "idle", "active", "code"), IMAGES_SAID)
def test_audit_has_image_evidence(release, name, family, idle, active, code):
    evidence = BY_NAME[name]
    for enabled, message in ((False, idle), (True, active)):
        release(evidence, enabled)
        report = mlx_patches.audit(family)
        (one,) = report.verdicts
        assert verdict.with_images(one, report.here()) == message
        text = " ".join(screen.top(report)[0])
        assert message in text and ("images" in text) is bool(message)
        whole = next(one for one in mlx_patches.audit().verdicts if one.family == family)
        assert whole.measured.images == one.measured.images
    assert report.exit_code() == code


def test_crash_does_not_hide_wrong_text():
    crash = outside.HeldCell("plain old", "rr", True)
    held = outside.Held("transformers 5", (outside.HeldCell("plain", "gg"), crash))
    prefill = outside.HeldCell("own-prefill", "rr")
    one = judge_family("fine", held=held, prefill=prefill)
    assert verdict.describe_single(one, IDLE) == (
        "; a single request decodes differently from its own prefill and crashes (published config)"
    )


@pytest.mark.parametrize(
    ("pair", "word"),
    [
        ("rg", "right"),
        ("rr", "wrong"),
        ("rn", "not applicable"),
        ("r", "not measured"),
        ("ri", "not measured"),
    ],
)
def test_table_has_the_result_with_the_patches(pair, word):
    """As the page: a patch that refuses a batch does not make it right."""
    cell = verdict.CellVerdict("trim", pair, words.WRONG_TEXT, None)
    assert screen._scenario(cell, True)[2] == word


@pytest.mark.parametrize("config", [{"model_type": "qwen3", "rope_theta": 1e6}, None])
def test_right_config_is_not_blamed(qwen3, config):
    report = qwen3(config)
    assert "single request" not in screen.verdict(report) and report.exit_code() == 0
    # The count is of the model type, also for a folder: two other configs differ.
    count = "2 of 4 configs (others: -v)"
    assert f"Single requests match transformers 5 in {count}." in screen.lines(report)


def test_load_failure_is_repaired(qwen3):
    before, after = qwen3(NEW), qwen3(NEW, active=True)
    assert screen.verdict(before).endswith("; a single request crashes (current config format)")
    assert before.exit_code() == 1
    assert "single request" not in screen.verdict(after) and after.exit_code() == 0


def wrong_with(config, pair, needs=()):
    cell = outside.HeldCell(config, pair, needs=needs)
    held = outside.Held("transformers 5", (outside.HeldCell("plain old", "gg"), cell))
    return verdict.ModelVerdict(
        "qwen3",
        "mlx-lm",
        "1.0",
        words.GREEN,
        verdict.Measured(held=held),
        defects=(cell,),
        own=True,
    )


@pytest.mark.parametrize(("pair", "fixed"), [("rg", True), ("rr", False)])
def test_solo_repair_has_command(pair, fixed):
    report = report_of(wrong_with("yarn old", pair), model="qwen3")
    is_shown = "Fix:   mlx-patches enable   Undo: mlx-patches disable" in screen.commands(report)
    assert is_shown is fixed


@pytest.mark.parametrize("model", [None, "qwen3"])
def test_switched_off_patch_is_fixed_by_unset(model):
    one = wrong_with("plain old", "rg", (WRONG,))
    off = Outcome(
        WRONG,
        "mlx-lm",
        "mlx_lm.models.rope_utils:initialize_rope",
        Status.DISABLED,
        "switched off by MLX_PATCHES",
        True,
    )
    found = model and audit.ModelReport("qwen3", None, {WRONG: "alone"}, True, {"mlx-lm": "qwen3"})
    report = audit.Audit((), (), (off,), {}, False, found, verdicts=(one,))
    assert screen.commands(report)[0] == "Fix:   unset MLX_PATCHES"


def test_missing_patch_of_other_model_is_ignored(monkeypatch):
    run = {"jamba": {"mlx_lm.models.jamba"}, "mamba": {"mlx_lm.models.mamba"}}
    monkeypatch.setattr(verdict, "_modules_of", lambda package, family: run[family])
    here = PatchState(True, frozenset({"a"}), {"a": ["mlx_lm.models.mamba"]})
    for family, lacks in (("jamba", False), ("mamba", True)):
        one = verdict.ModelVerdict(family, "mlx-lm", "1.0", words.REPAIRED)
        assert here.lacks("a", one) is lacks
