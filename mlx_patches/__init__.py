"""Version-gated runtime patches that make batching on MLX correct.

``import mlx_patches; mlx_patches.apply()`` repairs defects of the installed releases as their
modules are imported. Importing this package changes nothing, and imports neither MLX nor any
release.
"""

from __future__ import annotations

import mlx_patches

from .core.errors import MlxPatchesError, MlxPatchesWarning

TYPE_CHECKING = False  # as typing has it; importing typing costs 5 ms in every enabled process
if TYPE_CHECKING:
    from contextlib import AbstractContextManager as AbstractContextManager
    from os import PathLike as PathLike

    from .auditing.audit import Audit
    from .auditing.needs import Need
    from .core.outcome import Names as Names
    from .core.outcome import Outcome, Report, Status

__version__ = "0.2.0"
__all__ = [
    "Audit",
    "MlxPatchesError",
    "MlxPatchesWarning",
    "Need",
    "Outcome",
    "Report",
    "Status",
    "__version__",
    "apply",
    "audit",
    "needs",
    "patched",
    "restore",
    "status",
]

# Imported on first access: most processes of an enabled environment never use them.
_LAZY = {
    "AbstractContextManager": "contextlib",
    "Audit": "mlx_patches.auditing.audit",
    "Names": "mlx_patches.core.outcome",
    "Need": "mlx_patches.auditing.needs",
    "Outcome": "mlx_patches.core.outcome",
    "PathLike": "os",
    "Report": "mlx_patches.core.outcome",
    "Status": "mlx_patches.core.outcome",
}


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The annotations name the module, so that typing.get_type_hints resolves the lazy names.
def apply(
    patches: mlx_patches.Names | None = None,
    models: mlx_patches.Names | None = None,
    strict: bool = False,
    dry_run: bool = False,
    profile: str | None = None,
    without: mlx_patches.Names = (),
) -> mlx_patches.Report:
    """Activate patches in this process, now and as more modules are imported.

    Call it in each process, before or after importing mlx_lm and mlx_vlm, as often as you like.

    Args:
        patches: a list of ids to activate for every model. By default, importing a model
            activates the patches of its entry in the compat matrix.
        models: a list of model types whose entries to activate immediately.
        strict: raise if a needed patch cannot be applied, and undo this call. With
            ``MLX_PATCHES_STRICT=1`` in the environment, later imports and calls raise too.
        dry_run: report what would happen, and change nothing.
        profile: a set of patches, instead of ``patches`` and ``models``: ``batch``, ``server``,
            ``security`` or ``safe``, or several separated by commas. The default is
            ``MLX_PATCHES_PROFILE``, or ``batch,server``.
        without: a list of ids that this process does not get, whoever requests them, until
            ``restore()``.

    Returns:
        One outcome for each target of each requested patch.

    Raises:
        MlxPatchesError: an unknown patch id, model type or profile, a broken matrix, or
            (``strict``) a patch that is not in effect.

    Warns:
        MlxPatchesWarning: a needed patch could not be applied, so the defect remains; or no MLX
            package is installed.
    """
    import gc

    # With a release loaded, even a small collection takes 1 ms of the 15 ms that we may take.
    collects = gc.isenabled()
    gc.disable()
    try:
        from .activation.session import session
        from .core.packages import DISTRIBUTIONS

        report = session().apply(patches, models, strict, dry_run, profile, without)
    finally:
        if collects:
            # What we made stays: move it to the oldest generation, or the next collection visits
            # all of it, which takes 3 ms. Objects that the host froze stay frozen.
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
    if not dry_run and not report.ok:
        import warnings

        left = {one.patch: f"{one.patch} ({one.status}: {one.reason})" for one in report.findings}
        more = f"; {len(left) - 3} more" if len(left) > 3 else ""
        reasons = "; ".join(list(left.values())[:3])
        warnings.warn(f"patches not in effect: {reasons}{more}", MlxPatchesWarning, stacklevel=2)
    elif not (dry_run or report.applied or any(map(session().installed, DISTRIBUTIONS.values()))):
        import sys
        import warnings

        text = f"no MLX package is installed in {sys.prefix}: nothing was patched"
        warnings.warn(text, MlxPatchesWarning, stacklevel=2)
    return report


def patched(
    patches: mlx_patches.Names | None = None,
    models: mlx_patches.Names | None = None,
    profile: str | None = None,
) -> mlx_patches.AbstractContextManager[mlx_patches.Report]:
    """Activate patches for a ``with`` block, and remove them at its end.

    Patches that were active before stay active. All threads are affected. The arguments and errors
    are those of ``apply``.
    """
    from .activation.session import session

    return session().patched(patches, models, profile)


def restore(patches: mlx_patches.Names | None = None) -> mlx_patches.Report:
    """Remove patches from this process.

    Args:
        patches: a list of ids. By default all; then each attribute holds its original object again,
            and imports are no longer watched.

    Raises:
        MlxPatchesError: an unknown patch id.
    """
    from .activation.session import session

    return session().restore(patches)


def status() -> mlx_patches.Report:
    """Report which requested patches are in effect, from the live attributes.

    Cheap enough for a health endpoint.
    """
    from .activation.session import session

    return session().status()


def needs(model: str | mlx_patches.PathLike[str]) -> tuple[mlx_patches.Need, ...]:
    """List the patches that a model needs on the installed releases, with their effects.

    Args:
        model: a model type, or a model's folder.

    Raises:
        MlxPatchesError: an unknown model, or an unusable folder.
    """
    from .auditing.needs import needs

    return needs(model)


def audit(
    model: str | mlx_patches.PathLike[str] | None = None, host: str | None = None
) -> mlx_patches.Audit:
    """Report the installed releases, the state of each patch, and the verdicts on models.

    Args:
        model: a model type, or a model's folder.
        host: the distribution of a host server to include.

    Raises:
        MlxPatchesError: the folder's ``config.json`` cannot be used, or the host is not
            installed.
    """
    from .auditing.audit import audit

    return audit(model, host)
