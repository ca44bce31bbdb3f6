import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.patches.server.request_models import patch as request_models
from mlx_patches.patches.server.request_models.patch import MODELS, is_allowed


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hub cache with the model ``org/cached``, and folders; nothing is listed."""
    for name in ("hub/models--org--cached/snapshots", "served", "listed/inner", "listed-other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "served")
    (tmp_path / "listed/out").symlink_to(tmp_path / "listed-other")
    (tmp_path / "work/org/cached").mkdir(parents=True)
    constants: Any = ModuleType("huggingface_hub.constants")
    constants.HF_HUB_CACHE = str(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    monkeypatch.delenv(MODELS, raising=False)
    monkeypatch.setattr(request_models, "_started", set())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["served", "./served", "link", "org/cached", "org/served"])
def test_allowed_models(disk, name):
    assert is_allowed(name, ["served", "org/served", None])


@pytest.mark.parametrize(
    "name",
    [
        *("/", "/etc", "/etc/passwd", "listed", "served/..", "hub", "hub/models--org--cached"),
        *("org/other", "other", "", ".", "..", "~", "~/x", "org/cached/..", "org/cached/x"),
        *("org/cached ", " org/cached", "org/cached\n", "org/cached\x00", "org--cached", "../x"),
        *("http://127.0.0.1/x", "file:///etc", "org\\cached", "x" * 5000, "org/c\u0430ched"),
        *(None, 5, ["served"], {"a": 1}, True, b"served"),
    ],
)
def test_refused_models(disk, name, caplog):
    assert not is_allowed(name, ["served"])
    with pytest.raises(ValueError, match="the server was not started with it") as refused:
        request_models.check_name(name, ["served"])
    assert is_refusal(refused.value)
    (record,) = caplog.records
    assert record.getMessage().startswith("mlx_patches: host-request-models refused ")


def test_folder_named_like_cached_model(disk, monkeypatch):
    """The releases load the folder, so it counts."""
    monkeypatch.chdir(disk / "work")
    assert not is_allowed("org/cached")


def test_operator_list(disk, monkeypatch):
    monkeypatch.setenv(MODELS, os.pathsep.join(["org/other", "", str(disk / "listed")]))
    for name in ("org/other", "listed", "listed/inner", str(disk / "listed/inner")):
        assert is_allowed(name)
    for name in ("listed-other", "listed/out", "listed/../listed-other", "served", "org/others"):
        assert not is_allowed(name)


def test_failing_check_refuses(monkeypatch, caplog):
    def broken(*args: Any) -> bool:
        raise OSError("a bug")

    monkeypatch.setattr(request_models, "is_allowed", broken)
    with pytest.raises(ValueError, match="Refused to load 'served'"):
        request_models.check_name("served", ["served"])
    assert "OSError: a bug" in caplog.text


def test_mlx_lm_server():
    options = SimpleNamespace(model="served", adapter_path="listed", draft_model=None)
    provider = SimpleNamespace(cli_args=options)
    for names in (("default_model", None, "default_model"), ("served", "listed", None)):
        request_models.check_lm_load(provider, *names)
    for names in (("hub", None, None), ("served", "/etc", None), ("served", None, "hub")):
        with pytest.raises(ValueError, match="Refused"):
            request_models.check_lm_load(provider, *names)


def test_mlx_vlm_server_serves_start_model():
    def lifespan() -> None:
        request_models.check_vlm_load("served", "listed")

    mark = object()
    with pytest.raises(ValueError, match="Refused"):
        request_models.check_vlm_load("served", mark)
    with pytest.raises(ValueError, match="Refused"):
        lifespan()  # of another module
    scope = {**globals(), "__name__": "mlx_vlm.server.app"}
    exec(  # the server's own
        "def lifespan():\n    request_models.check_vlm_load('served', 'listed')\nlifespan()", scope
    )
    for names in (("served", mark), ("served", "listed"), ("served", None)):
        request_models.check_vlm_load(*names)
    for names in (("hub", None), ("served", "/etc"), ("served/..", mark)):
        with pytest.raises(ValueError, match="Refused"):
            request_models.check_vlm_load(*names)


def test_server_settings(monkeypatch):
    monkeypatch.setenv("MLX_VLM_DRAFT_MODEL", "served")
    monkeypatch.delenv("APC_DISK_PATH", raising=False)
    for payload in ({"draft_model": "served"}, {"draft_model": None, "apc_disk_path": ""}, [5]):
        request_models.check_options(payload)
    for payload in ({"draft_model": "hub"}, {"apc_disk_path": "/etc"}, {"draft_model": 5}):
        with pytest.raises(ValueError, match="Refused"):
            request_models.check_options(payload)
