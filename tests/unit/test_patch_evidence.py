"""Each patch's evidence.json, and the folders, tests and catalogue lines of patches."""

import ast
import importlib
import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import declarations
import patch_evidence
import pytest

from mlx_patches.patches import catalogue
from tests.patches.mutants import SIMPLE

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "mlx_patches" / "patches"
PATCH = next(iter(catalogue.builtin()))


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(patch_evidence, "PATCHES", tmp_path / "mlx_patches" / "patches")
    monkeypatch.setattr(patch_evidence, "VERSIONS", tmp_path / "tools" / "versions.json")
    patch_evidence.folder_of(PATCH).mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    return tmp_path


def cell(body, without="red", detail="text"):
    return {"body": body, "without": without, "with": "green", "detail": detail}


def results():
    one = patch_evidence.read(patch_evidence.folder_of(PATCH))[PATCH.id]["mlx-lm"]
    return {
        target: [(result["body"], result["releases"]) for result in found]
        for target, found in one["results"].items()
    }


def test_results_are_kept_per_code(root):
    for release, body in (("0.2.10", "b"), ("0.2.9", "a"), ("0.2.11", "b")):
        patch_evidence.add(PATCH, f"mlx-lm {release}", {"m:f": cell(body, detail=release)})
    assert results() == {"m:f": [("a", ["0.2.9"]), ("b", ["0.2.10", "0.2.11"])]}
    names = [one["set"] for one in patch_evidence.load()]
    assert names == ["mlx-lm 0.2.9", "mlx-lm 0.2.10", "mlx-lm 0.2.11"]
    assert patch_evidence.load()[2]["patches"][PATCH.id] == {"m:f": cell("b", detail="0.2.10")}
    assert patch_evidence.is_measured(PATCH, "mlx-lm 0.2.9")
    assert not patch_evidence.is_measured(PATCH, "mlx-vlm 0.2.9")


def test_remeasured_release_replaces_results(root):
    for body in ("a", "b"):
        patch_evidence.add(PATCH, "mlx-lm 0.1", {"m:f": cell(body)})
    assert results() == {"m:f": [("b", ["0.1"])]}
    patch_evidence.add(PATCH, "mlx-lm 0.1", {})  # now the release lacks the target
    assert results() == {}
    assert patch_evidence.is_measured(PATCH, "mlx-lm 0.1")


def test_other_checkouts_are_added(root, tmp_path):
    patch_evidence.add(PATCH, "mlx-lm 0.1", {"m:f": cell("ours")})
    patch_evidence.add_versions({"mlx-lm 0.1": {"mlx": "1"}})
    other = tmp_path / "taken" / "evidence-1"
    shutil.copytree(root / "mlx_patches", other / "mlx_patches")
    (other / "tools" / "evidence").mkdir(parents=True)
    (other / "tools" / "evidence" / "versions.json").write_text('{"mlx-lm 0.2": {"mlx": "2"}}')
    patch_evidence.forget_patch(PATCH)
    patch_evidence.add(PATCH, "mlx-lm 0.2", {"m:f": cell("theirs", without="green")})
    patch_evidence.take(tmp_path / "taken")
    assert results() == {"m:f": [("ours", ["0.1"]), ("theirs", ["0.2"])]}
    assert set(json.loads(patch_evidence.VERSIONS.read_text())) == {"mlx-lm 0.1", "mlx-lm 0.2"}


def test_deleted_patch_is_dropped(root):
    patch_evidence.add(PATCH, "mlx-lm 0.1", {"m:f": cell("a")})
    folder = patch_evidence.folder_of(PATCH)
    found = patch_evidence.read(folder)
    patch_evidence.write(folder, {"gone": found[PATCH.id], **found})
    patch_evidence.prune()
    assert patch_evidence.read(folder) == found
    patch_evidence.write(folder, {"gone": found[PATCH.id]})
    patch_evidence.prune()
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"a": 3}', '{"a": {"mlx-lm": {}}}'),
        '{"a": {"mlx-lm": {"measured": ["1"], "results": {"m:f": [{"body": "b"}]}}}}',
        '{"a": {"mlx-lm": {"measured": 1, "results": {"m:f": [3]}}}}',
    ],
)
def test_invalid_evidence_is_one_line(root, text):
    file = patch_evidence.folder_of(PATCH) / "evidence.json"
    file.write_text(text)
    with pytest.raises(SystemExit) as raised:
        patch_evidence.load()
    message = str(raised.value)
    assert message.startswith(f"{file}: not evidence of a patch") and "\n" not in message


def test_every_patch_has_its_probe(monkeypatch):
    declarations.check_probes()
    monkeypatch.delattr(".".join(PATCH.probe_place))
    with pytest.raises(SystemExit, match=f"{PATCH.id} has no probe"):
        declarations.check_probes()


def test_patches_of_one_function_have_an_order():
    met: dict[str, list[str]] = {}
    for patch in catalogue.builtin().each_declared():
        for target in patch.targets:
            met.setdefault(target.path, []).append(patch.id)
    shared = [ids for ids in met.values() if len(ids) > 1]
    assert {id_ for ids in shared for id_ in ids} == {*declarations.STACKED}
    assert all(ids == sorted(ids, key=declarations.STACKED.index) for ids in shared)


@pytest.mark.parametrize(
    ("stacked", "message"),
    [
        ((*declarations.STACKED, "my-own"), "stacked.txt names my-own, which no folder has"),
        (
            [id_ for id_ in declarations.STACKED if id_ != "offset-alias"],
            "both change .*: add offset-alias to tools/stacked.txt",
        ),
    ],
)
def test_stale_order_is_one_line(monkeypatch, stacked, message):
    monkeypatch.setattr(declarations, "STACKED", stacked)
    with pytest.raises(SystemExit, match=message) as raised:
        declarations.registry()
    assert "\n" not in str(raised.value)


def test_folder_without_patch_is_one_line(tmp_path):
    (tmp_path / "caches" / "empty").mkdir(parents=True)
    (tmp_path / "caches" / "empty" / "__init__.py").touch()
    with pytest.raises(SystemExit, match="caches/empty declares no patch"):
        declarations.find(tmp_path)


def test_two_patches_of_one_id_are_one_line(monkeypatch):
    one, other = (patch for patch in list(catalogue.builtin())[:2])
    module = importlib.import_module(other.module)
    patches = {name: one for name, one in vars(module).items() if isinstance(one, type(other))}
    (name,) = (name for name, one in patches.items() if one.id == other.id)
    monkeypatch.setattr(module, name, other._replace(id=one.id))
    with pytest.raises(SystemExit, match=f"has the id {one.id} too; rename one"):
        declarations.find()


def test_each_patch_has_a_mutant():
    wanted: dict[str, set[str]] = {}
    for patch in catalogue.builtin():
        wanted.setdefault(patch_evidence.folder_of(patch).name, set()).add(patch.id)
    for folder, ids in wanted.items():
        found = ids & {*SIMPLE}
        file = ROOT / "tests" / "patches" / f"test_{folder}.py"
        for node in ast.parse(file.read_text()).body if file.exists() else ():
            match node:
                case ast.Assign(targets=[ast.Name(id="MUTANTS")], value=ast.Dict(keys=keys)):
                    found |= {key.value for key in keys}
        assert found == ids
    for id_, values in SIMPLE.items():
        package, _, own = catalogue.builtin().get(id_).module.rpartition(".")
        for place in values:
            module, _, name = place.rpartition(":")
            source = Path(find_spec(module or f".{own}", package).origin).read_text()
            assert all(re.search(rf"\b{part}\b", source) for part in name.split(".")), place
        assert values, id_


def test_folders_are_independent():
    """So that each can be deleted; shared code is in ``_shared`` or among the probes."""
    for file in PATCHES.rglob("*.py"):
        parts = file.relative_to(PATCHES).parts
        if len(parts) < 3:
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level in (2, 3) and node.module:
                names = (*parts[: 3 - node.level], *node.module.split("."))
                assert names[0] == "_shared" or names[:2] == parts[:2], (str(file), node.module)
