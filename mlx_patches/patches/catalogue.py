"""The built-in patches: a folder each, found by ``make write``, which lists them in a table.

The table has each patch's place and targets, so that start-up imports only the patches that it puts
in effect. A patch of a distribution that is not installed is never imported.
"""

import json
from pathlib import Path

from ..core.errors import MlxPatchesError
from ..core.files import quote, read_packaged
from ..core.registry import Registry

DECLARATIONS = Path(__file__).parent / "declarations.json"
# The patches that share a function with another patch, in the order in which their layers stack,
# innermost first. Other patches need no order.
STACKED = [
    "offset-alias",
    "frozen-state",
    "batch-rotating-extract",
    "rotating-merge",
    "rotating-last-chunk",
    "rotating-keep",
    "arrays-restored",
    "mamba-rows",
    "rotating-restored",
    "joined-dtype",
    "empty-cache-ops",
    "vlm-draft-padding",
    "saved-empty",
    "saved-layer-cache",
    "gemma2-masks",
    "dynamic-rope",
    "internlm-positions",
    "rope-input",
    "long-rope",
    "rope-scaling",
    "arrays-mask",
    "arrays-extend",
    "arrays-chunks",
    "arrays-rows",
    "offset-chain",
    "kimi-states",
    "recurrent-padding",
    "ernie-image-experts",
    "row-by-row",
    "mrope-images",
    "rope-deltas",
    "minicpm-deltas",
    "batch-turbo-quant",
    "dropped-window",
    "ngram-context",
    "speculative-window",
    "draft-kept-cache",
    "speculative-split",
    "draft-none",
    "processors-prompt",
    "quantized-masks",
    "kv-bits-refused",
    "vlm-draft-options",
    "sampling-threads",
    "xtc-rows",
    "top-p-rows",
    "top-p-dtype",
    "extra-eos",
    "padding-nan",
    "unknown-kwargs",
    "token-names",
    "chunk-inputs",
    "deepstack-rows",
    "image-rows",
    "granite4-features",
    "granite4-images",
    "image-prompts",
    "mask-from-cache-list",
    "gemma-image-blocks",
    "paligemma-images",
    "llava-next-tiles",
    "minicpm-images",
    "ring-cache-batching",
    "model-code-consent",
    "model-file-names",
    "nested-rope",
    "server-lru-order",
    "server-prefix-hit",
    "server-chunked-hit",
    "server-start-adapter",
    "host-media-limits",
    "host-media-policy",
    "host-request-models",
    "generator-stream",
    "sampling-limits",
    "vlm-preprocess-turns",
    "vlm-unread-images",
    "vlm-model-swap",
    "vlm-request-failure",
    "vlm-vision-features",
    "vlm-request-adapter",
    "cross-attention-rows",
    "vllm-prefix-hit",
    "vllm-fetched-prefix",
    "vllm-json-escapes",
    "vllm-processor-failure",
    "vllm-request-fields",
    "vllm-stop-text",
    "host-request-templates",
    "vlm-embedding-inputs",
    "host-request-parameters",
    "host-schema-refs",
    "server-open-calls",
    "server-stop-text",
    "server-unread-calls",
    "server-logprobs",
    "server-empty-prompt",
    "server-hang-up",
    "server-prefix-penalty",
    "vlm-stop-text",
    "vlm-unread-calls",
    "vlm-hang-up",
    "vlm-tool-choice",
    "vlm-finish-reason",
    "vlm-thought-prefix",
    "vlm-sampling-parameters",
    "processor-rows",
    "vlm-schema-thinking",
    "vlm-row-samplers",
    "vlm-prefix-penalty",
    "vlm-prefix-first-token",
    "cancelled-prompt",
    "vlm-prefix-kv-bits",
    "openai-server-hang-up",
    "openai-server-answers",
]


def builtin() -> Registry:
    """A registry of the built-in patches."""
    try:
        rows = json.loads(read_packaged(DECLARATIONS))
        [row["place"] for row in rows.values()]
        return Registry(rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = quote(f"{type(error).__name__}: {error}")
    raise MlxPatchesError(f"{DECLARATIONS}: {problem}: reinstall mlx-patches")
