"""All patches by id.

Modules are imported when their patch is asked for: start-up pays for what it uses.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from ._errors import MlxPatchesError
from ._patch import Patch

_PATCHES = "mlx_patches.patches"
# Folders of the patches of one distribution: not imported where it is not installed.
_FOLDERS = frozenset({"mlx_lm", "mlx_vlm", "vllm_mlx"})
# Id to module, in the order in which they are applied.
_BUILTIN = {
    "offset-alias": "shared.offset_alias",
    "left-padding-alias": "shared.left_padding_alias",
    "frozen-state": "shared.frozen_state",
    "rotating-max-size": "shared.rotating_max_size",
    "batch-rotating-extract": "mlx_lm.batch_rotating_extract",
    "rotating-merge": "shared.rotating_merge",
    "cachelist-state": "shared.cachelist_state",
    "arrays-restored": "mlx_lm.arrays_restored",
    "recurrent-extract": "mlx_lm.recurrent_extract",
    "mamba-rows": "mlx_lm.mamba_rows",
    "rotating-restored": "shared.rotating_restored",
    "never-written": "shared.never_written",
    "gemma2-masks": "shared.gemma2_masks",
    "learned-positions": "shared.learned_positions",
    "dynamic-rope": "shared.dynamic_rope",
    "long-rope": "mlx_lm.long_rope",
    "arrays-mask": "shared.arrays_mask",
    "arrays-extend": "mlx_lm.arrays_extend",
    "arrays-chunks": "mlx_lm.arrays_chunks",
    "gated-delta-mask": "mlx_lm.gated_delta_mask",
    "arrays-rows": "shared.arrays_rows",
    "recurrent-padding": "shared.recurrent_padding",
    "row-by-row": "shared.row_by_row",
    "rope-deltas": "shared.rope_deltas",
    "batch-quantized": "mlx_vlm.batch_quantized",
    "batch-turbo-quant": "mlx_vlm.batch_turbo_quant",
    "quantized-merge": "shared.quantized_merge",
    "window-mask": "mlx_lm.window_mask",
    "chunked-front": "mlx_lm.chunked_front",
    "plamo3-window": "mlx_lm.plamo3_window",
    "speculative-window": "mlx_lm.speculative_window",
    "speculative-split": "mlx_lm.speculative_split",
    "processors-prompt": "mlx_lm.processors_prompt",
    "quantized-masks": "shared.quantized_masks",
    "quantized-decode-mask": "mlx_vlm.quantized_decode_mask",
    "quantize-rotating": "shared.quantize_rotating",
    "kv-bits-refused": "mlx_lm.kv_bits_refused",
    "vlm-quantize-last-layer": "mlx_vlm.quantize_last_layer",
    "xtc-rows": "mlx_lm.xtc_rows",
    "extra-eos": "shared.extra_eos",
    "mask-list": "shared.mask_list",
    "mask-after-update": "mlx_vlm.mask_after_update",
    "mask-by-offset": "mlx_vlm.mask_by_offset",
    "padding-nan": "shared.padding_nan",
    "unknown-kwargs": "mlx_vlm.unknown_kwargs",
    "mistral-row-scale": "mlx_vlm.mistral_row_scale",
    "shared-layer-offset": "shared.shared_layer_offset",
    "altup-batch": "mlx_vlm.altup_batch",
    "single-joins": "mlx_vlm.single_joins",
    "deepstack-rows": "mlx_vlm.deepstack_rows",
    "aya-masks": "mlx_vlm.aya_masks",
    "ring-rows": "mlx_vlm.ring_rows",
    "aya-blur": "mlx_vlm.aya_blur",
    "phi4-siglip-code": "mlx_vlm.phi4_siglip_code",
    "sinks-warning": "mlx_lm.sinks_warning",
    "server-prefix-hit": "mlx_lm.server_prefix_hit",
    "server-chunked-hit": "mlx_lm.server_chunked_hit",
    "server-empty-prompt": "mlx_lm.server_empty_prompt",
    "mllama-text": "mlx_vlm.mllama_text",
    "falcon-text": "mlx_vlm.falcon_text",
    "prefix-hit": "vllm_mlx.prefix_hit",
    "legacy-prefix-hit": "vllm_mlx.legacy_prefix_hit",
    "paged-prefix": "vllm_mlx.paged_prefix",
    "vllm-gemma4-attention": "vllm_mlx.gemma4_attention",
    "vllm-sliding-vlm": "vllm_mlx.sliding_vlm",
    "vllm-sliding-offset": "vllm_mlx.sliding_offset",
    "vllm-stop-tokens": "vllm_mlx.stop_tokens",
    "vllm-loaded-model": "vllm_mlx.loaded_model",
    "vllm-json-escapes": "vllm_mlx.json_escapes",
    "vllm-billing-header": "vllm_mlx.billing_header",
    "vllm-gemma4-reasoning": "vllm_mlx.gemma4_reasoning",
}


class Registry:
    """Patches by id. ``get`` imports the patch's module on first use."""

    def __init__(self, modules: dict[str, str] | None = None):
        self._modules = dict(modules or {})
        self._patches: dict[str, Patch] = {}
        self._origins: dict[str, str] = {}

    def add(self, patch: Patch, origin: str = "") -> None:
        """Add a patch.

        Raises:
            ValueError: the id is taken.
        """
        if patch.id in self:
            raise ValueError(f"patch {patch.id!r} is registered already")
        self._patches[patch.id] = patch
        self._origins[patch.id] = origin

    def get(self, patch_id: str) -> Patch:
        """Return a patch.

        Raises:
            MlxPatchesError: there is none of this id.
        """
        if patch_id not in self:
            raise MlxPatchesError(
                f"no patch {patch_id!r}{self.hint(patch_id)} (mlx-patches list shows them all)"
            )
        if patch_id not in self._patches:
            patch = importlib.import_module(self._modules[patch_id]).PATCH
            assert patch.id == patch_id, (patch.id, patch_id)
            self._patches[patch_id] = patch
        return self._patches[patch_id]

    def ids(self) -> tuple[str, ...]:
        """Every id, in order of application."""
        return tuple(dict.fromkeys((*self._modules, *self._patches)))

    def hint(self, name: str) -> str:
        """The id that a mistyped one is close to, as the end of a sentence; empty for none."""
        from difflib import get_close_matches

        close = get_close_matches(name, self.ids(), n=1)
        return f"; did you mean {close[0]!r}?" if close else ""

    def package(self, patch_id: str) -> str | None:
        """The distribution whose code alone one of our patches is about; None for several."""
        folder = self._modules.get(patch_id, "").removeprefix(f"{_PATCHES}.").partition(".")[0]
        return folder.replace("_", "-") if folder in _FOLDERS else None

    def origin(self, patch_id: str) -> str:
        """The distribution that contributed a patch; empty for our own."""
        return self._origins.get(patch_id, "")

    def __contains__(self, patch_id: object) -> bool:
        return patch_id in self._modules or patch_id in self._patches

    def __iter__(self) -> Iterator[Patch]:
        return map(self.get, self.ids())


def builtin() -> Registry:
    """Our own patches."""
    return Registry({id_: f"{_PATCHES}.{name}" for id_, name in _BUILTIN.items()})
