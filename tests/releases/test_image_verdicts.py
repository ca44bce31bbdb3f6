"""The audit of a folder with images reports what was measured of its kind, stage by stage."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import mlx_patches
from mlx_patches.auditing import verdict
from mlx_patches.auditing.models import read_folder
from mlx_patches.auditing.verdict import Measured, PatchState
from mlx_patches.core import distributions
from mlx_patches.core.model_types import implementations
from mlx_patches.evidence import outside, store
from mlx_patches.lab.images import published

from .conftest import is_tested

# Kinds that transformers saves as another model type, and the kind of that type; empty if the
# release has no such model type.
SAVED_AS = {"pixtral": "llava pixtral", "ernie4_5_moe_vl": ""}


def read_evidence() -> dict[str, Any]:
    release = distributions.find("mlx-vlm") if is_tested("mlx-vlm") else None
    file = store.folder().parent / "images" / f"mlx-vlm-{release and release.version}.json"
    return json.loads(file.read_text()) if file.exists() else {"kinds": {}}


EVIDENCE = read_evidence()
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the configs are those of transformers"
)


def write_configs(kind: str, folder: Path) -> tuple[Path, Path]:
    """Write the config of a kind as published and as transformers saves it, each in a folder."""
    one = published.entry(kind)
    ids, size = published.write_tokenizer(one, folder)
    published.config(one, ids, size).save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    homes = folder / "published", folder / "saved"
    configs = published.respell(one, saved), published.enclose(one, saved)
    for home, config in zip(homes, configs, strict=True):
        home.mkdir()
        (home / "config.json").write_text(json.dumps(config))
    return homes


def list_wrong(kind: str, is_saved: bool) -> dict[str, list[str]]:
    """The stages that are wrong as released, and those that are wrong with the patches."""
    before, after = (EVIDENCE[part].get(kind, {}) for part in ("without", "with"))
    stages = [one for one in {**before, **after} if is_saved or one != outside.SAVED]
    left = [one for one in stages if after.get(one) == "r"]
    wrong = [one for one in stages if before.get(one) == "r" or one in left]
    return {"wrong": sorted(wrong), "wrong_with_patches": sorted(left)}


def list_audited(home: Path) -> dict[str, list[str]]:
    folder = read_folder(home)
    family = implementations(folder.model_type)["mlx-vlm"]
    measured = Measured({"without": {}}, pictures=outside.pictures(EVIDENCE["set"], family))
    one = verdict.judge(measured, "mlx-vlm", "", family, config=folder.config)
    images = one.as_dict(PatchState(False))["images_solo"]
    assert images["held_against"] == EVIDENCE["outside"]
    return {part: sorted(images[part]) for part in ("wrong", "wrong_with_patches")}


@pytest.mark.parametrize("kind", EVIDENCE["kinds"])
def test_verdict_on_a_folder_is_the_evidence(kind, tmp_path):
    home, saved = write_configs(kind, tmp_path)
    assert list_audited(home) == list_wrong(kind, is_saved=False)
    other = SAVED_AS.get(kind, kind)
    if not other:
        assert "mlx-vlm" not in implementations(read_folder(saved).model_type)
    elif read_folder(home).config != read_folder(saved).config:
        assert list_audited(saved) == list_wrong(other, is_saved=other == kind)


def test_audit_reports_the_verdict(tmp_path):
    kind = next(iter(EVIDENCE["kinds"]), None)
    if kind is None or store.load_set(EVIDENCE["set"]) is None:
        pytest.skip("images, or the scenarios of the lab, were not measured in this release")
    home, _ = write_configs(kind, tmp_path)
    verdicts = mlx_patches.audit(str(home)).as_dict()["verdicts"]
    (own,) = (one["images_solo"] for one in verdicts if one["distribution"] == "mlx-vlm")
    assert {part: sorted(own[part]) for part in list_audited(home)} == list_audited(home)
