"""The audit of a folder with images reports the results of its kind, stage by stage."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import mlx_patches
from mlx_patches.auditing.models import read_folder
from mlx_patches.auditing.verdict import ModelVerdict, PatchState
from mlx_patches.core import distributions
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.evidence import outside, store
from mlx_patches.lab.images import published

from .conftest import is_tested

# Kinds that transformers saves as another model type, and the kind of that type.
SAVED_AS = {"pixtral": "llava pixtral"}


def read_evidence() -> dict[str, Any]:
    """The file with the results of each kind: that of the installed transformers, if it has the
    kind's family, else that of the release's own.
    """
    release = distributions.find("mlx-vlm") if is_tested("mlx-vlm") else None
    home, name = store.folder().parent / "images", f"mlx-vlm-{release and release.version}"
    installed = f"{name}-{str(distributions.find('transformers')).replace(' ', '-')}"
    found: dict[str, Any] = {}
    for file in filter(Path.exists, (home / f"{name}.json", home / f"{installed}.json")):
        results = json.loads(file.read_text())
        kinds = results["kinds"]
        families = {*results["not_compared"], *(one["family"] for one in kinds.values())}
        found = {kind: one for kind, one in found.items() if family_of(one, kind) not in families}
        found |= dict.fromkeys(kinds, results)
    return found


def family_of(results: dict[str, Any], kind: str) -> str:
    return str(results["kinds"][kind]["family"])


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
    """The wrong stages without the patches, and with them; some run only with them."""
    before, after = (EVIDENCE[kind][part].get(kind, {}) for part in ("without", "with"))
    stages = [one for one in {**before, **after} if is_saved or one != outside.SAVED]
    left = [one for one in stages if after.get(one) == "r"]
    wrong = [one for one in stages if before.get(one) == "r"]
    return {"wrong": sorted(wrong), "wrong_with_patches": sorted(left)}


def find_verdict(home: Path | str) -> ModelVerdict:
    verdicts = mlx_patches.audit(str(home)).verdicts
    (own,) = (one for one in verdicts if one.distribution == "mlx-vlm")
    return own


def list_audited(home: Path, kind: str) -> dict[str, list[str]]:
    verdict = find_verdict(home)
    if "auto_map" in json.loads((home / "config.json").read_text()):
        # No verdict covers a folder's own code, as Phi-4 multimodal has it for its config.
        assert "runs its own code" in verdict.measured.note
        verdict = find_verdict(family_of(EVIDENCE[kind], kind))
    images = verdict.as_dict(PatchState(False))["images_solo"]
    assert images["held_against"] == EVIDENCE[kind]["outside"]
    return {part: sorted(images[part]) for part in ("wrong", "wrong_with_patches")}


@pytest.mark.parametrize("kind", EVIDENCE)
def test_verdict_on_a_folder_is_the_evidence(kind, tmp_path):
    home, saved = write_configs(kind, tmp_path)
    assert list_audited(home, kind) == list_wrong(kind, is_saved=False)
    other = SAVED_AS.get(kind, kind)
    if not read_folder(saved).implementations():  # DeepSeek-VL, in older releases
        with pytest.raises(MlxPatchesError, match="no model type"):
            find_verdict(saved)
    elif published.is_respelled(read_folder(home).config, read_folder(saved).config):
        assert list_audited(saved, other) == list_wrong(other, is_saved=other == kind)


@pytest.mark.parametrize("kind", [one for one in EVIDENCE if one in EVIDENCE[one]["needs"]])
def test_stage_is_wrong_without_a_patch_that_it_needs(kind, tmp_path):
    home, saved = write_configs(kind, tmp_path)
    for stage, ids in EVIDENCE[kind]["needs"][kind].items():
        if stage == outside.SAVED and kind in SAVED_AS:
            continue  # the folder is of another kind
        one = find_verdict(saved if stage == outside.SAVED else home)
        assert stage not in list_wrong_here(one)
        for id_ in ids:
            assert stage in list_wrong_here(one, id_)


def list_wrong_here(one: ModelVerdict, *missing: str) -> list[str]:
    images = one.as_dict(PatchState(True, frozenset(missing)))["images_solo"]
    return list(images["wrong_here"])
