"""Batch caches whose counts no layer reads: keep their graphs small."""

from typing import Any

from ....core.patch import MISSING, detach_dict, read_stored
from ....core.verbs import Attribute, Patch, after, define, mx
from ..._shared.handles import make_handle
from ..._shared.targets import LM_CACHES, VLM_CACHES

# A graph is cut once every so many positions.
CUT_INTERVAL = 32


# A count of the single tokens fed since a position. It has
# - the application of the patch: a count from an earlier one may be stale;
# - the offset (rows,) and ``_idx`` at that position;
# - ``left_padding``: a different array means that rows joined, left or were replaced;
# - whether a step evaluates that offset.
Count = tuple[object, Any, int, Any, bool]
# Attributes of a cache: its ``Count``, or None; the ``_idx`` from which a read of ``offset`` starts
# a count or replaces the chain; ``_idx`` at the last write of ``offset``; how many counts ended
# since the offset was evaluated.
COUNT, NEXT_CUT = "_mlx_patches_count", "_mlx_patches_due"
LAST_WRITE, RESTARTS = "_mlx_patches_last", "_mlx_patches_ended"
FRESH = {COUNT: None, NEXT_CUT: 0, LAST_WRITE: None, RESTARTS: 0}
# The offset is evaluated after so many ended counts.
MAX_RESTARTS = 8


def count_tokens(original: Any) -> Attribute:
    """Factory of the attribute ``offset``, which counts the tokens fed one at a time.

    An update writes ``offset`` and then advances ``_idx``. If ``_idx`` is one more than at the last
    write of ``offset``, that was an update of one token. Any other write ends the count.
    """
    since = object()  # each application of the patch starts new counts
    # ``offset-alias`` is the only other patch of this attribute, and is below this one. Its handle
    # is made here, since a second call would double the cost.
    makes_handles = original is not MISSING

    def read(cache: Any) -> Any:
        held = cache.__dict__
        try:
            position = held["_idx"]
            if position >= held[NEXT_CUT] and held[LAST_WRITE] == position - 1:
                try_to(cut_chain, since, cache)
            return held["offset"].__copy__() if makes_handles else held["offset"]
        except (
            KeyError,
            AttributeError,
        ):  # the cache is under construction, or older than the patch
            return original.fget(cache) if makes_handles else read_stored(cache, "offset")

    def write(cache: Any, value: Any) -> None:
        held = cache.__dict__
        held["offset"] = value
        try:
            position = held["_idx"]
            if held[LAST_WRITE] != position - 1:  # the count ends; the next token starts one
                held[COUNT], held[NEXT_CUT] = None, 0
                held[RESTARTS] += 1
                if held[RESTARTS] >= MAX_RESTARTS:
                    try_to(evaluate_offset, cache)
        except KeyError:  # the cache is under construction, or older than the patch
            position = held.get("_idx", 0)
            held = detach_dict(cache)
            held.update(FRESH)
        held[LAST_WRITE] = position

    def try_to(shorten: Any, *args: Any) -> None:
        try:
            shorten(*args)
        except Exception as error:
            attribute.report(error)

    attribute = Attribute("offset", read, put=write, guarded=False)
    return attribute


def cut_chain(since: object, cache: Any) -> None:
    """Replace the chain of additions by a single one if it is counted; else start a count."""
    held = cache.__dict__
    position = held["_idx"]
    held[NEXT_CUT] = position + CUT_INTERVAL
    count: Count | None = held[COUNT]
    held[COUNT] = None  # if this fails, the release's chain continues, which is right
    padding = held["left_padding"]
    if count is None or count[0] is not since or count[3] is not padding:
        held[COUNT] = (since, make_handle(held["offset"]), position, padding, False)
        return
    _, start, first, _, is_evaluated = count
    held["offset"] = start + (position - first)
    if not is_evaluated:
        tie(cache, start, padding)
    held[COUNT] = (since, start, first, padding, True)


def evaluate_offset(cache: Any) -> None:
    """Let the next step evaluate the offset, if nothing else replaces its chain."""
    held = cache.__dict__
    held[RESTARTS] = 0
    if cache.keys is not None:
        tie(cache, held["offset"], held["left_padding"])


def tie(cache: Any, *counts: Any) -> None:
    """Make a cache's keys depend on counts, without copying the keys.

    The counts are then evaluated with the keys. If MLX has no ``depends``, their evaluation
    starts at once, in the background.
    """
    keys = cache.keys
    if not hasattr(mx, "depends"):  # MLX below 0.29.2
        mx.async_eval(*counts)
    elif isinstance(keys, (tuple, list)):  # packed keys, scales and biases
        first = mx.depends(keys[0], list(counts))
        cache.keys = type(keys)((first, *keys[1:]))
    else:
        cache.keys = mx.depends(keys, list(counts))


OFFSET_CHAIN = Patch(
    id="offset-chain",
    severity="memory",
    targets=tuple(
        target
        for module, kind in (
            (LM_CACHES, "BatchKVCache"),
            (VLM_CACHES, "BatchKVCache"),
            (VLM_CACHES, "BatchQuantizedKVCache"),
        )
        for target in define(
            f"{module}:{kind}.offset",
            count_tokens,
            fingerprint_of=(f"{kind}.update_and_fetch",),
            defines_new_attribute=True,
        )
    ),
    doc="""mlx-lm and mlx-vlm, NoPE layers: a batch leaks a graph node with each token.

    Why: ``update_and_fetch`` adds to ``offset``, lazily. A layer with RoPE reads it, so each step
        evaluates it. Other layers never evaluate it (NoPE layers: Jamba, Kimi Linear, Nemotron-H,
        Granite hybrids, Cohere 2, EXAONE 4, Llama 4, SmolLM3; M-RoPE models, which compute
        positions once for all layers: Qwen-VL). Each token then adds a node and its buffer to the
        chain, until Metal aborts the process with "Resource limit (499000) exceeded".
    How: Each write of ``offset`` notes the position. Two writes one position apart mean an update
        of one token; such tokens are counted. Every 32 tokens ``offset`` becomes its value at the
        start of the count plus their number: one node instead of the chain, whose additions never
        run. That start value is evaluated once, with the keys. Any other write, such as a chunk of
        several tokens, ends the count; after eight ended counts the offset is evaluated.
    Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when: No supported release leaves ``offset`` unevaluated.
    """,
)


def tie_counts(cache: Any, keys: Any, /) -> None:
    """Tie the counts to the keys, once every ``CUT_INTERVAL`` positions."""
    tokens = keys.shape[-2]
    # ``_idx`` starts over when the window wraps; ``_offset`` does not.
    if cache._offset % CUT_INTERVAL < tokens < CUT_INTERVAL:
        held = cache.__dict__  # not through handles: these references do not outlive the call
        tie(cache, held["offset"], held["left_padding"])


def is_due(cache: Any, keys: Any, /) -> bool:
    """Whether an update with these keys (..., tokens, width) will tie the counts."""
    tokens = keys.shape[-2]
    return bool((cache._offset + tokens) % CUT_INTERVAL < tokens < CUT_INTERVAL)


ROTATING_CHAIN = Patch(
    id="rotating-chain",
    severity="memory",
    targets=after(
        "mlx_lm.models.cache:BatchRotatingKVCache.update_and_fetch",
        tie_counts,
        fingerprint_of=(
            "BatchRotatingKVCache._update_in_place",
            "BatchRotatingKVCache._update_concat",
        ),
        when=is_due,
    ),
    doc="""mlx-lm, sliding-window layers leak one graph node per token in a batch once the
    window is full.

    Why: Once its window is full, a rotating cache lowers ``left_padding`` by one at each step,
        lazily. Only that of the first sliding layer is read, for the mask. In the other layers each
        token adds a node and its buffer to the chain, until Metal aborts the process with "Resource
        limit (499000) exceeded".
    How: Every 32 positions the keys are made to depend on both counts, so the next step evaluates
        them. Nothing is copied, and nothing waits for the device.
    Upstream: mlx-lm 0.31.1 does this at every step, and so does mlx-vlm's own copy of the class.
    Retire when: No supported release is older than mlx-lm 0.31.1.
    """,
)
