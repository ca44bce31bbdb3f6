import json

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.auditing import completion, models
from mlx_patches.core import distributions, model_files, model_types


def write(folder, **files):
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)


def test_ids_of_every_file(tmp_path):
    write(
        tmp_path,
        config={"model_type": "x", "eos_token_id": 0, "text_config": {"eos_token_id": [5, 6]}},
        generation_config={"eos_token_id": [1, 106]},
    )
    folder = models.read_folder(tmp_path)
    assert folder.model_type == "x"
    assert folder.eos == {
        "config.json": [0],
        "generation_config.json": [1, 106],
        "config.json: text_config": [5, 6],
    }
    assert folder.problem == ""


def test_few_ids(tmp_path):
    write(tmp_path, config={"model_type": "x"})
    assert model_files.stop_ids(tmp_path) == ({}, "")
    write(tmp_path, config={"model_type": "x", "eos_token_id": [-1, 3]})
    assert model_files.stop_ids(tmp_path)[0] == {"config.json": [3]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ({"eos_token_id": True}, "eos_token_id is True"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": [1, 2.5]}, "eos_token_id is [1, 2.5]"),
    ],
)
def test_broken_generation_config(tmp_path, content, message):
    write(tmp_path, config={"model_type": "x", "eos_token_id": 7}, generation_config=content)
    ids, problem = model_files.stop_ids(tmp_path)
    assert ids == {"config.json": [7]}
    assert message in problem
    assert "generation_config.json" in problem
    assert len(problem.splitlines()) == 1


def test_huge_config_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "MAX_CONFIG_BYTES", 10)
    write(tmp_path, config={"model_type": "something"})
    with pytest.raises(MlxPatchesError, match="larger than 10 bytes"):
        models.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("code", "is_helper"),
    [
        ("class KVCache:\n    pass\n", True),
        ("def create_mask(model):\n    return Model\n", True),
        ("class Model(Module):\n    pass\n", False),
        ("from .llama import Model, ModelArgs\n\n\nclass Own:\n    pass\n", False),
        ("from .llama import (\n    ModelArgs,\n    Model,\n)\n\n\ndef f():\n    pass\n", False),
        ("class Own:\n    pass\n\n\nModel = Own\n", False),
    ],
)
def test_module_without_model_is_helper(tmp_path, code, is_helper):
    (tmp_path / "toy.py").write_text(code)
    assert model_types.is_helper(tmp_path / "toy.py") is is_helper


def test_helper_is_no_model_type(site):
    site.install("mlx-lm", "0.32.2")
    site.write("mlx_lm/models/cache.py", "class KVCache:\n    pass\n")
    site.write("mlx_lm/models/llama.py", "class Model:\n    pass\n")
    assert model_types.implementations("llama") == {"mlx-lm": "llama"}
    assert model_types.implementations("cache") == {}
    found = [one.value for one in completion.complete("models", "")]
    assert "llama" in found and "cache" not in found


def test_only_mlx_vlm_reads_types_in_lower_case(site):
    for distribution, package in (("mlx-lm", "mlx_lm"), ("mlx-vlm", "mlx_vlm")):
        site.install(distribution, "9.9")
        site.write(f"{package}/models/got.py", "class Model:\n    pass\n")
    assert model_types.implementations("GOT") == {"mlx-vlm": "got"}


def test_remapped_types(tmp_path, monkeypatch):
    package = tmp_path / "mlx_lm"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "utils.py").write_text("MODEL_REMAPPING = {'mistral': 'llama'}\n")
    (package / "models" / "llama.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    model_types.remapping.cache_clear()
    monkeypatch.setattr("sys.path_importer_cache", {})
    try:
        assert model_types.implementations("mistral") == {"mlx-lm": "llama"}
        assert model_types.implementations("no-such-type") == {}
        assert model_types.implementations("../utils") == {}
    finally:
        model_types.remapping.cache_clear()


@pytest.mark.parametrize(
    ("config", "default", "slides"),
    [
        ({}, "None", False),
        ({}, "512", True),
        ({"sliding_window": None}, "None", False),
        ({"sliding_window": 4096}, "None", True),
        ({"sliding_window_size": 8}, "None", True),
        ({"sliding_window": 4096, "layer_types": ["full_attention"]}, "512", False),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "None", True),
        ({"layer_types": ["chunked_attention"]}, "None", True),
        ({"text_config": {"layer_types": ["full_attention"]}}, "512", False),
        ({"text_config": {"sliding_window": 9}}, "None", True),
        ({"layer_types": "full_attention"}, "512", True),
    ],
)
@pytest.mark.parametrize("file", ["toy.py", "toy/config.py"])
def test_sliding_layers(site, monkeypatch, config, default, slides, file):
    monkeypatch.setattr(distributions, "_packages", {})
    code = f"class Args:\n    sliding_window: Optional[int] = {default}\n"
    site.write(f"toy_lm/models/{file}", code)
    assert models.may_slide(config, "toy_lm.models.toy") is slides


@pytest.mark.parametrize(
    ("config", "generation", "older", "newer"),
    [
        ({"eos_token_id": 5}, None, [], []),
        ({"eos_token_id": 5}, {"eos_token_id": [5, 6]}, [6], []),
        ({"eos_token_id": 5}, {"eos_token_id": [6]}, [6], [5]),
        ({"eos_token_id": 5}, {"temperature": 1}, [], []),
        ({"text_config": {"eos_token_id": 7}}, None, [7], [7]),
        ({"text_config": {"eos_token_id": 7}}, {"eos_token_id": 7}, [7], []),
    ],
)
def test_unused_stop_tokens(site, monkeypatch, tmp_path, config, generation, older, newer):
    write(tmp_path, config={"model_type": "toy", **config})
    if generation is not None:
        write(tmp_path, generation_config=generation)
    monkeypatch.setattr(distributions, "_packages", {})
    folder = models.read_folder(tmp_path)
    site.write("toy_lm/utils.py", "eos_token_ids = config.get('eos_token_id')")
    assert models.find_unused_stops(folder, "toy_lm") == older
    site.write("toy_lm/utils.py", 'generation_config_file = folder / "generation_config.json"')
    assert models.find_unused_stops(folder, "toy_lm") == newer
