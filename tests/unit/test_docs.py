import os
import re
import subprocess
import sysconfig
import tomllib
from itertools import product
from pathlib import Path

import matrix_file
import pytest
import yaml

from mlx_patches import cli
from mlx_patches.activation import enable, run, settings
from mlx_patches.core.contribution import Host
from mlx_patches.core.distributions import Installed
from mlx_patches.core.outcome import Outcome, Status
from mlx_patches.matrix import gate, matrix
from mlx_patches.matrix.ranges import BrokenSet, Warned

from .conftest import make_environment

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = "".join(path.read_text() for path in sorted((ROOT / "mlx_patches").rglob("*.py")))
STATUSES = (DOCS / "statuses.md").read_text()


def rows(page: str) -> list[list[str]]:
    """The cells of every table row whose first cell is code."""
    lines = re.findall(r"^\| ?(`.*?) ?\|$", page, re.MULTILINE)
    return [[cell.strip("`") for cell in re.split(r" \| |(?<! )\|(?! )", line)] for line in lines]


def test_every_status_is_described():
    assert [name for name, *_ in rows(STATUSES)] == [str(status) for status in Status]
    assert re.findall(r"^## (.*)$", STATUSES, re.MULTILINE) == [str(status) for status in Status]
    for name, finding, _ in rows(STATUSES):
        outcome = Outcome("patch", "distribution", "target", Status(name), "reason")
        assert finding == ("yes" if outcome.finding else "no"), name


def test_quoted_reasons_exist():
    texts = [text.replace("\n", " ") for text in re.findall(r'"([^"]+)"', STATUSES)]
    assert len(texts) > 10
    words = SOURCES.replace("{settings.DISABLE}", "MLX_PATCHES_DISABLE")
    words = words.replace("{settings.SWITCH}", "MLX_PATCHES")
    assert [text for text in texts if text not in words] == []


def test_matrix_keys_are_described():
    matrix = matrix_file.document()
    rules = [rule for rules in matrix["patches"].values() for rule in rules.values()]
    bodies = [sides for rule in rules for sides in rule.get("bodies", {}).values()]
    sets = [one for sets in matrix["measured"].values() for one in sets]
    keys = {"default", *BrokenSet._fields, *Warned._fields}.union(matrix, *rules, *bodies, *sets)
    page = (DOCS / "matrix.md").read_text()
    described = {name.partition("` in")[0] for name, *_ in rows(page)}
    assert described == keys
    assert "`affected` in `bodies`" in page  # `affected` has another meaning in a rule


ACTIVATION = (DOCS / "activation.md").read_text()
WORKER = """
import multiprocessing, sys
AT_THE_TOP
def work():
    import mlx_lm
    session = sys.modules.get("mlx_patches.activation.session")
    print("yes" if session and session.session().active else "no", flush=True)
if __name__ == "__main__":
    IN_MAIN
    for method in sys.argv[1:]:
        child = multiprocessing.get_context(method).Process(target=work)
        child.start()
        child.join()
"""
APPLY = "import mlx_patches; mlx_patches.apply()"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with this one's packages, mlx_patches, and a stand-in for mlx_lm."""
    folder = tmp_path_factory.mktemp("environment")
    _, site = make_environment(folder)
    (site / "here.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    (site / "mlx_lm").mkdir()
    (site / "mlx_lm" / "__init__.py").write_text("")
    return folder


@pytest.mark.parametrize(
    ("way", "in_main", "at_the_top", "limit"),
    [
        ('apply()` under `if __name__ == "__main__"', APPLY, "", None),
        ("apply()` at the top of the main module", "pass", APPLY, None),
        ("mlx-patches run", "pass", "", None),
        ("mlx-patches enable", "pass", "", None),
        ("mlx-patches enable --host", "pass", "", Host("host", ("host.py",), ())),
    ],
)
def test_workers_match_table(environment, way, in_main, at_the_top, limit):
    (head,) = re.findall(r"^\| activated by \| (.*) \|$", ACTIVATION, re.MULTILINE)
    table = ACTIVATION.partition(head)[2]
    row = next(cells for name, *cells in rows(table) if name == way)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / enable.NAME).unlink(missing_ok=True)
    if "enable" in way:
        (site / enable.NAME).write_text(enable.line(limit))
    host = environment / "host.py"
    host.write_text(WORKER.replace("IN_MAIN", in_main).replace("AT_THE_TOP", at_the_top))
    command = [str(environment / "bin" / "python"), str(host), *head.split(" | ")]
    launch = run.launch(command) if "run" in way else run.Launch(tuple(command), {})
    env = {k: v for k, v in os.environ.items() if not k.startswith(settings.SWITCH)}
    done = subprocess.run(
        launch.command, capture_output=True, text=True, env=env | launch.variables
    )
    assert done.stdout.split() == row, done.stderr


def test_variables_are_described():
    names = ("DISABLE", "ENABLE", "STRICT", "PROFILE", "PRESENCE")
    variables = {settings.SWITCH, *(getattr(settings, name) for name in names)}
    described = [cells for cells in rows(ACTIVATION) if cells[0].startswith(settings.SWITCH)]
    assert {name for name, *_ in described} == variables
    off, on = (set(re.findall(r"[a-z0-9]+", values)) for _, values, _ in described[:2])
    assert (off, on) == (settings.OFF, settings.ON)


def test_ways_of_activation_are_described():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, points in project["entry-points"].items():
        assert f"`{group}`" in ACTIVATION
        assert all(f"`{value}`" in ACTIVATION for value in points.values())
    for command in ("run", "enable", "disable"):
        assert command in cli.cli.commands
        assert f"mlx-patches {command}" in ACTIVATION


RULES = {
    "has the defect": {"affected": ">=1,<=2"},
    "repaired it": {"affected": ">=1,<=1", "fixed": ">=2"},
    "no measured release has it": None,
}
CODE = {"known to have it": "red", "known to be sound": "sound", "not known": "other"}
UPGRADE = (DOCS / "upgrade.md").read_text()


def new_release_rows() -> list[list[str]]:
    """The rows of the table, with "anything else" expanded to one row for each kind of code."""
    table = UPGRADE.partition("| the newest measured release |")[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    listed = {(rule, code) for rule, code, _ in cells}
    return [
        [rule, kind, status]
        for rule, code, status in cells
        for kind in ([code] if code in CODE else [k for k in CODE if (rule, k) not in listed])
    ]


@pytest.mark.parametrize(("rule", "code", "status"), new_release_rows())
def test_gate_matches_table_of_new_release(rule, code, status):
    bodies = {"affected_bodies": {"f": {"red"}}, "sound_bodies": {"f": {"sound"}}}
    given = RULES[rule] and matrix.Rule(**RULES[rule], **bodies, releases=("1", "2"))
    verdict = gate.decide_by_rule(given, Installed("toy-lm", "3"), "f", CODE[code])
    assert ("applied" if verdict.ok else str(verdict.status)) == status, verdict.reason


def test_table_of_new_release_is_complete():
    assert {(rule, code) for rule, code, _ in new_release_rows()} == set(product(RULES, CODE))


PAGES = [*ROOT.glob("*.md"), *sorted(DOCS.glob("*.md"))]


def code(page: str) -> list[str]:
    blocks = re.findall(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    words = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return [*"".join(blocks).splitlines(), *re.findall(r"`([^`]+)`", words)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_on_pages_exist(path):
    goals = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in code(path.read_text()):
        if found := re.match(r"make ([a-z-]+)", line):
            assert found[1] in goals, line
        if found := re.match(r"(?:\$ )?mlx-patches ([a-z]+)", line):
            assert found[1] in cli.cli.commands, line
        if found := re.match(r"python (\w+/\w+\.py)", line):
            assert (ROOT / found[1]).is_file(), line


FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
# The element types of GitHub's issue forms, and whether they need an answer.
ELEMENTS = {"markdown": False, "input": True, "textarea": True, "dropdown": True}


@pytest.mark.parametrize("name", ["wrong-output", "not-covered"])
def test_form_starts_with_report(name):
    form = yaml.safe_load((FORMS / f"{name}.yml").read_text())
    assert form.keys() == {"name", "description", "body"}
    answers = [element for element in form["body"] if ELEMENTS[element["type"]]]
    ids = [element["id"] for element in answers]
    assert len(set(ids)) == len(ids)
    for element in form["body"]:
        assert element.keys() <= {"type", "id", "attributes", "validations"}
        needed = {"markdown": "value"}.get(element["type"], "label")
        assert element["attributes"][needed]
        assert element["type"] != "dropdown" or len(element["attributes"]["options"]) > 1
    assert answers[0]["attributes"]["label"] == "mlx-patches report"
    assert answers[0]["validations"] == {"required": True}


def test_issue_forms_are_complete():
    assert {path.stem for path in FORMS.iterdir()} == {"wrong-output", "not-covered", "config"}
    config = yaml.safe_load((FORMS / "config.yml").read_text())
    assert config == {"blank_issues_enabled": True}
