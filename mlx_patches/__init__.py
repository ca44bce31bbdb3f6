"""Version-gated runtime patches that make batching on MLX correct.

``import mlx_patches; mlx_patches.apply()`` repairs what the installed releases get wrong, as
their modules are imported. Importing this package alone changes nothing and imports neither
MLX nor any release.
"""

from __future__ import annotations

from .core.errors import MlxPatchesError

TYPE_CHECKING = False  # as typing has it; importing typing costs 5 ms in every enabled process
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .auditing.audit import Audit
    from .core.outcome import Report

__version__ = "0.1.0"
__all__ = ["MlxPatchesError", "__version__", "apply", "audit", "restore", "status"]


def apply(
    patches: Iterable[str] | None = None,
    models: Iterable[str] | None = None,
    strict: bool = False,
    dry_run: bool = False,
) -> Report:
    """Activate patches in this process, now and as further modules are imported.

    Call it before or after mlx_lm and mlx_vlm are imported, any number of times, in each
    process.

    Args:
        patches: ids to activate for every model. By default importing a model activates what
            its row in the compat matrix names.
        models: model types whose rows to activate, whatever is imported later.
        strict: raise where an imported target needs a patch and cannot have it. Where the
            environment has ``MLX_PATCHES_STRICT=1``, so do later imports and calls.
        dry_run: decide and report, change nothing.

    Returns:
        One outcome for each target of each patch that was asked for.

    Raises:
        MlxPatchesError: an unknown patch id, a broken matrix, or (``strict``) a patch that is
            not in effect.
    """
    import gc

    # Where a release is loaded, even a small collection takes a millisecond of the fifteen.
    collects = gc.isenabled()
    gc.disable()
    try:
        from .activation.session import session

        return session().apply(patches, models, strict, dry_run)
    finally:
        if collects:
            gc.enable()


def restore(patches: Iterable[str] | None = None) -> Report:
    """Give back the very objects that ``apply`` replaced, and stop watching imports.

    Args:
        patches: ids to take out; all by default.

    Raises:
        MlxPatchesError: an unknown patch id.
    """
    from .activation.session import session

    return session().restore(patches)


def status() -> Report:
    """Say of each patch that was asked for what is in effect, by looking at the live objects."""
    from .activation.session import session

    return session().status()


def audit(model: str | None = None, host: str | None = None) -> Audit:
    """Report what is installed, what each patch finds there, and what is in effect.

    Args:
        model: a model type, or a model's folder.
        host: a host server's distribution, to report on as well.

    Raises:
        MlxPatchesError: the folder's ``config.json`` cannot be used, or the host is not
            installed.
    """
    from .auditing.audit import audit

    return audit(model, host)
