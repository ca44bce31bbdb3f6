"""One broken version of each patch. With it in place, the patch's probe must be red."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlx_patches.core.patch import Attribute
from mlx_patches.patches.caches import (
    arrays_chunks,
    arrays_extend,
    arrays_mask,
    arrays_restored,
    arrays_rows,
    batch_rotating_extract,
    batch_turbo_quant,
    cachelist_state,
    chunked_front,
    frozen_state,
    handles,
    mamba_rows,
    never_written,
    padding_nan,
    quantized_merge,
    quantized_rows,
    recurrent_extract,
    rotating_max_size,
    rotating_merge,
    rotating_restored,
    row_record,
    single_joins,
)
from mlx_patches.patches.generation import (
    kv_bits_refused,
    processors_prompt,
    quantize_last_layer,
    quantize_rotating,
    sinks_warning,
    speculative_split,
    speculative_window,
    xtc_rows,
)
from mlx_patches.patches.loading import extra_eos, phi4_siglip_code
from mlx_patches.patches.masks import (
    aya_masks,
    gated_delta_mask,
    gemma2_masks,
    mask_after_update,
    mask_by_offset,
    mask_list,
    plamo3_window,
    quantized_decode_mask,
    quantized_masks,
    window_mask,
)
from mlx_patches.patches.models import (
    altup_batch,
    aya_blur,
    falcon_text,
    mllama_text,
    recurrent_padding,
    ring_rows,
    row_by_row,
    unknown_kwargs,
)
from mlx_patches.patches.positions import (
    deepstack_rows,
    dynamic_rope,
    learned_positions,
    long_rope,
    mistral_row_scale,
    rope_deltas,
    shared_layer_offset,
)
from mlx_patches.patches.server import server_chunked_hit, server_empty_prompt, server_prefix_hit
from mlx_patches.patches.vllm_mlx import (
    billing_header,
    gemma4_attention,
    gemma4_reasoning,
    json_escapes,
    legacy_prefix_hit,
    loaded_model,
    paged_prefix,
    prefix_hit,
    sliding_offset,
    sliding_vlm,
    stop_tokens,
)

Mutant = Callable[[pytest.MonkeyPatch], None]


def handles_that_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "Attribute", lambda name, read: Attribute(name))


def states_that_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_state, "detached", lambda value: value)


def sizes_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating_max_size, "Attribute", lambda name, read, write: Attribute(name))


def padding_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rotating_extract, "settled", lambda cache: cache)


def lengths_of_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating_restored, "lengths", lambda cache: cache.__dict__["_lengths"])
    monkeypatch.setattr(rotating_restored, "truth", lambda saved, read: read)


def masks_by_left_padding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays_mask, "within", lambda lengths, N: True)


def padding_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays_rows, "of_rows", lambda padding, rows: padding)
    monkeypatch.setattr(arrays_rows, "joined", lambda parts, rows: parts[0])


def rows_that_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {
        "prepare": lambda cache, **padding: None,
        "finalize": lambda cache: cache.__dict__["_right_padding"],
        "extract": lambda cache, idx, solo: solo,
        "merge": lambda empty, rows: empty([0] * len(rows)),
        "size": lambda cache: 0,
        "nbytes": lambda cache: 1,
        "right_padding": lambda cache: cache.__dict__["_right_padding"],
        "_blank": lambda part, rows: part[:0, :, :0],
    }
    for name, function in broken.items():
        monkeypatch.setattr(quantized_rows, name, function)


def states_without_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_that_stay_where_they_are(monkeypatch)
    monkeypatch.setattr(batch_turbo_quant, "named", lambda cache, tree: tree)
    monkeypatch.setattr(batch_turbo_quant, "_with_codecs", lambda cache, other: cache)


def masks_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_masks, "fitted", quantized_masks.unfitted)
    monkeypatch.setattr(quantized_masks, "padded_mask", quantized_masks.unfitted)
    monkeypatch.setattr(quantized_masks, "shaped", quantized_masks.unfitted)


def a_kernel_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aya_blur, "kernel", lambda radius, sigma: [0] * radius + [1] + [0] * radius)


def code_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phi4_siglip_code, "distrusting", lambda arguments: arguments)


def a_window_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks_warning, "warn", lambda size: None)


def rings_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_rows, "ring_mask", lambda cache, window: None)
    monkeypatch.setattr(row_record, "keep", lambda cache, *carried: None)


def rows_that_stay_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_merge, "plain", lambda row: row)
    monkeypatch.setattr(quantized_merge, "merge", lambda cls, caches: None)
    monkeypatch.setattr(quantized_merge, "length", lambda cache: 0)


def spans_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        recurrent_padding, "tokens_of", lambda layer, rows, length: [(0, length)] * rows
    )


def first_id_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra_eos, "folder_ids", lambda folder: [])
    monkeypatch.setattr(extra_eos, "tokenizer_ids", lambda tokenizer: [])


def masks_in_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_decode_mask, "is_quantized", lambda cache: False)


def lists_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_list, "padded_cache", lambda caches: None)


def keys_for_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_after_update, "asking_queries", lambda attention: attention)


def padding_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding_nan, "zeroed", lambda cache, keys, values: (keys, values))


def arguments_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_kwargs, "accepted", lambda call: None)


def first_row_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistral_row_scale, "offsets_of", lambda cache: None)


def offsets_after_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_layer_offset, "before", lambda cache, tokens: cache)


def rows_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(altup_batch, "one_row", lambda states: states)


def one_mask_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aya_masks, "masks", lambda config, tokens, cache: None)


def layers_that_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        quantize_rotating, "quantized", lambda original, cache, **kwargs: original(cache, **kwargs)
    )


def no_layer_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize_last_layer, "spared", lambda count: count)


def features_in_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepstack_rows, "aligned", lambda rows, lengths: rows)


def layers_that_need_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mllama_text, "has_image", lambda states, cache: True)


def texts_that_need_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falcon_text, "needs_mask", lambda shape: False)


def layers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_joins, "batched", lambda layer: layer)


def caches_that_are_all_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(never_written, "is_empty", lambda cache: False)
    monkeypatch.setattr(never_written, "is_unused", lambda slot: False)


def masks_of_four_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma2_masks, "by_group", lambda mask: mask)


def positions_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = learned_positions.RowPositions
    monkeypatch.setattr(
        learned_positions, "RowPositions", lambda wpe, offset: rows(wpe, offset[:1] + 0 * offset)
    )


def bases_that_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        dynamic_rope, "grown_bases", lambda ends, base, *rest: base * (ends == ends)
    )


def rows_that_are_long_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        long_rope, "is_long", lambda ends, limit: (ends > limit) | (ends.max() > limit)
    )


def masks_of_the_last_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_delta_mask, "one_a_row", lambda mask: False)


def chunks_that_miss_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_front, "misses", lambda cache: False)


def hits_that_lack_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_chunked_hit, "lacks", lambda cache, held: False)


def as_many_caches_as_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative_split, "caches_of", lambda model: len(model.layers))


def models_that_read_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_bits_refused, "reads_quantized", lambda model, bits, group_size: True)


def rows_at_one_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xtc_rows, "several", lambda logits: False)


def slots_that_stay_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays_extend, "start", lambda cache, like: None)


def deltas_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_record, "keep", lambda cache, *carried: None)
    monkeypatch.setattr(rope_deltas, "positions", lambda *_: None)
    monkeypatch.setattr(rope_deltas, "of_prompts", lambda *_: None)


def masks_cut_to_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_by_offset, "columns", lambda mask: int(mask[0].sum().item()) - 2)


def caches_of_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_by_row, "of_batch", lambda layer: False)


def prefixes_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_hit, "cut_to", lambda caches, length: list(caches))


def pieces_that_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = paged_prefix.joined
    monkeypatch.setattr(paged_prefix.Piece, "is_end", True)
    monkeypatch.setattr(paged_prefix, "joined", lambda parts: joined(parts[-1:]))


def caches_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding_vlm, "welcome", list)


def windows_that_are_never_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding_offset, "is_full", lambda layer: False)


def folders_that_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_tokens, "folder_of", lambda processor: None)


def models_that_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_model, "again", lambda name, config: None)


def bodies_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_escapes, "escaped", lambda body: body)


def lines_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_header, "without_line", lambda system: system)


def thoughts_that_are_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma4_reasoning, "split", lambda text: ("", text))


def first_layers_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes_as_they_come(monkeypatch)
    monkeypatch.setattr(legacy_prefix_hit, "trimmable", lambda layer: True)


def windows_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating_merge, "one_window", lambda row: row)


def states_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays_restored, "complete", lambda cache: None)


def rows_that_stay_in_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_extract, "row_of", lambda cache, idx: cache)


def padding_of_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays_chunks, "remaining", lambda left, N: None)


def paddings_of_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba_rows, "of_rows", lambda padding: True)
    monkeypatch.setattr(mamba_rows, "of_kind", lambda row, cache: row)


def windows_that_nothing_outgrows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_mask, "outgrown", lambda tokens, window_size: False)


def caches_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plamo3_window, "shown", lambda window_size: window_size)


def hits_that_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        server_prefix_hit, "one_back", lambda fetch, prompts, model, tokens, found: (found, [])
    )


def texts_without_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_empty_prompt, "beginning", lambda tokenizer: [])


def windows_with_nothing_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative_window, "spare", lambda layer: 0)


def prompts_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors_prompt, "unseen", lambda prompt, tokens: prompt[:0])


def states_of_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachelist_state, "kinds", lambda cache: ([], []))


def a_copy_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma4_attention, "left_alone", lambda replace: replace())


MUTANTS: dict[str, Mutant] = {
    "offset-alias": handles_that_alias,
    "left-padding-alias": handles_that_alias,
    "frozen-state": states_that_are_live,
    "rotating-max-size": sizes_as_they_come,
    "batch-rotating-extract": padding_below_zero,
    "rotating-restored": lengths_of_no_row,
    "arrays-mask": masks_by_left_padding_alone,
    "arrays-rows": padding_that_stays,
    "batch-quantized": rows_that_stay_where_they_are,
    "batch-turbo-quant": states_without_codecs,
    "quantized-masks": masks_as_they_come,
    "quantized-decode-mask": masks_in_a_word,
    "quantized-merge": rows_that_stay_quantized,
    "deepstack-rows": features_in_lists,
    "ring-rows": rings_without_an_end,
    "aya-blur": a_kernel_of_one,
    "phi4-siglip-code": code_that_is_trusted,
    "sinks-warning": a_window_without_a_word,
    "single-joins": layers_as_they_are,
    "never-written": caches_that_are_all_written,
    "gemma2-masks": masks_of_four_axes,
    "learned-positions": positions_of_the_first_row,
    "long-rope": rows_that_are_long_together,
    "gated-delta-mask": masks_of_the_last_axis,
    "chunked-front": chunks_that_miss_nothing,
    "server-chunked-hit": hits_that_lack_nothing,
    "speculative-split": as_many_caches_as_layers,
    "kv-bits-refused": models_that_read_all,
    "xtc-rows": rows_at_one_threshold,
    "arrays-extend": slots_that_stay_empty,
    "dynamic-rope": bases_that_do_not_grow,
    "rope-deltas": deltas_that_stay,
    "arrays-restored": states_without_padding,
    "arrays-chunks": padding_of_one_piece,
    "mamba-rows": paddings_of_no_row,
    "window-mask": windows_that_nothing_outgrows,
    "plamo3-window": caches_of_the_window,
    "server-prefix-hit": hits_that_leave_nothing,
    "server-empty-prompt": texts_without_beginning,
    "speculative-window": windows_with_nothing_to_spare,
    "processors-prompt": prompts_of_one_token,
    "recurrent-extract": rows_that_stay_in_the_batch,
    "cachelist-state": states_of_no_cache,
    "rotating-merge": windows_as_they_are,
    "row-by-row": caches_of_no_rows,
    "vllm-gemma4-attention": a_copy_all_the_same,
    "prefix-hit": prefixes_as_they_come,
    "legacy-prefix-hit": first_layers_for_all,
    "paged-prefix": pieces_that_stand_alone,
    "vllm-sliding-vlm": caches_that_are_refused,
    "vllm-sliding-offset": windows_that_are_never_full,
    "vllm-stop-tokens": folders_that_are_nowhere,
    "vllm-json-escapes": bodies_as_they_come,
    "vllm-billing-header": lines_that_stay,
    "vllm-gemma4-reasoning": thoughts_that_are_content,
    "vllm-loaded-model": models_that_are_lost,
    "mask-by-offset": masks_cut_to_the_rows,
    "recurrent-padding": spans_without_padding,
    "extra-eos": first_id_only,
    "mask-list": lists_as_they_come,
    "mask-after-update": keys_for_queries,
    "padding-nan": padding_as_it_comes,
    "unknown-kwargs": arguments_as_they_come,
    "mistral-row-scale": first_row_for_all,
    "shared-layer-offset": offsets_after_the_update,
    "altup-batch": rows_as_they_come,
    "aya-masks": one_mask_for_both,
    "mllama-text": layers_that_need_no_image,
    "falcon-text": texts_that_need_no_mask,
    "quantize-rotating": layers_that_refuse,
    "vlm-quantize-last-layer": no_layer_is_the_last,
}
