"""The first ``sitecustomize`` on the path of processes that ``mlx-patches run`` starts."""

import sys


def _boot() -> None:
    here = __file__.rpartition("/")[0] or __file__.rpartition("\\")[0]
    ours = sys.modules.pop("sitecustomize", None)
    path, sys.path[:] = list(sys.path), [entry for entry in sys.path if entry != here]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  (the one that ours hides, if there is one)
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        sys.path[:] = path
    try:
        from mlx_patches.activation.boot import start
    except ImportError:
        return
    start()


_boot()
