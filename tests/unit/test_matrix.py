"""The matrix: its look-ups, and the errors for mistakes in the file."""

from __future__ import annotations

import json

import matrix_file
import plain_yaml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from mlx_patches import MlxPatchesError
from mlx_patches.matrix import matrix as matrix_module
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

from .conftest import document

GOOD = """\
schema: 1
releases:
  fake-lm: ["0.9", "1.0", "2.0"]
always: [fix]
patches:
  fix:
    fake-lm:
      affected: ">=1.0,<2.0"
      fixed: ">=2.0"
      bodies:
        C.f: {affected: ["0123456789abcdef"], sound: ["fedcba9876543210"]}
  other:
    fake-lm: {affected: ">=1.0"}
models:
  default: {}
  gemma: {fake-lm: [fix, other]}
broken_sets:
  - when: {fake-lm: "<1.0", mlx: ">=2"}
    reason: they cannot work together
    remedy: install fake-lm 1.0
"""


@pytest.fixture
def load(tmp_path):
    """Load a matrix from its text; ``load.path`` is the file."""

    def from_text(text):
        from_text.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return matrix_file.load(from_text.path)

    from_text.path = tmp_path / "matrix.yaml"
    return from_text


@pytest.fixture
def said(load):
    """The error message of loading a text, without the file's name."""

    def message(text):
        with pytest.raises(MlxPatchesError) as raised:
            load(text)
        words = str(raised.value)
        assert words.startswith(f"{load.path}: ")
        assert "\n" not in words
        return words.removeprefix(f"{load.path}: ")

    return message


def test_what_it_says(load):
    matrix = load(GOOD)
    assert matrix.patches == ("fix", "other")
    assert matrix.models == ("gemma",)
    assert matrix.always == ("fix",)
    assert matrix.releases == {"fake-lm": ("0.9", "1.0", "2.0")}


def test_rule(load):
    rule = load(GOOD).rule("fix", "fake-lm")
    assert rule.affected == ">=1.0,<2.0"
    assert rule.fixed == ">=2.0"
    assert rule.affected_bodies == {"C.f": {"0123456789abcdef"}}
    assert rule.sound_bodies == {"C.f": {"fedcba9876543210"}}
    assert rule.releases == ("0.9", "1.0", "2.0")
    assert [rule.decide(v) for v in ("0.9", "1.0", "2.0")] == ["clear", "affected", "fixed"]


def test_no_rule(load):
    matrix = load(GOOD)
    assert matrix.rule("fix", "other-lm") is None
    assert matrix.rule("none", "fake-lm") is None


def test_rows(load):
    matrix = load(
        GOOD.replace(
            "default: {}", "default: {fake-lm: [other], other-lm: [fix]}\n  empty: {fake-lm: []}"
        )
    )
    assert matrix.patches_for("gemma", "fake-lm") == ("fix", "other")
    assert matrix.patches_for("gemma", "other-lm") == ("fix",)  # not measured there
    assert matrix.patches_for("unknown", "fake-lm") == ("other",)
    assert matrix.patches_for("empty", "fake-lm") == ()
    assert matrix.models == ("empty", "gemma")


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
def test_broken_sets(load, versions, broken):
    (one,) = load(GOOD).broken_sets
    assert one.matches(versions) is broken
    assert one.remedy == "install fake-lm 1.0"


# -- mistakes --------------------------------------------------------------------------------


def line_of(text, fragment):
    return text[: text.index(fragment)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "key", "problem"),
    [
        ('affected: ">=1.0,<2.0"\n', 'affect: ">=1.0"\n', "patches.fix.fake-lm", "affected"),
        ('["0.9", "1.0", "2.0"]', "[]", "releases.fake-lm", "at least 1 item"),
        ('["0.9", "1.0", "2.0"]', '"0.9"', "releases.fake-lm", "must be array"),
        ("[fix]", "fix", "always", "must be array"),
        ("[fix]", "[Fix]", "always.0", "must match pattern"),
        ('{affected: ">=1.0"}', "[]", "patches.other.fake-lm", "must be object"),
        ('{affected: ">=1.0"}', "{affected: 1}", "patches.other.fake-lm.affected", "string"),
        ('{affected: ">=1.0"}', "{affected: }", "patches.other.fake-lm.affected", "string"),
        ('{affected: ">=1.0"}', '{affected: ">>1"}', "patches.other.fake-lm.affected", ">>1"),
        ('{affected: ">=1.0"}', '{affected: ""}', "patches.other.fake-lm.affected", "empty"),
        ('fixed: ">=2.0"', 'fixed: "2"', "patches.fix.fake-lm.fixed", "Invalid specifier"),
        ('fixed: ">=2.0"', 'repaired: ">=2.0"', "patches.fix.fake-lm", "repaired"),
        ('fixed: ">=2.0"', 'fixed: ">=1.0"', "patches.fix.fake-lm", "1.0 is both affected"),
        ('fixed: ">=2.0"', 'fixed: ">=1.5"', "patches.fix.fake-lm", "1.5 is both affected"),
        ('fixed: ">=2.0"', 'fixed: "!=1.0"', "patches.fix.fake-lm", "1.0.0.1 is both affected"),
        ("[fix]", "[fix, fix]", "always", "unique"),
        ("[fix, other]", "[fix, other, fix]", "models.gemma.fake-lm", "unique"),
        ('"2.0"]', f'"{"2" * 5000}"]', "releases.fake-lm.2", "shorter"),
        ('">=1.0,<2.0"', f'">={"1" * 5000}"', "patches.fix.fake-lm.affected", "shorter"),
        ("fedcba9876543210", "fedc", "patches.fix.fake-lm.bodies.C.f.sound.0", "match pattern"),
        (
            "fedcba9876543210",
            "0123456789abcdef",
            "patches.fix.fake-lm.bodies.C.f",
            "both affected and sound",
        ),
        ("default: {}", "defaults: {}", "models", "default"),
        ("[fix, other]", "[fix, others]", "models.gemma.fake-lm.1", "no patch 'others'"),
        ("[fix]\n", "[fix, nil]\n", "always.1", "no patch 'nil'"),
        ('"1.0", "2.0"', '"2.0", "1.0"', "releases.fake-lm", "oldest first"),
        ('"1.0", "2.0"', '"1.0", "1.0.0"', "releases.fake-lm", "once"),
        ('"1.0", "2.0"', '"1.0", "two"', "releases.fake-lm", "two"),
        ('"<1.0"', '"below 1"', "broken_sets.0.when.fake-lm", "below 1"),
        ('{fake-lm: "<1.0", mlx: ">=2"}', "{}", "broken_sets.0.when", "at least 1"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(said, old, new, key, problem):
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new)
    message = said(text)
    where, _, rest = message.partition(": ")
    assert rest.startswith(f"{key}: "), message
    assert problem in rest
    number = int(where.removeprefix("line "))
    assert key.rstrip(".0123456789").rpartition(".")[2] in text.splitlines()[number - 1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{fake-lm: [fix, other]}", "!row {fake-lm: [fix, other]}"),
        ("[fix, other]", "!!set {fix}"),
        ("[fix, other]", "!ids [fix, other]"),
        ("they cannot", "!!python/object/apply:os.getcwd they cannot"),
        ("they cannot work together", "yes"),
        ("they cannot work together", "2026-01-01"),
        ("they cannot work together", "0x10"),
        ("default: {}", "default: !!python/object:mlx_patches.core.patch.Patch {}"),
    ],
)
def test_tags_and_other_types(said, old, new):
    text = GOOD.replace(old, new)
    assert said(text).startswith(f"line {line_of(text, new)}: ")
    assert "not allowed here" in said(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "document: it must be object"),
        ("# nothing but a comment\n", "document: it must be object"),
        ("just a sentence\n", "document: it must be object"),
        ("- a\n- list\n", "document: it must be object"),
        ("a: b: c\n", "line 1: not valid YAML"),
        ("a: [1, 2\n\nb: 3\n", "line 3: not valid YAML"),
        ('a: "open\n', "not valid YAML"),
        ("---\na: b\n---\nc: d\n", "line 3: not valid YAML"),
        ("a: *b\n", "line 1: not valid YAML"),
        ("? [a, b]\n: c\n", "line 1: a key must be plain text"),
        ("a: \0", "cannot be read"),
        (b"\xff\xfe\xff", "cannot be read"),
        ("[" * 50 + "]" * 50, "line 1: nested more than"),
        ("{a: " * 200_000 + "b" + "}" * 200_000, "line 1: nested more than"),
        (GOOD.replace("always: [fix]\n", ""), "document: it must contain"),
        (GOOD + "notes: none\n", "notes"),
        (GOOD.replace('"0.9"', "0.9"), 'line 3: a number; quote a version: "0.9"'),
        (GOOD + "always: []\n", "line 21: 'always' is a duplicate key"),
        (
            GOOD.replace("[fix]", "&a [fix]").replace("[fix, other]", "*a"),
            "line 4: an alias; write the value out",
        ),
        (GOOD.replace('{affected: ">=1.0"}', '{<<: {affected: ">=1.0"}}'), "affected"),
        (
            "schema: 2\nsomething: [new]\n",
            "schema: version 2 is not known to this mlx-patches (it reads 1); upgrade mlx-patches",
        ),
    ],
)
def test_not_a_matrix_at_all(said, text, problem):
    message = said(text)
    assert problem in message, message


def test_too_large(said, monkeypatch):
    monkeypatch.setattr(plain_yaml, "MAX_BYTES", 100)
    assert said(GOOD) == "larger than 100 bytes; not a matrix"


# -- the compiled form -----------------------------------------------------------------------


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """The compiled form of a matrix, in the place of the shipped one."""
    source, file = tmp_path / "compat_matrix.yaml", tmp_path / "compiled.json"
    source.write_text(GOOD)
    file.write_text(matrix_file.compile_matrix(source))
    monkeypatch.setattr(matrix_module, "COMPILED", file)
    return file


def test_the_compiled_form_has_the_answer_for_each_measured_release(compiled):
    matrix = CompatMatrix.builtin()
    assert matrix.patches == ("fix", "other")
    rule = matrix.rule("fix", "fake-lm")
    assert (rule.releases, rule.decided) == (("0.9", "1.0", "2.0"), "caf")
    assert [rule.decide(release) for release in rule.releases] == ["clear", "affected", "fixed"]


BROKEN = [None, "", "{", "[]", "3", "{}", '{"format": 1, "document": {}}', '{"format": 4}']


@pytest.mark.parametrize("content", [*BROKEN, '{"format": 4, "document": {}}'])
def test_a_damaged_compiled_file_is_one_line_with_a_remedy(compiled, content):
    compiled.unlink() if content is None else compiled.write_text(content)
    with pytest.raises(MlxPatchesError) as raised:
        CompatMatrix.builtin()
    assert str(raised.value).startswith(f"{compiled}: ")
    assert str(raised.value).endswith(": reinstall mlx-patches")
    assert str(raised.value).isprintable()


def test_compiling_is_deterministic(tmp_path):
    source = tmp_path / "compat_matrix.yaml"
    source.write_text(GOOD)
    assert matrix_file.compile_matrix(source) == matrix_file.compile_matrix(source)


# -- properties ------------------------------------------------------------------------------

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
    compiled = CompatMatrix(json.loads(json.dumps(matrix_file.compiled(content))))
    return plain.rule("fix", "fake-lm"), compiled.rule("fix", "fake-lm")


@given(released, ranges, st.one_of(st.just(""), ranges), public, local)
def test_compiled_and_plain_answer_alike(releases, affected, fixed, version, part):
    plain, compiled = both_forms(releases, affected, fixed)
    for asked in (*releases, version, version + part):
        assert plain.decide(asked) == compiled.decide(asked)


# -- the matrix of this package --------------------------------------------------------------


@pytest.fixture(scope="module")
def ours():
    return matrix_file.load()


def test_our_own_matrix_is_valid_and_knows_exactly_our_patches(ours):
    assert set(ours.patches) == set(catalogue.builtin().ids())


def test_our_own_rules_are_for_distributions_that_the_patch_targets(ours):
    for patch in catalogue.builtin():
        assert set(ours._document["patches"][patch.id]) <= {t.distribution for t in patch.targets}
