"""``state`` of recurrent caches: save and restore them."""

from typing import Any

from ....core.verbs import Function, Patch, define
from ..._shared.targets import around_setter
from .contract import PADDING


def complete_restored(put: Function, cache: Any, saved: Any) -> None:
    """Set the state, and missing padding attributes to None: no row has padding."""
    put(cache, saved)
    for name in PADDING:
        vars(cache).setdefault(name, None)


ARRAYS_RESTORED = Patch(
    id="arrays-restored",
    severity="crash",
    targets=define(
        "mlx_lm.models.cache:ArraysCache.state",
        around_setter(complete_restored),
        fingerprint_of=("ArraysCache.state", "ArraysCache.__new__", "ArraysCache.make_mask"),
    ),
    probe=".probe_restored:probe",
    doc="""mlx-lm: a recurrent cache restored from its saved state crashes at the next mask.

    Why: ``from_state`` makes the cache without ``__init__``, and the state of a recurrent cache
        holds only its slots: ``left_padding`` and ``lengths`` are not set. ``make_mask`` and
        ``advance`` raise AttributeError, for a prompt cache loaded from a file and for a restored
        batch.
    How: Setting the state sets both to None if they are missing. The padding of the saved rows had
        been fed, so None is right.
    Upstream: mlx-lm 0.30.5 sets both before ``__init__``; 0.32.0 saves them with the state.
    Retire when: No supported release is older than mlx-lm 0.30.5.
    """,
)
