import base64
import json
import re
import subprocess
import sys
import zlib

import lab_evidence
import pytest
from click.testing import CliRunner

from mlx_patches import MlxPatchesError, report
from mlx_patches.auditing.audit import Audit
from mlx_patches.cli import cli, main
from mlx_patches.evidence import store, words
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

from .conftest import letters

ONE = {
    "set": "mlx-lm 9.9.9",
    "versions": {"mlx-lm": "9.9.9", "mlx": "9.0"},
    **letters(
        {
            "right": {"trim": "gg", "engine": "nn"},
            "repaired": {"trim": "rg", "engine": "gg"},
            "partly": {"trim": "rg", "engine": "rr"},
            "red": {"trim": "rr", "engine": "rr"},
            "unbuilt": {"trim": "xx", "engine": "xx"},
            "blunt": {"trim": "ii", "engine": "ii"},
        }
    ),
    "details_without": {"red": {"trim": "dies [[data]]", "engine": "</script>"}},
    "details_with": {"red": {"trim": "dies [[data]]"}},
    "needs": {"repaired": {"trim": ["a-patch"]}},
}


EVIDENCE = store.load()


@pytest.fixture(scope="module")
def everything():
    return report.content(EVIDENCE)


@pytest.fixture(scope="module")
def whole(everything):
    return report.page(everything)


def data_of(html):
    packed = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_families_and_results():
    shown = report.content([ONE])
    assert [one["name"] for one in shown["scenarios"]] == ["trim", "engine"]
    families = shown["packages"][0]["families"]
    results = {family: cells[0]["result"] for family, cells in families.items()}
    assert results == {
        "right": "green",
        "repaired": "repaired",
        "partly": "partly",
        "red": "red",
        "unbuilt": "not-built",
        "blunt": "insensitive",
    }
    assert families["partly"][0]["pairs"] == "rg rr"
    assert families["repaired"][0]["needs"] == {"trim": ["a-patch"]}
    before, after = families["red"][0]["details"]["trim"]
    assert shown["details"][before] == shown["details"][after] == "dies [[data]]"
    assert families["red"][0]["details"]["engine"][1] == -1


def test_what_is_wrong_beside_the_scenarios_is_named():
    """Molmo's batches of texts are right, and those with images wrong."""
    one = store.load_set("mlx-vlm 0.7.10")
    (shown,) = (p for p in report.content([one])["packages"] if p["name"] == "mlx-vlm")
    (cell,) = (cell for cell in shown["families"]["molmo"] if cell)
    assert words.family_result(store.pairs_of(one, "molmo")) == words.GREEN
    assert cell["result"] == lab_evidence.results_of(one)["molmo"] == words.REPAIRED
    assert cell["held"].endswith("Wrong as released: batches with images.")


def test_solo_defect_names_patches():
    """Not in a release with the fix, nor in one before the affected range."""
    wrong, matrix = catalogue.builtin().wrong_solo, CompatMatrix.builtin()
    seen = set()
    for name in ("mlx-lm 0.28.4", "mlx-lm 0.31.3", "mlx-lm 0.32.2", "mlx-vlm 0.7.0"):
        distribution, version = name.split()
        one = {
            "set": name,
            "versions": {},
            "without": {f: {"trim": "g"} for f in (*wrong, "llama")},
        }
        packages = {found["name"]: found for found in report.content([one])["packages"]}
        for family, cells in packages[distribution]["families"].items():
            rules = {p.id: matrix.rule(p.id, distribution) for p in wrong.get(family, ())}
            apply = [
                id_ for id_, rule in rules.items() if rule and rule.decide(version) == "affected"
            ]
            assert cells[0]["solo"] == apply, (name, family)
            seen.add((family in wrong, bool(apply)))
    assert seen == {(True, True), (True, False), (False, False)}


def test_data_is_escaped():
    html = report.page(report.content([ONE]))
    data = data_of(html)
    assert {"dies [[data]]", "</script>"} == set(data["details"])
    assert html.count("</script>") == 2
    assert "[[page" not in html


def test_page_loads_nothing(whole):
    outside = re.sub(r'id="data">.*?</script>', "", whole, flags=re.DOTALL)
    assert not re.findall(r"https?:|src=|@import|url\(", outside)
    assert len(whole) < 300_000


def test_page_has_all_evidence(whole):
    shown = data_of(whole)
    cells = sum(
        cell is not None
        for package in shown["packages"]
        for row in package["families"].values()
        for cell in row
    )
    assert cells == sum(len(one["without"]) for one in EVIDENCE)


def test_descriptions_have_no_markup():
    assert "`" not in report._scenario("max-kv-size")["does"]


def test_audit_writes_page(tmp_path):
    file = tmp_path / "report.html"
    plain = CliRunner().invoke(cli, ["audit"])
    done = CliRunner().invoke(cli, ["audit", "--html", str(file)])
    assert done.exit_code == plain.exit_code
    assert done.stdout == plain.stdout and "report.html: wrote the report page" in done.output
    assert data_of(file.read_text())["audit"]["distributions"] is not None
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_page_and_screen_count_optional_patches_alike(tmp_path, monkeypatch):
    file = tmp_path / "report.html"
    monkeypatch.setattr("mlx_patches.auditing.preflight.explain_unaudited", lambda *_: ())
    monkeypatch.setattr(Audit, "refusing", ("template-sandbox", "host-media"))
    done = CliRunner().invoke(cli, ["audit", "--html", str(file)])
    sentence = data_of(file.read_text())["audit"]["optional"]
    assert sentence.startswith("2 optional security patches, ")
    assert sentence in " ".join(done.stdout.split())


def test_failed_write_keeps_old_page(tmp_path, monkeypatch):
    file = tmp_path / "report.html"
    old = f"{report.BEGINS.decode()}>"
    file.write_text(old)
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(MlxPatchesError, match="full"):
        report.save(file, [ONE])
    assert file.read_text() == old
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_only_a_page_is_overwritten(tmp_path):
    file = tmp_path / "report.html"
    for before in ("", f"{report.BEGINS.decode()}>"):
        file.write_text(before)
        report.save(file, [ONE])
        assert data_of(file.read_text())["audit"] is None
    report.save(file, [ONE])
    file.write_text("three words here")
    with pytest.raises(MlxPatchesError, match="not a page written by mlx-patches"):
        report.save(file, [ONE])
    assert file.read_text() == "three words here"


@pytest.mark.parametrize("place", ["no/such/folder/report.html", "."])
def test_unwritable_place_is_one_line(tmp_path, monkeypatch, capsys, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--html", place])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and f"{place}: cannot be written" in lines[0]


def test_plain_audit_does_not_load_page():
    code = "import mlx_patches, sys; mlx_patches.audit(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mlx_patches.auditing.audit" in done.stdout.split()
    assert "mlx_patches.report" not in done.stdout.split()
