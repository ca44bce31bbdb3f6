import pytest

import mlx_patches
from mlx_patches import MlxPatchesError
from mlx_patches.activation import boot, enable, profiles, run, started
from mlx_patches.activation import session as activation
from mlx_patches.activation.session import Session
from mlx_patches.auditing import screen
from mlx_patches.core.contribution import Host
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

from .conftest import patch_of, session_for


@pytest.fixture
def session(monkeypatch):
    made = Session(catalogue.builtin(), CompatMatrix.builtin())
    monkeypatch.setattr(activation, "_session", made)
    # Also patches of hosts that are not installed here.
    monkeypatch.setattr(made, "has_code", lambda patch_id: True)
    monkeypatch.setattr(made, "relevant", lambda patch_id: True)
    yield made
    mlx_patches.restore()


def list_ids(**arguments):
    return {outcome.patch for outcome in mlx_patches.apply(**arguments, dry_run=True)}


def areas_of(session, ids):
    return {session.registry.area(patch_id) for patch_id in ids}


def test_default_patches_have_profiles(session):
    for patch in session.registry:
        found = profiles.profiles_of(patch, session.registry.area(patch.id))
        assert patch.optional or {"safe"} < set(found), patch.id


def test_patches_of_each_profile(session):
    batch, server = list_ids(profile="batch"), list_ids(profile="server")
    assert "caches" in areas_of(session, batch)
    assert "server" in areas_of(session, server)
    assert not batch & server
    for profile in (None, "batch,server", "batch server"):
        assert list_ids(profile=profile) == batch | server
    assert list_ids(profile="security") == session.registry.in_profiles(["security"])


@pytest.mark.parametrize(("profile", "follows"), [("batch", True), ("server", False)])
def test_only_batch_follows_models(session, profile, follows):
    mlx_patches.apply(profile=profile)
    assert session.by_model == follows


def test_profile_from_environment(session, monkeypatch):
    monkeypatch.setenv("MLX_PATCHES_PROFILE", "server")
    assert list_ids() == list_ids(profile="server")
    assert list_ids(profile="batch") != list_ids()


@pytest.mark.parametrize("name", ["", "sever", "batch,sever"])
def test_unknown_profile(session, name):
    with pytest.raises(MlxPatchesError, match="no profile"):
        mlx_patches.apply(profile=name)
    with pytest.raises(MlxPatchesError, match="no profile"):
        enable.enable(profile=name)


@pytest.mark.parametrize(
    "named", [{"patches": catalogue.builtin().ids()[:1]}, {"models": ["default"]}]
)
def test_profile_excludes_names(session, named):
    with pytest.raises(MlxPatchesError, match="not both"):
        mlx_patches.apply(**named, profile="safe")


def test_enable_and_run_write_profile(monkeypatch):
    assert "start(profile='safe')" in enable.line().replace("\\'", "'")
    limit = Host("host", ("host",), ("host",))
    assert "start('host', ('host',), ('host',), profile='batch')" in enable.line(
        limit, "batch"
    ).replace("\\'", "'")
    monkeypatch.delenv("MLX_PATCHES_PROFILE", raising=False)
    python = [run.sys.executable]
    assert run.launch(python).variables["MLX_PATCHES_PROFILE"] == "safe"
    monkeypatch.setenv("MLX_PATCHES_PROFILE", "batch")
    assert run.launch(python).variables["MLX_PATCHES_PROFILE"] == "batch"
    assert run.launch(python, "server").variables["MLX_PATCHES_PROFILE"] == "server"


def test_environment_outranks_enable(monkeypatch):
    from mlx_patches import auto

    profiles = []
    monkeypatch.setattr(mlx_patches, "apply", lambda profile=None: profiles.append(profile))
    monkeypatch.setattr(started, "profile", "safe")
    auto.activate()
    monkeypatch.setenv("MLX_PATCHES_PROFILE", "server")
    auto.activate()
    assert profiles == ["safe", None]


def test_safe_by_default(monkeypatch):
    """From Python 3.15 on ``enable`` writes a file that names only the function, no arguments."""
    monkeypatch.setattr(boot, "_watcher", None)
    monkeypatch.setattr(started, "profile", None)
    monkeypatch.delenv("MLX_PATCHES", raising=False)
    try:
        boot.start()
        assert started.profile == "safe"
    finally:
        boot.stop()


@pytest.mark.parametrize(
    ("profile", "is_always", "area", "is_in"),
    [
        ("security", True, "caches", False),
        ("server", True, "caches", False),
        ("server", True, "server", True),
        ("batch", True, "caches", True),
        ("batch,server", True, "server", True),
        ("safe", True, "caches", True),
        ("security", False, "models", False),
        ("server", False, "models", False),
        ("batch", False, "models", True),
    ],
)
def test_audit_knows_the_enabled_profile(monkeypatch, fake, profile, is_always, area, is_in):
    """A patch that the profile leaves out is not repaired, but by choice."""
    current = session_for(patch_of("attend"), always=["fix"] if is_always else [])
    monkeypatch.setattr(activation, "_session", current)
    monkeypatch.setattr(current.registry, "area", lambda id_: area)
    monkeypatch.setattr(started, "profile", profile)
    monkeypatch.setattr(boot, "active", lambda: True)
    report = mlx_patches.audit()
    (one,) = report.outcomes
    assert (one.status == "pending", one.by_choice) == (is_in, not is_in)
    assert report.exit_code() == 0 and report.exit_code(strict=True) == (not is_in)
    lines = screen.lines(report)
    assert ("by choice" in lines[0]) is not is_in
    fact = f"  enabled with a profile that omits patches: {profile}"
    assert (fact in lines) is not is_in
    assert ("Fix:   mlx-patches enable --profile safe" in lines) is not is_in
    monkeypatch.setenv("MLX_PATCHES_PROFILE", profile)
    lines = screen.lines(mlx_patches.audit())
    assert ("Fix:   unset MLX_PATCHES_PROFILE" in lines) is not is_in


def test_audit_knows_what_the_program_requested(monkeypatch, affected):
    """Patches that no request of this process names stay out."""
    mlx_patches.apply(patches=[])
    assert mlx_patches.audit().outcomes[0].status == "disabled"
    mlx_patches.apply()
    assert mlx_patches.audit().outcomes[0].status in ("pending", "applied")
