"""MiniCPM-V 4.6 and Qwen3.5 in mlx-vlm: chunked prefill crashes if a batch has other rows.

Why: The language model of Qwen3.5 stores rope deltas, one per row, on itself: those that it
    computes, and since 0.6.5 those that are passed. MiniCPM-V 4.6 stores a batch's when it embeds
    the prompts. A prompt without its own deltas uses the stored ones, whichever rows they belong
    to. A decode step of other rows, or the embedding of the next prompts, may come between two
    chunks. If the batch in prefill has more rows, its next chunk raises.
How: Before a call that would raise, a single delta of 0 is stored, which the model uses for all
    rows. Every host passes a row's delta or positions if the row has another delta.
Upstream: Not reported; present in mlx-vlm 0.7.10.
Retire when: The probe is green without the patch for every supported release.
"""

from typing import Any

from ....core.verbs import Function, Patch, around, define, mx, vlm_family


def has_too_few(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a call would use stored deltas of several, but too few rows."""
    if kwargs.get("rope_deltas") is not None or kwargs.get("position_ids") is not None:
        return False
    stored = getattr(model, "_rope_deltas", None)
    return stored is not None and 1 < stored.size < inputs.shape[0]


def call_with_one(call: Function, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the language model with one delta instead of those of too few rows."""
    model._rope_deltas = make_delta(model._rope_deltas)
    return call(model, inputs, *args, **kwargs)


def make_delta(stored: Any) -> Any:
    """The delta (1, 1) of rows without deltas, of the stored dtype."""
    return mx.zeros((1, 1), stored.dtype)


PATCH = Patch(
    id="minicpm-deltas",
    severity="crash",
    targets=define(
        vlm_family("qwen3_5", "LanguageModel.__call__"), around(call_with_one), when=has_too_few
    ),
    probe=".probe_minicpm:probe",
)
