"""Measurements share no code with patches, so a mistake cannot hide itself."""

import ast
from pathlib import Path

from mlx_patches.lab.tokenizers import LETTERS, spell_bytes
from mlx_patches.patches._shared import byte_letters

PACKAGE = Path(__file__).parents[2] / "mlx_patches"
# A probe to its imports from patches: names of settings and targets, and the announcement of
# padding, which only the patch's own layers read.
ALLOWED = {
    "loading/model_code_consent/probe.py": {"patch.CONSENT"},
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


def imports_of_patches(file):
    """The names that a file imports from code of patches, other than from probes."""
    parts = ("mlx_patches", *file.relative_to(PACKAGE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules = {one.name: () for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*parts[: -node.level], *filter(None, (node.module or "").split("."))]
            base = base if node.level else node.module.split(".")
            modules = {".".join(base): [one.name for one in node.names]}
        else:
            continue
        for module, names in modules.items():
            for name in names or [""]:
                path = f"{module}.{name}".split(".")
                if path[:2] != ["mlx_patches", "patches"]:
                    continue
                if not any(part.startswith("probe") for part in path[2:]):
                    found.add(".".join(path[-2:]))
    return found


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
