import findings
import pytest

from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.lab import Family, runner, variants
from mlx_patches.lab.variants import VARIANTS, vary


def test_config_varies():
    found = vary({"rope_scaling": {"type": "linear", "mrope_section": [2, 3, 3]}}, "yarn")
    assert found["rope_scaling"]["type"] == found["rope_scaling"]["rope_type"] == "yarn"
    assert found["rope_scaling"]["mrope_section"] == [2, 3, 3]
    assert found["max_position_embeddings"] == 512
    assert found["original_max_position_embeddings"] == 8

    rope = {"rope_type": "default", "rope_theta": 1.0}
    config = {"rope_parameters": {**rope, "sliding_attention": rope, "beta": 0.1}}
    found = vary(config, "longrope")["rope_parameters"]
    for place in (found, found["sliding_attention"]):
        assert (place["rope_type"], place["rope_theta"]) == ("longrope", 1.0)
    assert found["beta"] == 0.1
    assert len(found["short_factor"]) == len(found["long_factor"]) == 16

    found = vary({"text_config": {"layer_types": ["sliding_attention", "mamba"]}}, "full-attention")
    assert found["text_config"]["layer_types"] == ["full_attention", "mamba"]
    assert found["text_config"]["sliding_window"] is None


@pytest.fixture
def sources(tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("args.rope_theta")
    (tmp_path / "scaled.py").write_text("initialize_rope(args.rope_scaling)")
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "config.py").write_text("sliding_window: int")
    monkeypatch.setattr("mlx_patches.lab.families.models_folder", lambda name: tmp_path)
    found = [Family("mlx-lm", name) for name in ("plain", "scaled", "vision")]
    monkeypatch.setattr(runner, "choose_families", lambda models, folder: found)
    monkeypatch.setattr(runner, "environment", lambda: "mlx-lm 1.0")


def test_variants_of_family(sources):
    has = {
        name: [one for one in VARIANTS if variants.has_variant(Family("mlx-lm", name), one)]
        for name in ("plain", "scaled", "vision", "nowhere")
    }
    ropes = ["linear", "dynamic", "llama3", "yarn", "longrope"]
    assert has == {"plain": [], "scaled": ropes, "vision": ["full-attention"], "nowhere": []}


def test_only_families_with_variant_run(sources):
    (task,) = runner.tasks(mode="unpatched", scenarios=["merge"], variant="yarn")
    assert task.family.name == "scaled"
    assert task.command()[-4:] == ["--variant", "yarn", "--scenario", "merge"]
    with pytest.raises(MlxPatchesError, match="no family here has num_kv_shared_layers"):
        runner.tasks(variant="own-keys")


def test_rows_of_other_variant_do_not_count(sources):
    (plain, *_), (task,) = (
        runner.tasks(mode="unpatched", scenarios=["merge"], variant=name) for name in ("", "yarn")
    )
    place = ("mlx-lm 1.0", "mlx-lm:scaled", False, "merge", "green")
    row = runner.Row(*place, variant="yarn", setup=task.setup)
    assert runner._answers(row, task, task.setup)
    assert not runner._answers(runner.Row(*place), task, task.setup)
    assert not runner._answers(row, plain, plain.setup)


MEASURED = {
    "without": {"a": {"merge": "g", "extend": "r"}, "b": {"merge": "r"}},
    "with": {"a": {"merge": "g", "extend": "g"}, "b": {"merge": "r"}},
    "details": {"b": {"merge": "row 0 | differs"}},
}


def test_differing_cell_is_named(monkeypatch):
    plain = {"without": {"a": {"merge": "g", "extend": "r"}, "b": {"merge": "g"}}}
    plain["with"] = {"a": {"merge": "g", "extend": "g"}, "b": {"merge": "g"}}
    monkeypatch.setattr(findings.store, "load_set", lambda name: plain)
    table = findings.list_variants([{"set": "mlx-lm 1.0", "variants": {"yarn": MEASURED}}])
    assert table[2:] == ["|mlx-lm 1.0|3|2|1|b merge (yarn)|"]
