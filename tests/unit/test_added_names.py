"""No patch detects objects by a name that another patch adds to their class."""

import ast
from collections.abc import Iterator
from pathlib import Path

import mlx_patches.patches
from mlx_patches.patches import catalogue

PATCHES = Path(mlx_patches.patches.__file__).parent
# The release's own __init__ sets these: a patch converts them, and adds them to no object.
CONVERTED = {"offset", "left_padding", "lengths", "max_size", "_lengths", "_right_padding"}
# Methods that patches add, which are called if they exist.
CALLED = {"extract", "merge"}
# (the module, the name): why it is right.
DECLARED = {
    ("_shared.quantized", "seed"): "of a cache; a patch adds a request's",
    ("_shared.rows", "seed"): "of a cache; a patch adds a request's",
    ("_shared.row_record", "size"): "of an array; patches add a cache's",
}


def modules() -> list[Path]:
    return [file for file in PATCHES.rglob("*.py") if not file.stem.startswith("probe")]


def list_added() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for patch in catalogue.builtin():
        for target in patch.targets:
            if target.defines_new_attribute:
                module = patch.module.removeprefix("mlx_patches.patches.").removesuffix(".patch")
                found.setdefault(target.name.rpartition(".")[2], set()).add(module)
    return found


def list_checked(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="hasattr" | "getattr"), args=[_, checked, *_]):
                pass
            case ast.Compare(left=checked, ops=[ast.In() | ast.NotIn()]):
                pass
            case ast.keyword(arg="only_with", value=checked):
                pass
            case _:
                continue
        if isinstance(checked, ast.Constant) and isinstance(checked.value, str):
            yield checked.value


def test_asked_names():
    source = """
after(change, only_with="a")
hasattr(x, "b"), getattr(x, "c", 0), "d" in vars(x), "e" not in x.__dict__, getattr(x, name), x.f
"""
    assert sorted(list_checked(source)) == ["a", "b", "c", "d", "e"]


def test_no_patch_checks_for_added_name():
    added = list_added()
    files = {
        ".".join(file.relative_to(PATCHES).with_suffix("").parts).removesuffix(".patch"): file
        for file in modules()
    }
    checked = {
        (module, name)
        for module, file in files.items()
        for name in list_checked(file.read_text("utf-8"))
        if name in added and module not in added[name] and name not in CONVERTED | CALLED
    }
    assert checked == {one for one in DECLARED if one[0] in files and one[1] in added}


def test_attributes_have_one_owner():
    owners: dict[str, set[str]] = {}
    for file in modules():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and str(node.value).startswith("_mlx_patches_"):
                owners.setdefault(str(node.value), set()).add(str(file))
    assert owners and all(len(modules) == 1 for modules in owners.values()), owners
