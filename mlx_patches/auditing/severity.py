"""The severity of each patch's defect: what it does to a user without the patch."""

from __future__ import annotations

from collections.abc import Iterable

from ..evidence.words import CRASH, FEATURE, MEMORY, SECURITY, SEVERITIES, WRONG_TEXT

# Other patches count as wrong-text, the worst severity, so that a new patch is not overlooked.
_PATCHES = {
    CRASH: (
        "rotating-max-size",
        "rotating-merge",
        "cachelist-state",
        "arrays-restored",
        "recurrent-extract",
        "mamba-rows",
        "empty-cache-ops",
        "learned-positions",
        "dynamic-rope",
        "long-rope",
        "arrays-extend",
        "gated-delta-mask",
        "batch-quantized",
        "batch-turbo-quant",
        "quantized-merge",
        "quantize-rotating",
        "kv-bits-refused",
        "unknown-kwargs",
        "altup-batch",
        "extend-solo-batch",
        "aya-blur",
        "server-prefix-hit",
        "server-empty-prompt",
        "vllm-empty-prompt",
        "server-batch-error",
        "vlm-preprocess-turns",
        "server-short-prompt",
        "server-xtc",
        "sampling-limits",
        "generator-stream",
        "processor-rows",
        "top-p-rows",
        "rotating-last-piece",
        "ngram-context",
        "vllm-loaded-model",
    ),
    MEMORY: (
        "arrays-advance",
        "offset-chain",
        "rotating-chain",
        "server-cache-bytes",
        "joined-dtype",
    ),
    SECURITY: (
        "phi4-siglip-code",
        "model-code-consent",
        "media-limits",
        "media-policy",
        "host-media",
        "request-models",
        "vlm-api-key",
    ),
    FEATURE: (
        "max-kv-size-ignored",
        "rotating-keep",
        "sinks-warning",
        "vlm-fresh-seed",
        "vlm-quantize-last-layer",
        "vllm-sliding-vlm",
        "vllm-json-escapes",
        "vllm-billing-header",
        "vllm-gemma4-reasoning",
    ),
}
BY_PATCH = {id_: severity for severity, ids in _PATCHES.items() for id_ in ids}


def patch_severity(patch_id: str) -> str:
    """The severity of a patch's defect."""
    return BY_PATCH.get(patch_id, WRONG_TEXT)


def worst_first(ids: Iterable[str]) -> list[str]:
    """Patches sorted by severity, the worst first; the order within one severity is kept."""
    return sorted(ids, key=lambda id_: SEVERITIES.index(patch_severity(id_)))
