"""One broken version of each patch. With it, the patch's probe must be red."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from mlx_patches.core.patch import Attribute
from mlx_patches.patches._shared import row_calls, row_record
from mlx_patches.patches.caches.chains import patch as chains
from mlx_patches.patches.caches.empty_cache_ops import patch as empty
from mlx_patches.patches.caches.joined_dtype import patch as joined
from mlx_patches.patches.caches.lists import patch as lists
from mlx_patches.patches.caches.padding_nan import patch as padding
from mlx_patches.patches.caches.quantized import affine, contract, turbo
from mlx_patches.patches.caches.reads import patch as reads
from mlx_patches.patches.caches.recurrent import advance, extract, masks, rows, state
from mlx_patches.patches.caches.rotating import patch as rotating
from mlx_patches.patches.caches.rotating_keep import patch as rotating_keep
from mlx_patches.patches.caches.rotating_last_piece import patch as rotating_last_piece
from mlx_patches.patches.generation.batch_generate import patch as batch_generate
from mlx_patches.patches.generation.generator_stream import patch as generator_stream
from mlx_patches.patches.generation.kv_bits_refused import patch as kv_bits_refused
from mlx_patches.patches.generation.max_kv_size_ignored import patch as max_kv_size_ignored
from mlx_patches.patches.generation.processor_rows import patch as processor_rows
from mlx_patches.patches.generation.processors_prompt import patch as processors_prompt
from mlx_patches.patches.generation.quantize_layers import last_layer as quantize_last_layer
from mlx_patches.patches.generation.quantize_layers import rotating as quantize_rotating
from mlx_patches.patches.generation.sampling_limits import patch as sampling_limits
from mlx_patches.patches.generation.sampling_threads import patch as sampling_threads
from mlx_patches.patches.generation.sinks_warning import patch as sinks_warning
from mlx_patches.patches.generation.speculative_split import patch as speculative_split
from mlx_patches.patches.generation.speculative_window import patch as speculative_window
from mlx_patches.patches.generation.stream_spaces import patch as stream_spaces
from mlx_patches.patches.generation.top_p_dtype import patch as top_p_dtype
from mlx_patches.patches.generation.top_p_rows import patch as top_p_rows
from mlx_patches.patches.generation.vlm_prompt_cache_cut import patch as prompt_cache_cut
from mlx_patches.patches.generation.xtc_rows import patch as xtc_rows
from mlx_patches.patches.loading.adapter_tensors import patch as adapter_tensors
from mlx_patches.patches.loading.config_names import patch as config_names
from mlx_patches.patches.loading.extra_eos import patch as extra_eos
from mlx_patches.patches.loading.model_code_consent import patch as model_code
from mlx_patches.patches.loading.nested_rope import patch as nested_rope
from mlx_patches.patches.loading.norm_shift import patch as norm_shift
from mlx_patches.patches.loading.phi4_siglip_code import patch as phi4_siglip_code
from mlx_patches.patches.loading.spare_tensors import patch as spare_tensors
from mlx_patches.patches.masks.aya_masks import patch as aya_masks
from mlx_patches.patches.masks.gated_delta_mask import patch as gated_delta_mask
from mlx_patches.patches.masks.gemma2_masks import patch as gemma2_masks
from mlx_patches.patches.masks.mask_after_update import patch as mask_after_update
from mlx_patches.patches.masks.mask_by_offset import patch as mask_by_offset
from mlx_patches.patches.masks.mask_from_cache_list import patch as mask_from_cache_list
from mlx_patches.patches.masks.plamo3_window import patch as plamo3_window
from mlx_patches.patches.masks.quantized_decode_mask import patch as quantized_decode_mask
from mlx_patches.patches.masks.quantized_masks import patch as quantized_masks
from mlx_patches.patches.masks.window_mask import patch as window_mask
from mlx_patches.patches.models.altup_batch import patch as altup_batch
from mlx_patches.patches.models.aya_blur import patch as aya_blur
from mlx_patches.patches.models.falcon_text import patch as falcon_text
from mlx_patches.patches.models.lfm2_moe_routing import patch as lfm2_routing
from mlx_patches.patches.models.mimo_value_scale import patch as mimo_values
from mlx_patches.patches.models.minimax_m3_batch import patch as minimax_m3_batch
from mlx_patches.patches.models.mllama_text import patch as mllama_text
from mlx_patches.patches.models.nemotron_time_steps import patch as nemotron_steps
from mlx_patches.patches.models.ngram_context import patch as ngram_context
from mlx_patches.patches.models.phimoe_routing import patch as phimoe_routing
from mlx_patches.patches.models.recurrent_padding import batch as recurrent_batch
from mlx_patches.patches.models.recurrent_padding import patch as recurrent_padding
from mlx_patches.patches.models.ring_cache_batching import patch as ring_cache_batching
from mlx_patches.patches.models.row_by_row import offsets
from mlx_patches.patches.models.row_by_row import patch as row_by_row
from mlx_patches.patches.models.unknown_kwargs import patch as unknown_kwargs
from mlx_patches.patches.positions.deepstack_rows import patch as deepstack_rows
from mlx_patches.patches.positions.dynamic_rope import patch as dynamic_rope
from mlx_patches.patches.positions.indexer_rope import patch as indexer_rope
from mlx_patches.patches.positions.learned_positions import patch as learned_positions
from mlx_patches.patches.positions.long_rope import patch as long_rope
from mlx_patches.patches.positions.mistral_row_scale import patch as mistral_row_scale
from mlx_patches.patches.positions.rope_deltas import kept_deltas, prompts
from mlx_patches.patches.positions.rope_deltas import patch as rope_deltas
from mlx_patches.patches.positions.rope_input import patch as rope_input
from mlx_patches.patches.positions.shared_layer_offset import patch as shared_layer_offset
from mlx_patches.patches.server.media import fetch_policy
from mlx_patches.patches.server.media import host as host_media
from mlx_patches.patches.server.media import limited as limited_media
from mlx_patches.patches.server.media import limits as media_limits
from mlx_patches.patches.server.media import public as public_media
from mlx_patches.patches.server.pythonic_calls import patch as pythonic_calls
from mlx_patches.patches.server.request_models import patch as request_models
from mlx_patches.patches.server.server_batch_error import patch as server_batch_error
from mlx_patches.patches.server.server_cache_bytes import patch as server_cache_bytes
from mlx_patches.patches.server.server_chunked_hit import patch as server_chunked_hit
from mlx_patches.patches.server.server_empty_prompt import patch as server_empty_prompt
from mlx_patches.patches.server.server_prefix_hit import patch as server_prefix_hit
from mlx_patches.patches.server.server_short_prompt import patch as server_short_prompt
from mlx_patches.patches.server.server_start_adapter import patch as server_start_adapter
from mlx_patches.patches.server.server_xtc import patch as server_xtc
from mlx_patches.patches.server.tool_arguments import patch as tool_arguments
from mlx_patches.patches.server.vlm_api_key import patch as api_key
from mlx_patches.patches.server.vlm_fresh_seed import patch as fresh_seed
from mlx_patches.patches.server.vlm_preprocess_turns import patch as preprocess_turns
from mlx_patches.patches.server.vlm_thought_prefix import patch as thought_prefix
from mlx_patches.patches.server.vlm_vision_features import patch as vision_features
from mlx_patches.patches.vllm_mlx.prefix import fetched as fetched_prefix
from mlx_patches.patches.vllm_mlx.prefix import hit as prefix_hit
from mlx_patches.patches.vllm_mlx.prefix import legacy as legacy_prefix_hit
from mlx_patches.patches.vllm_mlx.prefix import paged as paged_prefix
from mlx_patches.patches.vllm_mlx.prefix import stored as stored_prefix
from mlx_patches.patches.vllm_mlx.sliding import offset as sliding_offset
from mlx_patches.patches.vllm_mlx.sliding import vlm as sliding_vlm
from mlx_patches.patches.vllm_mlx.vllm_billing_header import patch as billing_header
from mlx_patches.patches.vllm_mlx.vllm_empty_prompt import patch as empty_prompt
from mlx_patches.patches.vllm_mlx.vllm_gemma4_attention import patch as gemma4_attention
from mlx_patches.patches.vllm_mlx.vllm_gemma4_reasoning import patch as gemma4_reasoning
from mlx_patches.patches.vllm_mlx.vllm_json_escapes import patch as json_escapes
from mlx_patches.patches.vllm_mlx.vllm_loaded_model import patch as loaded_model
from mlx_patches.patches.vllm_mlx.vllm_prefix_penalty import patch as prefix_penalty
from mlx_patches.patches.vllm_mlx.vllm_stop_tokens import patch as stop_tokens
from mlx_patches.patches.vllm_mlx.vllm_stream_parsers import patch as stream_parsers

Mutant = Callable[[pytest.MonkeyPatch], None]


def experts_by_their_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    def route(block: Any, x: Any) -> Any:
        import mlx.core as mx

        scores = mx.softmax(block.gate(x), axis=-1) + block.expert_bias
        chosen = mx.argpartition(scores, kth=-block.top_k, axis=-1)[..., -block.top_k :]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        return chosen, weights / weights.sum(axis=-1, keepdims=True)

    monkeypatch.setattr(lfm2_routing, "route", route)


def experts_that_are_all_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phimoe_routing, "JITTER", 1000.0)


def indexers_that_rotate_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer_rope, "rotates_halves", lambda args: False)


def scales_that_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mimo_values, "scale_of", lambda attention: None)


def limits_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemotron_steps, "_UNLIMITED", None)


def arrays_that_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope_input, "make_handle", lambda x: x)


def calls_that_are_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythonic_calls, "find_calls", lambda text: [])
    monkeypatch.setattr(pythonic_calls, "_START", "<nowhere>")


def tensors_that_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_tensors, "misfits", lambda model, file, folder: [])


def views_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_prefix, "detached", lambda layers: layers)


def hits_that_stay_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_prefix, "evaluate", lambda layers: None)


def names_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested_rope, "old_names", lambda nested, params, known: {})


def configs_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_names, "_LETTERS", dict.fromkeys(config_names._LETTERS, "M"))
    monkeypatch.setattr(config_names, "_FEED_FORWARD", "nowhere")


def tensors_that_are_all_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_tensors, "is_spare", lambda model, name: False)


def handles_that_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "Attribute", lambda name, read: Attribute(name))


def states_that_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads.copy_state, "__code__", (lambda state, cache=None: state).__code__)


def sizes_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating, "Attribute", lambda name, read, write: Attribute(name))


def rows_with_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    view_tokens = rotating.view_tokens

    def view_padding(cache: Any) -> Any:
        view = view_tokens(cache)
        view.left_padding = view.left_padding * 0
        return view

    monkeypatch.setattr(rotating, "view_tokens", view_padding)


def lengths_that_were_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rotating, "read_lengths", lambda cache: cache.__dict__.get("_lengths", cache.offset - 1)
    )
    monkeypatch.setattr(rotating, "parse_truth", lambda saved, read: saved == "False")


def lengths_that_are_one_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    mask_right = masks.mask_right
    monkeypatch.setattr(masks, "mask_right", lambda lengths, N: mask_right(lengths + 1, N))


def padding_of_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "take_padding", take_first_padding)
    concatenate = rows.concatenate_padding
    monkeypatch.setattr(
        rows, "concatenate_padding", lambda parts, counts: concatenate(parts[::-1], counts[::-1])
    )


def take_first_padding(padding: dict[str, Any], kept: Any) -> dict[str, Any]:
    return {name: values[: len(kept)] for name, values in padding.items()}


def rows_beside_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks each part: rolls all rows alike, pads the wrong side, miscounts sizes, and more."""
    pad_left, copy_row, roll_rows = contract.pad_left, contract.copy_row, contract.roll_rows

    def add_left_padding(cache, padding):
        cache.left_padding = cache.left_padding + padding

    def pad_right(part, left):
        return pad_left(part[:, :, ::-1], left)[:, :, ::-1]

    broken = {
        "add_left_padding": add_left_padding,
        "roll_rows": lambda part, shifts: roll_rows(part, shifts * 0 + shifts.max()),
        "copy_row": lambda tree, row, start, end: copy_row(tree, row, 0, end - start),
        "pad_left": pad_right,
        "make_blank_rows": lambda part, rows: part[:0, :, :0],
        "size": lambda cache: int(cache._idx) + 1,
        "nbytes": lambda cache: sum(part.nbytes for part in cache.keys or ()),
        "read_right_padding": lambda cache: cache.__dict__["_right_padding"],
    }
    for name, function in broken.items():
        monkeypatch.setattr(contract, name, function)


def states_without_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_beside_their_places(monkeypatch)
    monkeypatch.setattr(turbo, "name_states", lambda cache, tree: tree)
    monkeypatch.setattr(turbo, "restore_codecs", lambda cache, text: None)


def masks_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    add_shape = quantized_masks.add_shape
    monkeypatch.setattr(quantized_masks, "add_group_axis", lambda mask, groups: mask[:1, None])
    monkeypatch.setattr(quantized_masks, "make_padded_mask", quantized_masks.attend_as_before)
    monkeypatch.setattr(
        quantized_masks, "add_shape", lambda parts, width: add_shape(parts, width // 8)
    )


def a_kernel_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aya_blur, "kernel", lambda radius, sigma: [0] * radius + [1] + [0] * radius)


def code_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phi4_siglip_code, "distrusting", lambda arguments: arguments)


def code_that_everybody_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_code, "has_consent", lambda: True)


def checkpoints_that_nobody_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_shift, "is_converted", lambda weights: False)
    monkeypatch.setattr(norm_shift, "is_published", lambda name: True)


def starts_without_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_start_adapter, "adapter_of", lambda provider, model: None)


def files_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = media_limits.Limits(2**40, 60.0)
    monkeypatch.setattr(limited_media, "IMAGE", endless)
    monkeypatch.setattr(limited_media, "MEDIA", endless)


def hosts_and_paths_that_are_all_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_policy, "is_public", lambda address: True)
    monkeypatch.setattr(public_media, "local_path", lambda path, roots: path)
    monkeypatch.setattr(public_media, "named_file", lambda path, kind: path)
    monkeypatch.setattr(public_media, "plain_name", lambda name: name)
    monkeypatch.setattr(public_media, "no_names", lambda source: None)
    monkeypatch.setattr(public_media, "check_kind", lambda content, kind: None)


def hosts_that_take_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_policy, "is_public", lambda address: True)
    monkeypatch.setattr(host_media, "named_file", lambda path, kind: path)
    monkeypatch.setattr(host_media, "plain_name", lambda name: name)
    monkeypatch.setattr(host_media, "check_kind", lambda content, kind: None)
    monkeypatch.setattr(host_media, "admit", lambda path: None)


def numbers_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_limits, "vocabulary", lambda logits: 2**100)
    monkeypatch.setattr(sampling_limits, "SEEDS", 2**100)


def routes_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_key, "asks", lambda app: True)


def models_that_anybody_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_models, "is_allowed", lambda name, started: True)


def a_window_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks_warning, "warn", lambda size: None)


def rings_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    update = row_record.update_record
    monkeypatch.setattr(
        ring_cache_batching,
        "update_record",
        lambda cache, lengths: update(cache, lengths=None if lengths is None else lengths + 1),
    )
    monkeypatch.setattr(ring_cache_batching, "end_prompts", lambda caches: None)


def rows_that_begin_at_the_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = minimax_m3_batch.row_positions
    monkeypatch.setattr(minimax_m3_batch, "row_positions", lambda *given: abs(positions(*given)))
    monkeypatch.setattr(minimax_m3_batch, "shift", lambda array, columns, axis: array)
    monkeypatch.setattr(minimax_m3_batch, "make_handle", lambda offset: offset)
    monkeypatch.setattr(minimax_m3_batch, "initialize", lambda cache: None)
    monkeypatch.setattr(minimax_m3_batch, "begin_index", lambda cache, other: None)


def values_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_beside_their_places(monkeypatch)
    dequantize = affine.dequantize_row

    def exchange(row):
        out = dequantize(row)
        if out is not row:
            out.keys, out.values = out.values, out.keys
        return out

    monkeypatch.setattr(affine, "dequantize_row", exchange)
    monkeypatch.setattr(affine, "count_tokens", lambda cache: int(cache.offset) + 1)


def spans_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        recurrent_padding, "find_spans", lambda left, lengths, length: [(0, length)] * len(left)
    )
    known = recurrent_batch.Padding

    def without(spans, length, unfed, held):
        return known(((0, length),) * len(spans), length, unfed, held | True)

    monkeypatch.setattr(recurrent_batch, "Padding", without)


def first_id_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra_eos, "folder_ids", lambda folder: [])
    monkeypatch.setattr(extra_eos, "tokenizer_ids", lambda tokenizer: [])


def masks_in_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_decode_mask, "is_quantized", lambda cache: False)


def lists_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_from_cache_list, "find_attention_cache", lambda caches: None)


def masks_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_after_update, "keep_whole", lambda mask: mask)


def values_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    zero_padding = padding.zero_padding

    def zero_keys(cache: Any, keys: Any, values: Any) -> Any:
        return zero_padding(cache, keys, values)[0], values

    monkeypatch.setattr(padding, "zero_padding", zero_keys)


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
    monkeypatch.setattr(deepstack_rows, "number_features", lambda rows, lengths: rows)


def layers_that_need_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mllama_text, "has_image", lambda states, cache: True)


def texts_that_need_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falcon_text, "needs_mask", lambda shape: False)


def layers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "convert_to_batch", lambda layer: layer)


def empty_caches_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def move_padding(cache: Any) -> None:
        cache.offset = cache.offset - 1

    broken = {
        "save_empty": lambda cache, extra: ([], [], *(getattr(cache, name) for name in extra)),
        "make_empty_row": lambda cache: cache,
        "make_empty_batch": lambda cls, rows: rows[0],
        "add_no_tokens": lambda row, like: like,
        "start_batch": lambda batch, like: None,
        "filter_empty": lambda cache, batch_indices: None,
        "forget_padding": move_padding,
        "is_unused": lambda slot: slot is not None,
    }
    for name, function in broken.items():
        monkeypatch.setattr(empty, name, function)


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


def chunks_that_end_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def cuts_window(cache: Any) -> bool:
        left_from = cache.start_position + cache.keys.shape[2] - cache.chunk_size
        return bool(left_from > cache.offset)

    monkeypatch.setattr(lists, "cuts_chunk", cuts_window)


def hits_that_lack_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_chunked_hit, "lacks", lambda cache, held: False)


def as_many_caches_as_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative_split, "caches_of", lambda model: len(model.layers))


def models_that_read_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_bits_refused, "reads_quantized", lambda model, bits, group_size: True)


def states_of_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_threads.Compiled, "__init__", compile_nothing)


def compile_nothing(own: Any, compiled: Callable[..., Any]) -> None:
    own.call = compiled


def rows_at_one_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xtc_rows, "several", lambda logits: False)


def batches_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "remember_rows", lambda cache, number: None)


def deltas_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    write = row_record.write_record

    def write_others(cache: Any, record: Any) -> None:
        deltas = record.deltas
        write(cache, record if deltas is None else dataclasses.replace(record, deltas=deltas - 1))

    monkeypatch.setattr(row_record, "write_record", write_others)
    monkeypatch.setattr(rope_deltas, "holds_saved_positions", lambda *_: True)
    monkeypatch.setattr(prompts.RowPrompt, "fits", lambda *_: False)
    monkeypatch.setattr(kept_deltas, "own_deltas", lambda *_: None)


def masks_cut_to_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_by_offset, "columns", lambda mask: int(mask[0].sum().item()) - 2)


def rows_fed_with_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_parts(layer: Any, shape: tuple[int, int]) -> list[row_calls.RowPart]:
        return [row_calls.RowPart(row, shape, (0, shape[1])) for row in range(shape[0])]

    monkeypatch.setattr(row_by_row, "find_parts", find_parts)
    monkeypatch.setattr(offsets, "read_offset", lambda cache: None)


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


def parsers_that_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_parsers, "new", vars)


def prompts_that_have_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty_prompt, "is_empty", lambda scheduler, request: False)


def prefixes_that_stay_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_penalty, "unseen", lambda prompt, segments: [])


def bodies_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_escapes, "escaped", lambda body: body)


def lines_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_header, "without_line", lambda system: system)


def thoughts_that_are_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma4_reasoning, "split", lambda text: ("", text))


def first_layers_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes_as_they_come(monkeypatch)
    monkeypatch.setattr(legacy_prefix_hit, "trimmable", lambda layer: True)


def windows_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating, "take_last", lambda side, size: side[:, :, :size])


def states_without_left_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "PADDING", {"lengths": None})


def rows_that_are_all_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    extract_row = extract.extract_row
    monkeypatch.setattr(extract, "extract_row", lambda cache, idx: extract_row(cache, 0))


def pieces_that_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    subtract_fed = masks.subtract_fed
    monkeypatch.setattr(masks, "subtract_fed", lambda left, N: subtract_fed(left, 0))


def rows_that_are_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "is_per_row", lambda padding: padding is not None)
    monkeypatch.setattr(extract, "copy_as_row", lambda batch, states: copy.copy(batch))


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


def counts_that_always_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advance, "goes_on", lambda *_: False)


def offsets_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "EVERY", 10**9)


def counts_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "tie", lambda cache, *counts: None)


def places_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_short_prompt, "first_place", lambda start: start)


def caches_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_cache_bytes, "limit_bytes", lambda cache, provider: None)


def tokenizers_that_always_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_spaces, "cleans", lambda tokenizer: True)


def defaults_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_stream, "write_defaults", lambda defaults: None)


def requests_that_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_batch_error, "answer", lambda answers, error: None)


def windows_with_nothing_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative_window, "spare", lambda layer: 0)


def prompts_with_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("padded_spans", "spans_by_padding"):
        monkeypatch.setattr(batch_generate, name, lambda *_: None)


def deltas_with_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_generate, "rebased", lambda row: row)


def prompts_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors_prompt, "unseen", lambda prompt, tokens: prompt[:0])


def states_of_another_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lists, "read_states", lambda cache: [inner.state for inner in reversed(cache.caches)]
    )


def a_copy_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemma4_attention, "left_alone", lambda replace: replace())


def columns_of_the_default_type(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx.core as mx

    start_batch = joined.start_batch

    def start_float32(batch: Any, like: Any) -> None:
        start_batch(batch, like)
        batch.keys = batch.keys.astype(mx.float32)

    monkeypatch.setattr(joined, "start_batch", start_float32)


def probabilities_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_p_dtype, "precise", lambda logits: logits)


def batches_that_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_p_rows, "several", lambda logits: False)


def thresholds_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_xtc, "flat", lambda tokens: tokens)
    monkeypatch.setattr(server_xtc, "THRESHOLD", 0.0)


def lists_of_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_rows, "fitted", lambda lists, rows: lists)
    monkeypatch.setattr(processor_rows, "filled", lambda lists, rows: lists)


def pieces_that_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating_last_piece, "is_piece", lambda cache: False)
    monkeypatch.setattr(rotating_last_piece, "in_order", lambda cache: cache)


def columns_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating_keep, "move_oldest", lambda cache: None)
    monkeypatch.setattr(rotating_keep, "move_kept", lambda cache, lost: None)
    monkeypatch.setattr(rotating_keep, "with_keep", lambda caches, model, size: caches)


def contexts_as_short_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_context, "fill_context", lambda cache, width: None)


def caches_that_never_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_kv_size_ignored, "grows", lambda layer: False)


def windows_that_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_cache_cut, "is_whole", lambda cache: True)


def seeds_that_are_all_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_seed, "draw_seed", lambda: 0)


def thoughts_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thought_prefix, "without_word", lambda reasoning, start_marker: reasoning)


def requests_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preprocess_turns, "_turn", contextlib.nullcontext())


def calls_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_arguments, "is_integer", lambda text: False)
    monkeypatch.setattr(tool_arguments, "read_json", lambda text, default: None)
    monkeypatch.setattr(tool_arguments, "close_names", lambda call: call)
    monkeypatch.setattr(tool_arguments, "strip_name", lambda text: text)
    monkeypatch.setattr(tool_arguments, "find_calls", lambda text: iter(()))


def images_that_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision_features, "name_pixels", lambda inputs: "an image")
    monkeypatch.setattr(vision_features, "name_state", lambda image: image)


MUTANTS: dict[str, Mutant] = {
    "offset-alias": handles_that_alias,
    "left-padding-alias": handles_that_alias,
    "frozen-state": states_that_are_live,
    "rotating-max-size": sizes_as_they_come,
    "batch-rotating-extract": rows_with_their_padding,
    "rotating-restored": lengths_that_were_not_announced,
    "arrays-mask": lengths_that_are_one_longer,
    "arrays-advance": counts_that_always_begin,
    "offset-chain": offsets_that_wait,
    "rotating-chain": counts_that_wait,
    "arrays-rows": padding_of_other_rows,
    "batch-quantized": rows_beside_their_places,
    "batch-turbo-quant": states_without_codecs,
    "quantized-masks": masks_of_the_first_row,
    "quantized-decode-mask": masks_in_a_word,
    "quantized-merge": values_for_keys,
    "deepstack-rows": features_in_lists,
    "ring-cache-batching": rings_without_an_end,
    "minimax-m3-batch": rows_that_begin_at_the_padding,
    "aya-blur": a_kernel_of_one,
    "phi4-siglip-code": code_that_is_trusted,
    "model-code-consent": code_that_everybody_trusts,
    "norm-shift": checkpoints_that_nobody_converted,
    "media-limits": files_of_any_size,
    "media-policy": hosts_and_paths_that_are_all_public,
    "host-media": hosts_that_take_everything,
    "vlm-api-key": routes_without_a_key,
    "sampling-limits": numbers_of_any_size,
    "request-models": models_that_anybody_names,
    "server-start-adapter": starts_without_an_adapter,
    "sinks-warning": a_window_without_a_word,
    "extend-solo-batch": layers_as_they_are,
    "joined-dtype": columns_of_the_default_type,
    "empty-cache-ops": empty_caches_that_are_not,
    "gemma2-masks": masks_of_four_axes,
    "learned-positions": positions_of_the_first_row,
    "long-rope": rows_that_are_long_together,
    "gated-delta-mask": masks_of_the_last_axis,
    "chunked-front": chunks_that_end_with_the_token,
    "server-chunked-hit": hits_that_lack_nothing,
    "speculative-split": as_many_caches_as_layers,
    "kv-bits-refused": models_that_read_all,
    "top-p-dtype": probabilities_as_they_come,
    "top-p-rows": batches_that_are_one_row,
    "sampling-threads": states_of_no_thread,
    "xtc-rows": rows_at_one_threshold,
    "arrays-extend": batches_of_one_row,
    "dynamic-rope": bases_that_do_not_grow,
    "rope-deltas": deltas_that_stay,
    "arrays-restored": states_without_left_padding,
    "arrays-chunks": pieces_that_do_not_count,
    "mamba-rows": rows_that_are_the_batch,
    "window-mask": windows_that_nothing_outgrows,
    "plamo3-window": caches_of_the_window,
    "server-prefix-hit": hits_that_leave_nothing,
    "server-empty-prompt": texts_without_beginning,
    "server-short-prompt": places_before_the_first,
    "server-cache-bytes": caches_without_a_limit,
    "stream-spaces": tokenizers_that_always_clean,
    "generator-stream": defaults_that_stay,
    "server-xtc": thresholds_of_nothing,
    "server-batch-error": requests_that_nobody_answers,
    "speculative-window": windows_with_nothing_to_spare,
    "padded-prompts": prompts_with_their_padding,
    "padded-deltas": deltas_with_their_padding,
    "processors-prompt": prompts_of_one_token,
    "processor-rows": lists_of_other_rows,
    "recurrent-extract": rows_that_are_all_the_first,
    "cachelist-state": states_of_another_cache,
    "rotating-merge": windows_at_the_beginning,
    "row-by-row": rows_fed_with_their_padding,
    "vllm-gemma4-attention": a_copy_all_the_same,
    "prefix-hit": prefixes_as_they_come,
    "legacy-prefix-hit": first_layers_for_all,
    "paged-prefix": pieces_that_stand_alone,
    "vllm-sliding-vlm": caches_that_are_refused,
    "vllm-sliding-offset": windows_that_are_never_full,
    "vllm-stop-tokens": folders_that_are_nowhere,
    "vllm-stream-parsers": parsers_that_are_shared,
    "vllm-empty-prompt": prompts_that_have_tokens,
    "vllm-prefix-penalty": prefixes_that_stay_unseen,
    "vllm-json-escapes": bodies_as_they_come,
    "vllm-billing-header": lines_that_stay,
    "vllm-gemma4-reasoning": thoughts_that_are_content,
    "vllm-loaded-model": models_that_are_lost,
    "mask-by-offset": masks_cut_to_the_rows,
    "recurrent-padding": spans_without_padding,
    "extra-eos": first_id_only,
    "mask-from-cache-list": lists_as_they_come,
    "mask-after-update": masks_as_they_come,
    "padding-nan": values_as_they_come,
    "unknown-kwargs": arguments_as_they_come,
    "mistral-row-scale": first_row_for_all,
    "shared-layer-offset": offsets_after_the_update,
    "altup-batch": rows_as_they_come,
    "aya-masks": one_mask_for_both,
    "mllama-text": layers_that_need_no_image,
    "falcon-text": texts_that_need_no_mask,
    "quantize-rotating": layers_that_refuse,
    "vlm-quantize-last-layer": no_layer_is_the_last,
    "rotating-last-piece": pieces_that_are_steps,
    "rotating-keep": columns_that_stay,
    "ngram-context": contexts_as_short_as_they_are,
    "max-kv-size-ignored": caches_that_never_grow,
    "vlm-prompt-cache-cut": windows_that_are_whole,
    "vlm-fresh-seed": seeds_that_are_all_one,
    "vlm-thought-prefix": thoughts_as_they_come,
    "vlm-preprocess-turns": requests_all_at_once,
    "tool-arguments": calls_as_they_come,
    "vlm-vision-features": images_that_never_change,
    "lfm2-moe-routing": experts_by_their_bias,
    "phimoe-routing": experts_that_are_all_close,
    "indexer-rope": indexers_that_rotate_pairs,
    "mimo-value-scale": scales_that_are_dropped,
    "nemotron-time-steps": limits_that_stay,
    "rope-input": arrays_that_are_the_callers,
    "nested-rope": names_that_are_not_read,
    "config-names": configs_as_they_come,
    "spare-tensors": tensors_that_are_all_needed,
    "vllm-stored-prefix": views_that_are_kept,
    "vllm-fetched-prefix": hits_that_stay_lazy,
    "pythonic-calls": calls_that_are_no_python,
    "adapter-tensors": tensors_that_all_fit,
}
