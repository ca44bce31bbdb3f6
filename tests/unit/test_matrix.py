import json

import matrix_file
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from mlx_patches import MlxPatchesError
from mlx_patches.core.packages import UNMEASURED
from mlx_patches.matrix import matrix as matrix_module
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

from .conftest import document

OTHER = {"affected": ">=1.0"}
FIX = {
    "affected": ">=1.0,<2.0",
    "fixed": ">=2.0",
    "bodies": {"C.f": {"affected": ["0123456789abcdef"], "sound": ["fedcba9876543210"]}},
}
BROKEN_SET = {
    "when": {"fake-lm": "<1.0", "mlx": ">=2"},
    "reason": "they cannot work together",
    "remedy": "install fake-lm 1.0",
}
GOOD = document(
    releases={"fake-lm": ["0.9", "1.0", "2.0"]},
    always=["fix"],
    patches={"fix": {"fake-lm": FIX}, "other": {"fake-lm": OTHER}},
    models={"default": {}, "gemma": {"fake-lm": ["fix", "other"]}},
    broken_sets=[BROKEN_SET],
)


def load(**changes):
    return CompatMatrix({**GOOD, **changes})


def test_lookups():
    matrix = load()
    assert matrix.patches == ("fix", "other")
    assert matrix.models == ("gemma",)
    assert matrix.always == ("fix",)
    assert matrix.releases == {"fake-lm": ("0.9", "1.0", "2.0")}

    rule = load().rule("fix", "fake-lm")
    assert rule.affected == ">=1.0,<2.0"
    assert rule.fixed == ">=2.0"
    assert rule.affected_bodies == {"C.f": {"0123456789abcdef"}}
    assert rule.sound_bodies == {"C.f": {"fedcba9876543210"}}
    assert rule.releases == ("0.9", "1.0", "2.0")
    assert [rule.decide(v) for v in ("0.9", "1.0", "2.0")] == ["clear", "affected", "fixed"]

    matrix = load()
    assert matrix.rule("fix", "other-lm") is None
    assert matrix.rule("none", "fake-lm") is None


def test_rows():
    default = {"fake-lm": ["other"], "other-lm": ["fix"]}
    matrix = load(models={**GOOD["models"], "default": default, "empty": {"fake-lm": []}})
    assert matrix.patches_for("gemma", "fake-lm") == ("fix", "other")
    assert matrix.patches_for("gemma", "other-lm") == ("fix",)  # not measured there
    assert matrix.patches_for("unknown", "fake-lm") == ("other",)
    assert matrix.patches_for("empty", "fake-lm") == ()
    assert matrix.models == ("gemma", "empty")


@pytest.mark.parametrize(
    ("versions", "broken"),
    [
        ({"fake-lm": "0.9", "mlx": "2.1"}, True),
        ({"fake-lm": "0.9.dev1+g1", "mlx": "2.1"}, True),
        ({"fake-lm": "1.0", "mlx": "2.1"}, False),
        ({"fake-lm": "0.9", "mlx": "1.9"}, False),
        ({"fake-lm": "0.9"}, False),
        ({"fake-lm": "unknown", "mlx": "2.1"}, False),
        ({}, False),
    ],
)
def test_broken_sets(versions, broken):
    (one,) = load().broken_sets
    assert one.matches(versions) is broken
    assert one.remedy == "install fake-lm 1.0"


TABLES = """\
[[broken_sets]]
when = {fake-lm = "<1.0", mlx = ">=2"}
reason = "they cannot work together"
remedy = "install fake-lm 1.0"

[[warnings]]
when = {mlx = ">=3"}
effect = "a server stops"
remedy = "install mlx 2"
threads = ["a/b#1"]
"""


def test_tables_are_read(tmp_path):
    file = tmp_path / "known_defects.toml"
    file.write_text(TABLES)
    tables = matrix_file.read_defects(file)
    assert tables["broken_sets"] == [BROKEN_SET]
    assert [one["threads"] for one in tables["warnings"]] == [["a/b#1"]]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[[warnings]]", "[[warning]]", "it has the tables broken_sets, warnings, and no others"),
        ("[[warnings]]", "[warnings]", "entry 1 of warnings: "),
        ("remedy = ", "remedies = ", "entry 1 of broken_sets: got an unexpected keyword"),
        ('effect = "a server stops"\n', "", "entry 1 of warnings: missing 1 required"),
        ('threads = ["a/b#1"]', "threads = []", "threads is not a filled list: []"),
        ('threads = ["a/b#1"]', 'threads = "a/b#1"', "threads is not a filled list: 'a/b#1'"),
        ('"a server stops"', "3", "effect is not a filled str: 3"),
        ('"<1.0"', '"below 1"', "when.fake-lm is not a version range: 'below 1'"),
        ('"<1.0"', "1.0", "when.fake-lm is not a version range: 1.0"),
        ('{fake-lm = "<1.0", mlx = ">=2"}', "{}", "when is not a filled dict: {}"),
        ('mlx = ">=2"}', 'mlx = ">=2"', "at line 2"),
    ],
)
def test_mistake_names_file_and_key(tmp_path, old, new, problem):
    assert old in TABLES
    file = tmp_path / "known_defects.toml"
    file.write_text(TABLES.replace(old, new, 1))
    with pytest.raises(SystemExit) as raised:
        matrix_file.read_defects(file)
    message = str(raised.value)
    assert message.startswith(f"{file}: ")
    assert problem in message
    assert "\n" not in message


def test_missing_file_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"none\.toml: No such file"):
        matrix_file.read_defects(tmp_path / "none.toml")


def test_yaml_holds_whole_document():
    assert yaml.safe_load(matrix_file.MATRIX.read_text()) == matrix_file.document()


@pytest.mark.parametrize("text", ["1234567890123456", "1e10", "0.5", "a: b", "a #b", '"a"', "- a"])
def test_strings_stay_strings(text):
    content = {**GOOD, "warnings": [], "measured": {}, "always": [text]}
    assert yaml.safe_load(matrix_file.yaml_text(content))["always"] == [text]


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    file = tmp_path / "compiled.json"
    file.write_text(matrix_file.compile_text(GOOD))
    monkeypatch.setattr(matrix_module, "COMPILED", file)
    return file


def test_compiled_form_covers_measured_releases(compiled):
    matrix = CompatMatrix.builtin()
    assert matrix.patches == ("fix", "other")
    rule = matrix.rule("fix", "fake-lm")
    assert (rule.releases, rule.decided) == (("0.9", "1.0", "2.0"), "caf")
    assert [rule.decide(release) for release in rule.releases] == ["clear", "affected", "fixed"]


BROKEN = [None, "", "{", "[]", "3", "{}", '{"format": 1, "document": {}}', '{"format": 4}']


@pytest.mark.parametrize("content", [*BROKEN, '{"format": 4, "document": {}}'])
def test_damaged_compiled_file_is_one_line(compiled, content):
    compiled.unlink() if content is None else compiled.write_text(content)
    with pytest.raises(MlxPatchesError) as raised:
        CompatMatrix.builtin()
    assert str(raised.value).startswith(f"{compiled}: ")
    assert str(raised.value).endswith(": reinstall mlx-patches")
    assert str(raised.value).isprintable()


numbers = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda n: ".".join(map(str, n)))
suffixes = st.sampled_from(["", "", "", "rc1", ".dev1", ".post1", "a2", "rc1.dev3"])
public = st.builds(str.__add__, numbers, suffixes)
local = st.sampled_from(["", "+g123", "+cpu.1"])
operators = st.sampled_from([">=", "<=", "<", ">", "==", "!="])
compatible = st.builds("~={}.{}".format, st.integers(0, 3), st.integers(0, 3))
clauses = st.builds(str.__add__, operators, public) | compatible
ranges = st.lists(clauses, min_size=1, max_size=2).map(",".join)
released = st.lists(public, max_size=6).map(
    lambda vs: [str(v) for v in sorted({Version(v) for v in vs})]
)


def both_forms(releases, affected, fixed):
    rule = {"affected": affected, "fixed": fixed}
    content = document(releases={"fake-lm": releases}, patches={"fix": {"fake-lm": rule}})
    plain = CompatMatrix(content)
    compiled = CompatMatrix(json.loads(json.dumps(matrix_file.compile_document(content))))
    return plain.rule("fix", "fake-lm"), compiled.rule("fix", "fake-lm")


@given(released, ranges, st.one_of(st.just(""), ranges), public, local)
def test_compiled_and_plain_answer_alike(releases, affected, fixed, version, part):
    plain, compiled = both_forms(releases, affected, fixed)
    for number in (*releases, version, version + part):
        assert plain.decide(number) == compiled.decide(number)


@pytest.fixture(scope="module")
def ours():
    return matrix_file.load()


def test_builtin_matrix_has_builtin_patches(ours):
    measured = {
        patch.id
        for patch in catalogue.builtin()
        if any(not t.supports and t.distribution not in UNMEASURED for t in patch.targets)
    }
    assert set(ours.patches) == measured
    unmeasured = {"template-sandbox", "host-schema-refs", "host-tool-results", "rapid-logprobs"}
    unmeasured |= {"openai-server-answers", "openai-server-hang-up"}
    assert set(catalogue.builtin().ids()) - measured == unmeasured

    for patch in catalogue.builtin():
        rules = ours._document["patches"].get(patch.id, {})
        assert set(rules) <= {t.distribution for t in patch.targets}
