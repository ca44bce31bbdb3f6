"""Who consents that a model's own code is run: logic that needs no release."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys

import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.patches.loading.model_code_consent import patch as model_code


@pytest.fixture(autouse=True)
def nobody_consents(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program"])
    for name in model_code._SETTINGS:
        monkeypatch.delenv(name, raising=False)


def called_in(name, spec=None):
    """Whether a call in a module of this name counts as one of a release."""
    module = {"__name__": name, "__spec__": spec, "ask": model_code.is_called_by_release}
    return eval("lambda: ask()", module)()


@pytest.mark.parametrize(
    "name", ["mlx_lm.lora", "mlx_vlm.models.gemma4", "vllm_mlx", "rapid_mlx.x", "omlx.engine"]
)
def test_code_of_a_release_is_on_the_stack(name):
    assert called_in(name)


@pytest.mark.parametrize("name", ["__main__", "app.models", "mlx_vlm_tools", "transformers.x"])
def test_other_code_speaks_for_itself(name):
    assert not called_in(name)


def test_a_program_that_python_runs_with_m_is_its_release():
    assert called_in("__main__", importlib.machinery.ModuleSpec("mlx_vlm.convert", None))


def load(folder, tokenizer_config=None, trust_remote_code=True, model_config=None, **kwargs):
    return model_code.has_consent()


YES = {"trust_remote_code": True}


@pytest.mark.parametrize(
    ("args", "kwargs", "heard"),
    [
        ((), {}, False),  # the default is the release's word
        ((), YES, True),
        ((YES,), {}, True),
        ((None, True), {}, True),
        ((), {"processor_config": YES}, True),
        ((), {"model_config": YES}, False),  # what a folder says about itself
        ((), {"trust_remote_code": None}, False),
    ],
)
def test_a_loader_hears_what_its_caller_passed(args, kwargs, heard):
    assert model_code.hear_caller(load, "folder", *args, **kwargs) is heard
    assert not model_code.has_consent()


def test_consent_holds_for_the_loads_within_a_load():
    def convert(folder, trust_remote_code=False):
        return model_code.hear_caller(load, folder, trust_remote_code=False)

    assert model_code.hear_caller(convert, "folder", trust_remote_code=True)


@pytest.mark.parametrize("name", model_code._SETTINGS)
def test_each_setting_is_consent(monkeypatch, name):
    monkeypatch.setenv(name, "true")
    assert model_code.has_consent()


def test_what_the_release_caught_is_raised_if_the_load_fails():
    def caught():
        with contextlib.suppress(ValueError):
            model_code.refuse("folder", "own.py")

    def failing(folder):
        caught()
        raise KeyError("something else")

    def loading(folder):
        caught()
        return "loaded by another class"

    with pytest.raises(ValueError, match=r"'own\.py'") as raised:
        model_code.hear_caller(failing, "folder")
    assert is_refusal(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)
    assert model_code.hear_caller(loading, "folder") == "loaded by another class"


def test_an_error_without_a_refusal_is_the_releases():
    def failing(folder):
        raise KeyError("something else")

    with pytest.raises(KeyError):
        model_code.hear_caller(failing, "folder")
