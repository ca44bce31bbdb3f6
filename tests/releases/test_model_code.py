"""``model-code-consent``: which calls and settings give consent, and which do not."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_patches.patches.loading import model_code
from mlx_patches.patches.loading.model_code import MODEL_CODE, VLM_MODEL_CODE
from mlx_patches.probes import model_code as probe

from .conftest import installed

CONSENT = model_code.CONSENT
# Code that leaves a mark and raises, in place of a model's own code.
CODE = "import pathlib\npathlib.Path({mark!r}).touch()\nraise LookupError('it ran')\n"


@pytest.fixture(autouse=True)
def nobody_consents(monkeypatch):
    monkeypatch.delenv(CONSENT, raising=False)


@pytest.fixture
def lm(ungated):
    if not installed("mlx-lm"):
        pytest.skip("mlx-lm is not installed in this environment")
    utils = importlib.import_module("mlx_lm.utils")
    if "model_file" not in inspect.getsource(utils.load_model):
        pytest.skip("this release runs no model's file")
    if "trust_remote_code" in inspect.signature(utils.load_model).parameters:
        pytest.skip("this release asks")
    importlib.import_module("mlx_lm.server")
    importlib.import_module("mlx_lm.lora")
    ungated(MODEL_CODE)
    return utils


@pytest.fixture
def vlm(ungated):
    if not installed("mlx-vlm"):
        pytest.skip("mlx-vlm is not installed in this environment")
    utils = importlib.import_module("mlx_vlm.utils")
    if "model_path" not in inspect.signature(utils.get_model_and_args).parameters:
        pytest.skip("this release runs no model's file")
    ungated(VLM_MODEL_CODE)
    return utils


def refused(load, folder: Path, *args, **kwargs) -> str:
    """The message of a refused load, which does not run the file."""
    mark = probe.write_folder(folder, CODE)
    mark.unlink(missing_ok=True)
    with pytest.raises(ValueError, match="asks for its own Python file") as raised:
        load(folder, *args, **kwargs)
    assert not mark.exists()
    return str(raised.value)


def ran(load, folder: Path, *args, **kwargs) -> None:
    """The load runs the file, and the file's error reaches the caller."""
    mark = probe.write_folder(folder, CODE)
    with pytest.raises(LookupError, match="it ran"):
        load(folder, *args, **kwargs)
    assert mark.exists()


def test_the_error_says_which_file_and_what_to_do(lm, tmp_path, caplog):
    said = refused(lm.load_model, tmp_path)
    for word in ("own_code.py", str(tmp_path), "--trust-remote-code", f"{CONSENT}=1"):
        assert word in said
    assert "own_code.py" in caplog.text


@pytest.mark.parametrize("file", ["a\nmlx_patches: all is well", "x" * 5000, 5, ["a"], ""])
def test_what_a_folder_says_is_one_short_line(lm, tmp_path, caplog, file):
    probe.write_folder(tmp_path, CODE)
    (tmp_path / "config.json").write_text(json.dumps({"model_file": file}))
    with pytest.raises(ValueError, match="asks for its own Python file") as raised:
        lm.load_model(tmp_path)
    (line,) = [one.getMessage() for one in caplog.records if one.name == "mlx_patches"]
    assert "\n" not in line + str(raised.value)
    assert len(line) < 400


def test_lm_load_asks_for_consent_of_its_caller(lm, tmp_path):
    refused(lm.load, tmp_path)
    refused(lm.load, tmp_path, {"trust_remote_code": None})
    refused(lm.load, tmp_path, tokenizer_config={"trust_remote_code": False})
    ran(lm.load, tmp_path, {"trust_remote_code": True})
    ran(lm.load, tmp_path, tokenizer_config={"trust_remote_code": True})
    refused(lm.load, tmp_path)  # consent is for one load


def test_a_callers_config_may_not_name_a_file_either(lm, tmp_path):
    probe.write_folder(tmp_path, CODE)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="asks for its own Python file"):
        lm.load_model(tmp_path, model_config={"model_file": "own_code.py"})


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_the_environment_consents_for_every_load(lm, tmp_path, monkeypatch, value):
    monkeypatch.setenv(CONSENT, value)
    ran(lm.load_model, tmp_path)


@pytest.mark.parametrize("value", ["", "0", "no", "off", "maybe"])
def test_other_values_are_no_consent(lm, tmp_path, monkeypatch, value):
    monkeypatch.setenv(CONSENT, value)
    refused(lm.load_model, tmp_path)


def test_the_servers_flag_is_for_the_draft_model_too(lm, tmp_path):
    server = importlib.import_module("mlx_lm.server")

    def load_draft(provider, path):
        return server.load(path)  # the server loads draft models without a tokenizer's config

    for flag, expect in ((True, ran), (False, refused), (None, refused)):
        provider = SimpleNamespace(cli_args=SimpleNamespace(trust_remote_code=flag))
        expect(lambda path, p=provider: model_code.provider_load(load_draft, p, path), tmp_path)


@pytest.mark.parametrize("flag", [True, False])
def test_the_servers_own_load(lm, tmp_path, flag):
    server = importlib.import_module("mlx_lm.server")
    arguments = SimpleNamespace(
        model=None,
        adapter_path=None,
        draft_model=None,
        pipeline=False,
        trust_remote_code=flag,
        chat_template=None,
        use_default_chat_template=False,
    )
    provider = server.ModelProvider(arguments)
    (ran if flag else refused)(lambda path: provider.load(str(path)), tmp_path)


def test_what_lora_says_for_its_users_is_no_consent(lm, tmp_path):
    lora = importlib.import_module("mlx_lm.lora")
    args = SimpleNamespace(
        seed=0, report_to=None, project_name=None, adapter_path="", model=str(tmp_path)
    )
    refused(lambda folder: lora.run(args), tmp_path)
    ran(lm.load, tmp_path, {"trust_remote_code": True})  # refused only while lora.run runs


def test_a_folder_that_cannot_be_read_is_the_releases_own_error(lm, tmp_path):
    with pytest.raises(FileNotFoundError):
        lm.load_model(tmp_path / "none")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        lm.load_model(tmp_path)


def test_a_model_without_a_file_of_its_own_loads_as_before(lm, tmp_path, caplog):
    probe.write_folder(tmp_path, CODE)
    (tmp_path / "config.json").write_text('{"model_type": "mlx_patches_none"}')
    with pytest.raises(ValueError, match="not supported"):
        lm.load_model(tmp_path)
    assert "was not run" not in caplog.text


def test_vlm_asks_for_consent_of_its_caller(vlm, tmp_path, monkeypatch):
    said = refused(vlm.load_model, tmp_path)
    assert "own_code.py" in said
    refused(vlm.load_model, tmp_path, trust_remote_code=False)
    refused(vlm.load, tmp_path)
    ran(vlm.load_model, tmp_path, trust_remote_code=True)
    refused(vlm.load_model, tmp_path)
    monkeypatch.setenv(CONSENT, "1")
    ran(vlm.load_model, tmp_path)


def test_vlm_finds_models_of_its_own_as_before(vlm):
    module, kind = vlm.get_model_and_args({"model_type": "qwen2_vl"})
    assert (module.__name__, kind) == ("mlx_vlm.models.qwen2_vl", "qwen2_vl")
    again, _ = vlm.get_model_and_args({"model_type": "qwen2_vl", "model_file": "x.py"})
    assert again is module
