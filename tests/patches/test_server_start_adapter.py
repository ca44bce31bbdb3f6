import importlib

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.server.server_start_adapter.probe import make_provider

from ..releases.conftest import is_installed, verdict

PATCH = catalogue.builtin().get("server-start-adapter")


@pytest.fixture
def kind(ungated):
    if not is_installed("mlx-lm"):
        pytest.skip("mlx-lm is not installed in this environment")
    if not verdict(PATCH, PATCH.targets[0]).ok:
        pytest.skip("this release is right, or serves in another way")
    ungated("server-start-adapter")
    return importlib.import_module("mlx_lm.server").ModelProvider


def load(kind, *request, adapter="adapter"):
    provider = make_provider(kind, adapter)
    provider.load(*request)
    return provider.loaded


@pytest.mark.parametrize(
    ("request_", "adapter", "loaded"),
    [
        (("default_model",), "adapter", ("model", "adapter", None)),
        (("default_model", None, "default_model"), "adapter", ("model", "adapter", None)),
        (("default_model", "its own"), "adapter", ("model", "its own", None)),
        (("default_model", "its own"), None, ("model", "its own", None)),
        (("default_model",), None, ("model", None, None)),
        (("another",), "adapter", ("another", None, None)),
        (("another", "its own"), "adapter", ("another", "its own", None)),
        (("another", None, "draft"), "adapter", ("another", None, "draft")),
    ],
)
def test_adapter_for_request(kind, request_, adapter, loaded):
    assert load(kind, *request_, adapter=adapter) == [loaded]


def test_loaded_model_is_not_reloaded(kind):
    provider = make_provider(kind)
    for _ in range(3):
        provider.load("default_model", None, "default_model")
    assert len(provider.loaded) == 1


def test_keyword_arguments(kind):
    provider = make_provider(kind)
    provider.load(model_path="default_model", draft_model_path=None)
    assert provider.loaded == [("model", "adapter", None)]
