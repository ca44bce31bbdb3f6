import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_patches.auditing import audit
from mlx_patches.core.model_types import implementations
from mlx_patches.lab import folder as measuring

pytestmark = pytest.mark.slow


def save_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mlx_patches", "audit", *arguments], capture_output=True, text=True
    )


# The configs of ten published models: sizes, layer kinds and nesting as their folders have them.
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())


HERE = [name for name, one in PUBLISHED.items() if implementations(one["model_type"])]


@pytest.mark.parametrize("name", HERE)
def test_folder_verdict_equals_measurement(name, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "SECONDS", 600.0)  # every scenario ends
    folder = str(save_config(tmp_path, PUBLISHED[name]))
    evidence = measuring.evidence_of(tmp_path)
    published, measured = audit.audit(folder), audit.audit(folder, evidence=evidence)
    assert published.exit_code() == measured.exit_code()
    for one, other in zip(published.verdicts, measured.verdicts, strict=True):
        assert other.note == ""
        left, found = (
            {cell.name: cell.wrong_with_patches for cell in each.cells} for each in (one, other)
        )
        differing = [name for name in left.keys() & found if left[name] != found[name]]
        assert not differing
        assert one.verdict == other.verdict
