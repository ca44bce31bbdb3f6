"""Measurements share no code with patches, so a mistake cannot hide itself."""

import ast
from pathlib import Path

import pytest

from mlx_patches.activation.session import session
from mlx_patches.lab.tokenizers import LETTERS, spell_bytes
from mlx_patches.patches._shared import byte_letters

PACKAGE = Path(__file__).parents[2] / "mlx_patches"
# A probe to its imports from patches: names of settings and targets; what only the patch's own
# targets read or write (the padding, the fields of a request, the host's files); and the conditions
# under which a target's probe does not apply.
ALLOWED = {
    "loading/model_code_consent/probe.py": {"patch.CONSENT"},
    "models/video_beside_image/probe.py": {"patch.MODELS", "patch.PARTS", "patch.IGNORES_VIDEOS"},
    "models/recurrent_padding/probe.py": {"patch.MASKED", "patch.MASK_LEFT"},
    "models/recurrent_padding/probe_layers.py": {
        "batch.announce_padding",
        "batch.may_start_rows",
        "patch.MAMBA2",
    },
    "caches/saved_layer_cache/probe.py": {"patch.MODEL"},
    "positions/rope_deltas/probe.py": {"rope_deltas.kept_deltas"},
    "positions/rope_deltas/probe_kept.py": {"kept_deltas.KEPT", "row_calls.accepts_deltas"},
    "server/media/probe.py": {"paths.ROOTS"},
    "server/media/probe_host.py": {"paths.ROOTS", "paths.is_admitted"},
    "server/request_models/probe.py": {"patch.MODELS"},
    "server/vlm_unread_images/probe.py": {"refusals.client_error"},
    "vllm_mlx/rapid_logprobs/probe.py": {"request_fields.FIELDS"},
    "vllm_mlx/vllm_requests/probe_fields.py": {"request_fields.FIELDS"},
}


def imports_of_patches(file, source=None):
    """The names that a file imports from code of patches, other than from modules of probes."""
    parts = ("mlx_patches", *file.relative_to(PACKAGE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(source or file.read_text())):
        modules = {}
        if isinstance(node, ast.Import):
            modules = {one.name: [""] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*parts[: -node.level], *filter(None, (node.module or "").split("."))]
            base = base if node.level else node.module.split(".")
            modules = {".".join(base): [one.name for one in node.names]}
        elif isinstance(node, ast.Constant) and ".patches." in f"{node.value}.":
            found.add(node.value)  # the name of a module, imported by name
        imported = [[*one.split("."), *filter(None, [n])] for one in modules for n in modules[one]]
        for path in imported:
            if path[:2] == ["mlx_patches", "patches"] and not is_of_probe(path):
                found.add(".".join(path[-2:]))
    return found


def is_of_probe(path):
    """Whether a dotted path is a module of a probe, or a name in one."""
    place = PACKAGE.joinpath(*path[1:])
    is_module = place.is_dir() or place.with_suffix(".py").exists()
    return path[-1 if is_module else -2].startswith("probe")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from ..patches.positions.rope_deltas import probe_kept", set()),
        ("from ..patches.positions.rope_deltas.probe_kept import KEPT", set()),
        ("from ..patches.positions.rope_deltas.patch import probe", {"patch.probe"}),
        ("from ..patches._shared import byte_letters", {"_shared.byte_letters"}),
        ("from ..patches._shared.byte_letters import *", {"byte_letters.*"}),
        ("from .. import patches", {"mlx_patches.patches"}),
        ("import mlx_patches.patches._shared as shared", {"patches._shared"}),
        ("load('mlx_patches.patches')", {"mlx_patches.patches"}),
        ("load('..patches._shared', __package__)", {"..patches._shared"}),
        ("load(f'{ROOT}.patches.{name}')", {".patches."}),
    ],
)
def test_planted_import_is_found(line, found):
    assert imports_of_patches(PACKAGE / "lab" / "planted.py", line) == found


def test_patches_have_their_probes_in_modules_of_probes():
    """The tests below read only these modules."""
    for patch in session().registry:
        module = patch.probe_place[0].removeprefix("mlx_patches.")
        assert module.startswith("probes.") or is_of_probe(["mlx_patches", *module.split(".")])


def test_lab_and_probes_import_nothing_from_patches():
    files = [file for name in ("lab", "probes") for file in (PACKAGE / name).rglob("*.py")]
    assert len(files) > 80
    assert {file.name: found for file in files if (found := imports_of_patches(file))} == {}


def test_probes_of_patches_import_only_names():
    patches = PACKAGE / "patches"
    files = sorted(patches.rglob("probe*.py"))
    assert len(files) > 100
    found = {str(file.relative_to(patches)): imports_of_patches(file) for file in files}
    assert {name: names for name, names in found.items() if names} == ALLOWED


def test_both_alphabets_are_those_of_gpt_2():
    assert LETTERS == byte_letters.LETTERS
    assert len(set(LETTERS)) == 256
    assert spell_bytes("é a\n") == "Ã©ĠaĊ"
