import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from mlx_patches import cli
from mlx_patches.core.packages import DISTRIBUTIONS, UNMEASURED
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue
from tests import voice

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mlx_patches"
PLACES = (PACKAGE, *(ROOT / name for name in ("tests", "tools", "benchmarks")))
# The modules whose strings are printed, logged or raised for users.
SCREENS = (
    *("*.py", "activation/*.py", "auditing/*.py", "core/*.py", "evidence/*.py", "matrix/*.py"),
    *("report/*.py", "lab/report.py", "lab/record.py", "lab/folder.py"),
    *("lab/runner.py", "lab/weights.py"),
)


def pages() -> list[str]:
    """README, docs, and other pages; of CHANGELOG.md the unreleased part."""
    found = []
    for path in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))):
        text = path.read_text()
        if path.name == "CHANGELOG.md":
            text = text.partition("\n## Unreleased")[2].partition("\n## ")[0]
        # The catalogue's rows are the summaries.
        text = re.sub(r"^\|\[[\w-]+\]\(\.\./.*$", "", text, flags=re.MULTILINE)
        found += voice.faulty(path.relative_to(ROOT), voice.prose(text))
    return found


def helps() -> list[str]:
    found = []
    for name, command in {"": cli.cli, **cli.cli.commands}.items():
        text = command.get_help(click.Context(command, info_name=f"mlx-patches {name}"))
        found += [f"mlx-patches {name}: {fault}" for fault in voice.faults(" ".join(text.split()))]
    return found


def screens() -> list[str]:
    """Screens, log lines, errors, and the report page."""
    files = [path for pattern in SCREENS for path in sorted(PACKAGE.glob(pattern))]
    found = [
        line
        for path in files
        for line in voice.faulty(path.relative_to(ROOT), voice.sentences(path.read_text()))
    ]
    for name in ("page.html", "page.js"):
        texts = re.findall(r'"([^"\n]* [^"\n]*)"|`([^`\n]* [^`\n]*)`|>([^<>\n]+)<', page(name))
        found += [f"{name}: {fault}" for one in texts for fault in voice.faults(" ".join(one))]
    return found


def page(name: str) -> str:
    text = (PACKAGE / "report" / name).read_text()
    return re.sub(r"//.*$", "", text, flags=re.MULTILINE)


def summaries() -> list[str]:
    found = catalogue.builtin()
    return [f"{patch.id}: {fault}" for patch in found for fault in voice.faults(patch.summary)]


def names() -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(path for place in PLACES for path in place.rglob("*.py"))
        for line, name in voice.functions(path.read_text())
        if voice.is_participle(name) and name != "patched"  # public: a ``with`` block
    ]


@pytest.mark.parametrize(
    "source", [pages, helps, screens, summaries, names], ids=lambda one: one.__name__
)
def test_no_forbidden_words_or_names(source: Callable[[], list[str]]):
    assert source() == []


@pytest.mark.parametrize(
    "text",
    [
        *("The log says which patch failed.", "a prompt that is read in pieces"),
        *("wrong for a request alone", "it belongs in a package of its own"),
        *("a graph node a layer", "leave out --host"),
        *("configs that were held against transformers", "queries rotated to other positions"),
        "wrong, but not with the patches",
    ],
)
def test_fault_is_found(text):
    assert voice.faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "The audit tells you whether your model is affected.",
        "Run the scenario features-chunked or features-solo.",
        "mlx_patches has its own sitecustomize.",
        "A standalone program leaves no file.",
        "Forms ask for the report.",
    ],
)
def test_good_sentence_has_no_fault(text):
    assert voice.faults(text) == []


def test_only_prose_and_functions_are_read():
    text = "# Title\n\nUse `alone` or:\n\n```\nit says\n```\n\n| a | said |\n"
    assert [voice.faults(part) != [] for _, part in voice.prose(text)] == [False, False, True]
    assert [line for line, _ in voice.prose(text)] == [1, 3, 9]
    source = (
        '"""It says."""\ndef f(x):\n    """Said."""\n    raise E(f"{x} says no")\nKEY = "said"\n'
    )
    assert list(voice.sentences(source)) == [(4, "{} says no")]

    source = "class A:\n @property\n def made(self): ...\n def kept(self): ...\n"
    source += "@pytest.fixture(params=[a.b])\ndef paid(): ...\n"
    assert list(voice.functions(source)) == [(4, "kept")]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rotated", True),
        ("built_masks", True),
        ("_made", True),
        ("build_masks", False),
        ("embed_tokens", False),
        ("seed_row", False),
        ("is_padded", False),
        ("read_positions", False),
        ("__call__", False),
    ],
)
def test_participles_are_distinguished_from_verbs(name, wrong):
    assert voice.is_participle(name) is wrong


def test_summaries_name_a_product_or_a_model_family():
    families = {re.match("[a-z]+", name.lower()) for name in CompatMatrix.builtin().models}
    stems = {match[0] for match in families if match and len(match[0]) > 2}
    products = {*DISTRIBUTIONS, *DISTRIBUTIONS.values(), *UNMEASURED, "mlx 0"}
    known = re.compile("|".join(rf"\b{re.escape(name)}" for name in stems | products))
    text = {patch.id: patch.summary.lower() for patch in catalogue.builtin()}
    assert [id_ for id_, one in text.items() if not known.search(one)] == []
    assert [id_ for id_, one in text.items() if len(one) > 100] == []
