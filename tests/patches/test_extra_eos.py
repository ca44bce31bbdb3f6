import importlib
import inspect
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_patches.core import model_files
from mlx_patches.core.patch import Target
from mlx_patches.patches import catalogue
from mlx_patches.patches.loading.extra_eos import patch as extra_eos
from mlx_patches.patches.loading.extra_eos import probe

from ..releases.conftest import run_probe

PATCH = catalogue.builtin().get("extra-eos")
CONFIG, GENERATION = "config.json", "generation_config.json"
WRONG = [json.dumps({"eos_token_id": value}) for value in ("a", True, 2.5, [[3]], {"a": 1})]
MODEL_TYPE = {"model_type": probe.TINY}


def lm_stop_tokens(folder: Path) -> list[Any]:
    """The steps of ``mlx_lm.load``, without a model."""
    utils = importlib.import_module("mlx_lm.utils")
    config = utils.load_config(folder)
    return list(
        utils.load_tokenizer(folder, {}, eos_token_ids=config.get("eos_token_id")).eos_token_ids
    )


def vlm_stop_tokens(folder: Path) -> list[Any]:
    """``mlx_vlm.load``, then the reset that begins each generation."""
    from transformers import AutoConfig, PretrainedConfig

    kind = type("TinyConfig", (PretrainedConfig,), {"model_type": probe.TINY})
    AutoConfig.register(probe.TINY, kind, exist_ok=True)  # transformers 4 needs it
    mx.save_safetensors(
        str(folder / "model.safetensors"), {"weight": mx.zeros((1,))}, {"format": "mlx"}
    )
    with probe._tiny_family():
        model, processor = importlib.import_module("mlx_vlm.utils").load(str(folder))
    criteria = getattr(processor, "tokenizer", processor).stopping_criteria
    loaded = list(criteria.eos_token_ids)
    criteria.reset(model.config.eos_token_id)
    assert criteria.eos_token_ids == loaded
    return loaded


LOADERS = {"mlx-lm": lm_stop_tokens, "mlx-vlm": vlm_stop_tokens}
Loader = Callable[[Path], list[Any]]


def present(distribution: str) -> list[Target]:
    return [
        target
        for target in PATCH.targets
        if target.distribution == distribution
        and hasattr(importlib.import_module(target.module), target.name.partition(".")[0])
    ]


def lm_loader() -> Any:
    """mlx-lm's lowest loader: ``load_tokenizer`` below 0.28.4, ``load`` since."""
    (target,) = present("mlx-lm")
    return getattr(importlib.import_module(target.module), target.name)


@pytest.fixture
def load(distribution: str) -> Loader:
    return LOADERS[distribution]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The probe's folder: the tokenizer's own stop token is ``probe.OWN``."""
    probe.write_folder(tmp_path)
    return tmp_path


def write(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None) -> None:
    (folder / CONFIG).write_text(json.dumps(MODEL_TYPE | config))
    if generation is None:
        (folder / GENERATION).unlink(missing_ok=True)
    else:
        (folder / GENERATION).write_text(json.dumps(generation))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "mlx_patches" and record.levelno >= logging.WARNING
    ]


def outcome(load: Loader, folder: Path) -> list[Any] | type[BaseException]:
    try:
        return load(folder)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(
    ("config", "generation", "named"),
    [
        pytest.param({"eos_token_id": 2}, None, {2}, id="config-int"),
        pytest.param({"eos_token_id": [2, 3]}, None, {2, 3}, id="config-list"),
        pytest.param({"eos_token_id": 0}, None, {0}, id="config-zero"),
        pytest.param({"eos_token_id": 2}, {"eos_token_id": 3}, {2, 3}, id="generation-int"),
        pytest.param({"eos_token_id": 2}, {"eos_token_id": [3, 4]}, {2, 3, 4}, id="both"),
        pytest.param({"eos_token_id": 2}, {"eos_token_id": 0}, {0, 2}, id="generation-zero"),
        pytest.param({"eos_token_id": 2}, {"eos_token_id": None}, {2}, id="generation-null"),
        pytest.param({"eos_token_id": 2}, {"top_k": 1}, {2}, id="generation-without"),
        pytest.param({"text_config": {"eos_token_id": 3}}, {"eos_token_id": 2}, {2, 3}, id="text"),
        pytest.param({"text_config": {"eos_token_id": [3, 4]}}, None, {3, 4}, id="text-only"),
        pytest.param(
            {"eos_token_id": 2, "text_config": {"eos_token_id": 0}}, None, {0, 2}, id="text-zero"
        ),
    ],
)
def test_stop_tokens_are_merged(load, folder, ungated, caplog, config, generation, named):
    write(folder, config, generation)
    before = outcome(load, folder)
    ungated("extra-eos")
    stop_tokens = load(folder)
    assert set(stop_tokens) == named | {probe.OWN}
    assert isinstance(before, type) or set(before) <= set(stop_tokens)
    assert not warnings_of(caplog)


def test_negative_ids_are_ignored(load, folder, ungated):
    write(folder, {"eos_token_id": 2, "text_config": {"eos_token_id": [-1, 3]}}, None)
    ungated("extra-eos")
    assert set(load(folder)) == {probe.OWN, 2, 3}


def test_broken_json_is_one_warning(load, folder, ungated, caplog):
    write(folder, {"eos_token_id": 2}, None)
    ungated("extra-eos")
    without = set(load(folder))
    assert not warnings_of(caplog)
    (folder / GENERATION).write_text('{"eos_token_id": [3,')
    assert set(load(folder)) == without
    (warning,) = warnings_of(caplog)
    assert str(folder / GENERATION) in warning
    assert "download it again" in warning


@pytest.mark.parametrize("content", ["[]", *WRONG])
def test_wrong_file_kind_keeps_stop_tokens(load, folder, ungated, caplog, content):
    """Some releases cannot load such a folder: with the patch they raise the same error."""
    write(folder, {"eos_token_id": 2}, None)
    (folder / GENERATION).write_text(content)
    before = outcome(load, folder)
    ungated("extra-eos")
    after = outcome(load, folder)
    if isinstance(before, type) and isinstance(after, type):
        assert after is before
        return
    assert not isinstance(after, type), after
    assert probe.OWN in after
    assert 2 in after
    (warning,) = warnings_of(caplog)
    assert str(folder / GENERATION) in warning
    assert "not used" in warning


def test_callers_ids_are_merged(distribution, folder, ungated):
    write(folder, {"eos_token_id": 2}, None)
    ungated("extra-eos")
    for ids in (4, [4]):
        if distribution == "mlx-lm":
            utils = importlib.import_module("mlx_lm.utils")
            tokenizer = utils.load_tokenizer(folder, {}, eos_token_ids=ids)
            assert set(tokenizer.eos_token_ids) == {probe.OWN, 2, 4}
        else:
            utils = importlib.import_module("mlx_vlm.utils")
            processor = utils.load_processor(folder, True, eos_token_ids=ids)
            criteria = getattr(processor, "tokenizer", processor).stopping_criteria
            assert set(criteria.eos_token_ids) == {probe.OWN, 4}


@pytest.mark.parametrize("distribution", ["mlx-lm"], indirect=True)
def test_later_user_choice_is_kept(distribution, folder, ungated):
    """A tokenizer's stop tokens can still be set to anything; a benchmark removes them all."""
    ungated("extra-eos")
    tokenizer = importlib.import_module("mlx_lm.utils").load_tokenizer(folder, {})
    tokenizer.eos_token_ids = None
    assert tokenizer.eos_token_ids == set()


def test_folder_can_be_named(distribution, folder, ungated):
    """Callers may pass ``model_path`` by name."""
    ungated("extra-eos")
    if distribution == "mlx-lm":
        tokenizer = lm_loader()(model_path=folder)
        assert {probe.OWN, probe.IN_CONFIG} <= set(tokenizer.eos_token_ids)
    else:
        vlm_stop_tokens(folder)  # writes the weights
        with probe._tiny_family():
            model = importlib.import_module("mlx_vlm.utils").load_model(model_path=folder)
        assert {*probe.IN_GENERATION, probe.IN_CONFIG} <= set(model.config.eos_token_id)


@pytest.mark.parametrize("distribution", ["mlx-lm"], indirect=True)
def test_detokenizer_class_passes_through(distribution, folder, ungated):
    if "return_tokenizer" not in inspect.signature(lm_loader()).parameters:
        pytest.skip("this release's loader always returns a tokenizer")
    before = lm_loader()(folder, return_tokenizer=False)
    ungated("extra-eos")
    assert lm_loader()(folder, return_tokenizer=False) is before


SOURCES = {
    GENERATION: set(probe.IN_GENERATION),
    CONFIG: {probe.IN_CONFIG},
    "config.json: text_config": {probe.IN_TEXT_CONFIG},
    "tokenizer": {probe.OWN},
}


def test_missing_source_turns_probe_red(distribution, load, folder, ungated, monkeypatch):
    """The probe notices if the patch drops any source of ids that the release drops."""
    dropped = set().union(*SOURCES.values()) - set(load(folder))
    watched = [source for source, ids in SOURCES.items() if ids & dropped]
    assert watched
    ungated("extra-eos")
    targets = present(distribution)
    assert not any(run_probe(PATCH, target).red for target in targets)
    whole = model_files.stop_ids
    for source in watched:
        with monkeypatch.context() as mutant:
            if source == "tokenizer":
                mutant.setattr(extra_eos, "tokenizer_ids", lambda tokenizer: [])
            else:
                mutant.setattr(model_files, "stop_ids", without(whole, source))
            assert any(run_probe(PATCH, target).red for target in targets), source


def without(whole: Callable[..., Any], source: str) -> Callable[..., Any]:
    def stop_ids(*args: Any, **kwargs: Any) -> Any:
        by_file, problem = whole(*args, **kwargs)
        return {name: ids for name, ids in by_file.items() if name != source}, problem

    return stop_ids
