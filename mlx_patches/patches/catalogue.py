"""The built-in patches, in the order in which they stack at a shared site, innermost first.

One line per patch: its id, where it is declared below this package (``module`` or
``module:NAME``), and the distribution that it changes, empty for several. A patch of a
distribution that is not installed is never imported.
"""

from __future__ import annotations

from pathlib import Path

from ..core.registry import Entry, Registry

# The targets of each patch, so that start-up need not import it. Written by tools/write_docs.py.
DECLARATIONS = Path(__file__).parent / "declarations.json"

_CATALOGUE = (
    ("offset-alias", "caches.plain.reads:OFFSET_ALIAS", ""),
    ("left-padding-alias", "caches.plain.reads:LEFT_PADDING_ALIAS", ""),
    ("frozen-state", "caches.plain.reads:FROZEN_STATE", ""),
    ("rotating-max-size", "caches.rotating:ROTATING_MAX_SIZE", ""),
    ("batch-rotating-extract", "caches.rotating:BATCH_ROTATING_EXTRACT", "mlx-lm"),
    ("rotating-merge", "caches.rotating:ROTATING_MERGE", ""),
    ("rotating-last-piece", "caches.rotating_last_piece", ""),
    ("rotating-keep", "caches.rotating_keep", ""),
    ("cachelist-state", "caches.lists:CACHELIST_STATE", ""),
    ("arrays-restored", "caches.recurrent.state:ARRAYS_RESTORED", "mlx-lm"),
    ("recurrent-extract", "caches.recurrent.extract:RECURRENT_EXTRACT", "mlx-lm"),
    ("mamba-rows", "caches.recurrent.extract:MAMBA_ROWS", "mlx-lm"),
    ("rotating-restored", "caches.rotating:ROTATING_RESTORED", ""),
    ("joined-dtype", "caches.plain.joined", ""),
    ("empty-cache-ops", "caches.plain.empty:EMPTY_CACHE_OPS", ""),
    ("gemma2-masks", "masks.gemma2_masks", ""),
    ("learned-positions", "positions.learned_positions", ""),
    ("dynamic-rope", "positions.dynamic_rope", ""),
    ("rope-input", "positions.rope_input", "mlx-lm"),
    ("long-rope", "positions.long_rope", "mlx-lm"),
    ("arrays-mask", "caches.recurrent.masks:ARRAYS_MASK", ""),
    ("arrays-extend", "caches.recurrent.rows:ARRAYS_EXTEND", "mlx-lm"),
    ("arrays-chunks", "caches.recurrent.masks:ARRAYS_CHUNKS", "mlx-lm"),
    ("gated-delta-mask", "masks.gated_delta_mask", "mlx-lm"),
    ("arrays-rows", "caches.recurrent.rows:ARRAYS_ROWS", ""),
    ("arrays-advance", "caches.recurrent.advance:ARRAYS_ADVANCE", ""),
    ("offset-chain", "caches.plain.chains:OFFSET_CHAIN", ""),
    ("rotating-chain", "caches.plain.chains:ROTATING_CHAIN", "mlx-lm"),
    ("recurrent-padding", "models.recurrent_padding", ""),
    ("row-by-row", "models.row_by_row", ""),
    ("rope-deltas", "positions.rope_deltas", "mlx-vlm"),
    ("batch-quantized", "caches.quantized.affine:BATCH_QUANTIZED", "mlx-vlm"),
    ("batch-turbo-quant", "caches.quantized.turbo:BATCH_TURBO_QUANT", "mlx-vlm"),
    ("quantized-merge", "caches.quantized.affine:QUANTIZED_MERGE", ""),
    ("window-mask", "masks.window_mask", "mlx-lm"),
    ("chunked-front", "caches.lists:CHUNKED_FRONT", ""),
    ("plamo3-window", "masks.plamo3_window", "mlx-lm"),
    ("ngram-context", "models.ngram_context", ""),
    ("speculative-window", "generation.speculative_window", "mlx-lm"),
    ("speculative-split", "generation.speculative_split", "mlx-lm"),
    ("processors-prompt", "generation.processors_prompt", "mlx-lm"),
    ("processor-rows", "generation.processor_rows", ""),
    ("quantized-masks", "masks.quantized_masks", ""),
    ("quantized-decode-mask", "masks.quantized_decode_mask", "mlx-vlm"),
    ("quantize-rotating", "generation.quantize_rotating", ""),
    ("kv-bits-refused", "generation.kv_bits_refused", "mlx-lm"),
    ("vlm-prompt-cache-cut", "generation.prompt_cache_cut", "mlx-vlm"),
    ("max-kv-size-ignored", "generation.max_kv_size_ignored", ""),
    ("vlm-quantize-last-layer", "generation.quantize_last_layer", "mlx-vlm"),
    ("padded-prompts", "generation.batch_generate:PADDED_PROMPTS", "mlx-vlm"),
    ("padded-deltas", "generation.batch_generate:PADDED_DELTAS", "mlx-vlm"),
    ("xtc-rows", "generation.xtc_rows", ""),
    ("top-p-rows", "generation.top_p_rows", "mlx-vlm"),
    ("top-p-dtype", "generation.top_p_dtype", ""),
    ("extra-eos", "loading.extra_eos", ""),
    ("mask-from-cache-list", "masks.mask_from_cache_list", ""),
    ("mask-after-update", "masks.mask_after_update", "mlx-vlm"),
    ("mask-by-offset", "masks.mask_by_offset", "mlx-vlm"),
    ("padding-nan", "caches.plain.padding:PADDING_NAN", ""),
    ("unknown-kwargs", "models.unknown_kwargs", "mlx-vlm"),
    ("mistral-row-scale", "positions.mistral_row_scale", "mlx-vlm"),
    ("shared-layer-offset", "positions.shared_layer_offset", ""),
    ("altup-batch", "models.altup_batch", "mlx-vlm"),
    ("extend-solo-batch", "caches.lists:EXTEND_SOLO_BATCH", "mlx-vlm"),
    ("deepstack-rows", "positions.deepstack_rows", "mlx-vlm"),
    ("aya-masks", "masks.aya_masks", "mlx-vlm"),
    ("ring-cache-batching", "models.ring_cache_batching", "mlx-vlm"),
    ("minimax-m3-batch", "models.minimax_m3_batch", "mlx-vlm"),
    ("aya-blur", "models.aya_blur", "mlx-vlm"),
    ("phi4-siglip-code", "loading.phi4_siglip_code", "mlx-vlm"),
    ("model-code-consent", "loading.model_code", ""),
    ("norm-shift", "loading.norm_shift", ""),
    ("adapter-tensors", "loading.adapter_tensors", "mlx-lm"),
    ("nested-rope", "loading.nested_rope", "mlx-lm"),
    ("config-names", "loading.config_names", "mlx-lm"),
    ("spare-tensors", "loading.spare_tensors", "mlx-lm"),
    ("lfm2-moe-routing", "models.lfm2_routing", ""),
    ("phimoe-routing", "models.phimoe_routing", ""),
    ("indexer-rope", "positions.indexer_rope", ""),
    ("mimo-value-scale", "models.mimo_values", ""),
    ("nemotron-time-steps", "models.nemotron_steps", "mlx-lm"),
    ("sinks-warning", "generation.sinks_warning", "mlx-lm"),
    ("server-prefix-hit", "server.server_prefix_hit", "mlx-lm"),
    ("server-chunked-hit", "server.server_chunked_hit", "mlx-lm"),
    ("server-empty-prompt", "server.server_empty_prompt", "mlx-lm"),
    ("server-batch-error", "server.server_batch_error", "mlx-lm"),
    ("server-start-adapter", "server.server_start_adapter", "mlx-lm"),
    ("media-limits", "server.limited_media", ""),
    ("media-policy", "server.public_media", ""),
    ("server-short-prompt", "server.server_short_prompt", "mlx-lm"),
    ("server-cache-bytes", "server.server_cache_bytes", "mlx-lm"),
    ("stream-spaces", "generation.stream_spaces", "mlx-lm"),
    ("generator-stream", "generation.generator_stream", "mlx-lm"),
    ("server-xtc", "server.server_xtc", ""),
    ("vlm-fresh-seed", "server.fresh_seed", "mlx-vlm"),
    ("vlm-thought-prefix", "server.thought_prefix", "mlx-vlm"),
    ("vlm-preprocess-turns", "server.preprocess_turns", "mlx-vlm"),
    ("vlm-vision-features", "server.vision_features", "mlx-vlm"),
    ("tool-arguments", "server.tool_arguments", "mlx-lm"),
    ("pythonic-calls", "server.pythonic_calls", "mlx-lm"),
    ("mllama-text", "models.mllama_text", "mlx-vlm"),
    ("falcon-text", "models.falcon_text", "mlx-vlm"),
    ("vllm-stored-prefix", "vllm_mlx.stored_prefix", "vllm-mlx"),
    ("prefix-hit", "vllm_mlx.prefix_hit", "vllm-mlx"),
    ("vllm-fetched-prefix", "vllm_mlx.fetched_prefix", "vllm-mlx"),
    ("legacy-prefix-hit", "vllm_mlx.legacy_prefix_hit", "vllm-mlx"),
    ("paged-prefix", "vllm_mlx.paged_prefix", "vllm-mlx"),
    ("vllm-gemma4-attention", "vllm_mlx.gemma4_attention", "vllm-mlx"),
    ("vllm-sliding-vlm", "vllm_mlx.sliding_vlm", "vllm-mlx"),
    ("vllm-sliding-offset", "vllm_mlx.sliding_offset", "vllm-mlx"),
    ("vllm-stop-tokens", "vllm_mlx.stop_tokens", "vllm-mlx"),
    ("vllm-loaded-model", "vllm_mlx.loaded_model", "vllm-mlx"),
    ("vllm-stream-parsers", "vllm_mlx.stream_parsers", "vllm-mlx"),
    ("vllm-empty-prompt", "vllm_mlx.empty_prompt", "vllm-mlx"),
    ("vllm-prefix-penalty", "vllm_mlx.prefix_penalty", "vllm-mlx"),
    ("vllm-json-escapes", "vllm_mlx.json_escapes", "vllm-mlx"),
    ("vllm-billing-header", "vllm_mlx.billing_header", "vllm-mlx"),
    ("vllm-gemma4-reasoning", "vllm_mlx.gemma4_reasoning", "vllm-mlx"),
)

# Former ids to those of today; a user's settings may still have the former ones.
RENAMED = {
    "never-written": "empty-cache-ops",
    "mask-list": "mask-from-cache-list",
    "single-joins": "extend-solo-batch",
    "ring-rows": "ring-cache-batching",
    "vlm-model-code-consent": "model-code-consent",
}


def builtin() -> Registry:
    """A registry of the built-in patches."""
    return Registry(
        {
            id_: Entry(f"{__package__}.{place}", distribution)
            for id_, place, distribution in _CATALOGUE
        },
        DECLARATIONS,
        RENAMED,
    )
