"""The batch contract of rotating caches: what they add to the contract of ``caches``.

``RotatingKVCache`` and ``BatchRotatingKVCache`` keep the last ``max_size`` tokens of a row; a new
token overwrites the oldest column once the buffer has wrapped.

- ``max_size`` is one ``int``, the same for all rows.
- ``left_padding`` (rows,) is the number of a row's padding columns that are still in the buffer.
  It goes below zero when the window drops more columns than that.
- ``_idx`` is the column after the last written one, ``_offset`` the number of columns written in
  all, ``rotated`` whether the buffer has wrapped.
- ``merge(rows)``: each row's last ``min(offset, max_size)`` tokens in order of age, aligned on
  the right; offsets stay. Rows of different ``max_size`` raise ValueError. ``extract(idx)`` has
  no unwritten columns.
- While right padding is pending, ``_lengths`` (rows,) is the offset at which each row's prompt
  ends, else None.
- ``is_trimmable`` allows ``trim`` until the window is full.
- ``make_mask(N)`` is also False at tokens older than the window.
- ``size()`` is ``min(_offset, max_size)``.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ....core.patch import read_stored
from ....core.verbs import Attribute, Patch, argument, define, in_caches, mx, wrap
from ..._shared.rows import cut_to_window
from ..._shared.targets import around_setter

_BATCH = "BatchRotatingKVCache"


def convert_to_int(value: Any) -> Any:
    if type(value) is int:
        return value
    number = value
    if hasattr(value, "tolist") and hasattr(value, "reshape"):
        elements = value.reshape(-1).tolist()
        number = elements[0] if elements and elements.count(elements[0]) == len(elements) else None
    if isinstance(number, bool):
        return value
    if isinstance(number, str):
        return int(number) if number.isdecimal() else value
    if isinstance(number, float):
        return int(number) if number.is_integer() else value
    return int(number) if isinstance(number, int) else value


def make_max_size(original: Any) -> Attribute:
    def read(cache: Any) -> Any:
        # Without a call: each layer reads it several times per step.
        try:
            size = cache.__dict__["max_size"]
        except KeyError:
            return read_stored(cache, "max_size")  # raises AttributeError
        if type(size) is not int:  # it was set before the patch was applied
            with suppress(Exception):
                return convert_to_int(size)
        return size

    return Attribute("max_size", read, convert_to_int, guarded=False)


ROTATING_MAX_SIZE = Patch(
    id="rotating-max-size",
    severity="crash",
    every_model=True,
    targets=tuple(
        target
        for name in ("RotatingKVCache", _BATCH)
        for target in define(
            in_caches(f"{name}.max_size"),
            make_max_size,
            fingerprint_of=tuple(
                f"{name}.{method}" for method in ("__init__", "_update_in_place", "size")
            ),
            defines_new_attribute=True,
        )
    ),
    probe=".probe_max_size:probe",
    doc="""mlx-lm and mlx-vlm rotating caches crash if a host stores an array in max_size.

    Why: Hosts merge and restore rotating caches themselves, and some leave an array, a numpy scalar
        or text in ``max_size``. Slices, comparisons and ``min`` over it then fail, or return arrays
        where the release expects numbers.
    How: Setting the attribute converts the value to the ``int`` that it represents. A value that
        represents no single number is stored unchanged.
    Upstream: No release up to mlx-lm 0.32.2 and mlx-vlm 0.7.10 converts it; their own code stores
        only an ``int``. Reported in vllm-mlx #256.
    Retire when: The classes convert or check ``max_size`` themselves.
    """,
)


def extract_row(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """Extract row ``idx`` as the cache that it would have in a solo run."""
    return extract(view_tokens(cache), idx)


def view_tokens(cache: Any) -> Any:
    """A view of a batch cache whose columns are all written and whose padding is at least zero."""
    view = copy.copy(cache)
    view.left_padding = mx.maximum(cache.left_padding, 0)
    if cache.keys is not None and not cache.rotated:
        view.keys = cache.keys[..., : cache._idx, :]
        view.values = cache.values[..., : cache._idx, :]
    return view


BATCH_ROTATING_EXTRACT = Patch(
    id="batch-rotating-extract",
    targets=wrap(f"mlx_lm.models.cache:{_BATCH}.extract", extract_row),
    probe=".probe_extract:probe",
    doc="""mlx-lm: a row taken from a sliding-window batch loses context once the window is
    full.

    Why: Once the window wraps, every step lowers ``left_padding`` by one, even without padding in
        the window, so it goes below zero. ``extract`` slices the row with it, and a negative start
        keeps only the end of the buffer. The row's next decode step raises ``[full] Negative
        dimensions not allowed``. Before mlx-lm 0.30.4 a row without padding also keeps the buffer's
        unused columns as tokens.
    How: ``extract`` gets a view of the cache in which padding is at least zero and every column was
        written. The batch itself does not change.
    Upstream: mlx-lm 0.31.2 clamps the padding.
    Retire when: No supported release is older than mlx-lm 0.31.2.
    """,
)


def cut_rows_to_window(caches: Sequence[Any]) -> list[Any]:
    return [cut_to_window(row) for row in caches]


ROTATING_MERGE = Patch(
    id="rotating-merge",
    severity="crash",
    every_model=True,
    targets=argument(in_caches(f"{_BATCH}.merge"), "caches", cut_rows_to_window),
    probe=".probe_merge:probe",
    doc="""mlx-lm and mlx-vlm: a prompt longer than the sliding window crashes when it joins a
    batch.

    Why: After a prompt in one chunk a ``RotatingKVCache`` holds the whole prompt, until the next
        token. ``BatchRotatingKVCache.merge`` reserves one window and writes the whole prompt: a
        broadcast error stops the engine. If a row's window has wrapped, ``merge`` reserves only the
        columns written since then, and raises as well.
    How: A row is merged as its last ``max_size`` tokens in order of age, the only ones that later
        tokens attend to.
    Upstream: mlx-lm 0.31.2 cuts rows to the window in ``merge``.
    Retire when: No supported release is older than mlx-lm 0.31.2.
    """,
)


# The attribute ``_lengths`` of a batch without pending right padding.
NO_LENGTHS = None


def put_meta_state(put: Callable[..., None], cache: Any, saved: Any) -> None:
    """Set the ``meta_state``; parse ``rotated`` from the texts "False" and "True"."""
    put(cache, saved)
    cache.rotated = parse_bool(saved[-1], cache.rotated)


def parse_bool(saved: Any, default: bool) -> bool:
    return saved == "True" if saved in ("False", "True") else default


ROTATING_RESTORED = Patch(
    id="rotating-restored",
    targets=(
        *define(
            in_caches(f"{_BATCH}._lengths"),
            lambda original: NO_LENGTHS,
            fingerprint_of=(f"{_BATCH}.__init__", f"{_BATCH}.state"),
            defines_new_attribute=True,
        ),
        *define(in_caches(f"{_BATCH}.meta_state"), around_setter(put_meta_state)),
    ),
    probe=".probe_restored:probe",
    doc="""mlx-lm and mlx-vlm: a restored sliding-window batch crashes or attends to the wrong
    tokens.

    Why: ``from_state`` makes the cache without ``__init__``, and no state holds ``_lengths``: the
        next chunk, filter or finalize raises AttributeError. Releases that save ``rotated`` as text
        restore it with ``bool``, and ``bool("False")`` is true: a buffer that never wrapped is
        treated as wrapped.
    How: ``_lengths`` is None until it is set, as after ``__init__``. ``rotated`` is parsed from the
        saved text.
    Upstream: mlx-lm 0.32.0 saves no text; no release restores ``_lengths`` yet.
    Retire when: ``from_state`` sets ``_lengths`` in every supported release.
    """,
)
