"""Mutants: broken versions of patches. With one in place, the patch's probe must be red."""

import contextlib
import copy
import dataclasses
import functools
import importlib
import math
import re
from collections.abc import Callable
from importlib.util import find_spec
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from mlx_patches.core.patch import Patch

Mutant = Callable[[pytest.MonkeyPatch], None]


@dataclasses.dataclass(frozen=True)
class FromOld:
    """A value computed from the one that it replaces."""

    make: Callable[[Any], object]


def pass_on(released: Any, *args: Any, **kwargs: Any) -> Any:
    """A wrapper without an effect."""
    return released(*args, **kwargs)


SIGLIP2: dict[str, object] = {
    "..._shared.siglip2:weigh": FromOld(
        lambda weigh: lambda count, table: weigh(count, table) * (count == table)
    ),
    "..._shared.siglip2:encode_apart": pass_on,
}


def exchange_keys_and_values(dequantize: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def exchange(row: Any) -> Any:
        out = dequantize(row)
        if out is not row:
            out.keys, out.values = out.values, out.keys
        return out

    return exchange


ROWS_BESIDE_THEIR_PLACES: dict[str, object] = {
    f"..._shared.quantized:{name}": broken
    for name, broken in {
        "add_left_padding": lambda cache, padding: setattr(
            cache, "left_padding", cache.left_padding + padding
        ),
        "roll_rows": FromOld(
            lambda roll: lambda part, shifts: roll(part, shifts * 0 + shifts.max())
        ),
        "copy_row": FromOld(
            lambda copy: lambda tree, row, start, end: copy(tree, row, 0, end - start)
        ),
        "pad_left": FromOld(lambda pad: lambda part, left: pad(part[:, :, ::-1], left)[:, :, ::-1]),
        "make_blank_rows": lambda part, rows: part[:0, :, :0],
        "size": lambda cache: int(cache._idx) + 1,
        "nbytes": lambda cache: sum(part.nbytes for part in cache.keys or ()),
        "NO_PADDING": "all",
    }.items()
}
PLAIN_ATTRIBUTE: dict[str, object] = {
    "mlx_patches.core.verbs:Attribute": FromOld(lambda kind: lambda name, **_: kind(name))
}
# By patch: names of its module, with values that break it. A name in another module has the module
# before a colon, relative to the patch's folder. Other mutants are functions in ``MUTANTS`` of a
# patch's test.
SIMPLE: dict[str, dict[str, object]] = {
    "batch-quantized": ROWS_BESIDE_THEIR_PLACES,
    "batch-turbo-quant": ROWS_BESIDE_THEIR_PLACES
    | {
        ".turbo:make_states": lambda cache, tree: tree,
        ".turbo:restore_codecs": lambda cache, text: None,
    },
    "quantized-merge": ROWS_BESIDE_THEIR_PLACES
    | {
        ".affine:dequantize_row": FromOld(exchange_keys_and_values),
        ".affine:count_tokens": lambda cache: int(cache.offset) + 1,
    },
    "detokenizer-text": {
        **dict.fromkeys(
            (
                *("begin_by_vocabulary", "add_unknown", "keep_first_space", "keep_buffer"),
                *("decode_token", "add_byte_level", "add_sentencepiece", "drop_cut_character"),
            ),
            pass_on,
        ),
        "replace_nul": lambda seq: seq,
        "spell_added_tokens": lambda detokenizer, tokenizer, /: None,
        "mark_started": lambda streamer, text, /: None,
    },
    "host-request-parameters": {
        "check_fields": lambda body, package: None,
        "encode_vectors": lambda found: found,
        "find_value_fault": lambda body: "",
        "refuse_images": lambda msg: None,
    },
    "host-request-templates": {"check_body": lambda body: None},
    "host-tool-results": {
        "is_blind": lambda kind, host: False,
        "join_texts": lambda parts: parts,
        "split_item": lambda item: [item],
    },
    "host-schema-refs": {
        "check_body": lambda body: None,
        "check_caller": lambda address: None,
    },
    "openai-server-answers": {"read_stops": lambda stop: []},
    "openai-server-hang-up": {"end_when_cancelled": lambda stream, should_cancel: stream},
    "rapid-logprobs": {
        "add_text": lambda chunk: chunk,
        "evaluate_logprobs": lambda scheduler, responses, /: None,
        "join_logprobs": lambda merged, collector, existing, new, /: merged,
    },
    "server-hang-up": {"is_gone": lambda client: False},
    "server-ignored-parameters": {
        "find_ignored": lambda body: [],
        "reply_to_bad_requests": lambda post, handler: post(handler),
    },
    "server-logprobs": {
        "make_entry": lambda response: response.top_tokens[0],
        "sort_tokens": lambda top_tokens, logprobs, count, tokenizer: top_tokens,
    },
    "server-lru-order": {"renew": lambda prompts, key: None},
    "server-open-calls": {"fill_states": lambda responses: responses},
    "server-prefix-penalty": {"show_prompt": lambda processors, args, /: processors},
    "server-unread-calls": {"find_reason": lambda reason, calls: reason},
    "template-sandbox": {"is_chat_template": lambda: False},
    "vllm-image-cache": {"compute_whole": pass_on},
    "vllm-prefix-hit": {"cut_caches": lambda caches, length: list(caches)},
    "vllm-legacy-prefix-hit": {
        ".hit:cut_caches": lambda caches, length: list(caches),
        "is_trimmable": lambda layer: True,
    },
    "vllm-paged-prefix": {
        "Content.is_end": True,
        "join_parts": FromOld(lambda join: lambda parts: join(parts[-1:])),
    },
    "vllm-row-samplers": {"read_settings": lambda params: {"temp": 0.0}},
    "vllm-simple-hang-up": {
        "end_with_client": lambda sampler: sampler,
        "let_others_run": lambda outputs: outputs,
    },
    "vllm-simple-busy": {
        "answer_busy": lambda slot: slot,
        "report_error": lambda generator, terminal_frame: generator,
    },
    "vlm-hang-up": {"is_collected": lambda body: False},
    "vlm-lazy-inputs": {"compute_inputs": lambda inputs: inputs},
    "vlm-model-swap": {"is_in_use": lambda visit: False},
    "vlm-preprocess-turns": {"_turn": contextlib.nullcontext()},
    "vlm-row-samplers": {"group_rows": lambda rows: [[*range(len(rows))]]},
    "vlm-sampling-parameters": {"read_parameters": lambda args: {}, "_UNREAD": {}},
    "vlm-schema-thinking": {"FirstToken": lambda waiting: waiting},
    "offset-alias": PLAIN_ATTRIBUTE,
    "left-padding-alias": PLAIN_ATTRIBUTE,
    "frozen-state": {"copy_state": lambda state: state},
    "padded-prompts": {
        "find_padded_spans": lambda *_: None,
        "find_spans_by_token": lambda *_: None,
    },
    "config-names": {
        "_LETTERS": FromOld(lambda letters: dict.fromkeys(letters, "M")),
        "_NAMES": {},
        "load_processor": pass_on,
        "_FORMAT": "other",
        "_TOKEN": "other",
        "_ROPE": "nowhere",
        "_FEED_FORWARD": "nowhere",
        "_LAYER": "nowhere",
        "_OLD_KINDS": {},
        "_INDEXED": "nowhere",
        "_COUNT": "nowhere",
        "_WIDTHS": {},
        "_CAPITALS": "nowhere",
    },
    "draft-kept-cache": {"find_missing": lambda prompt, answer, fed: []},
    "dynamic-rope": {"grow_bases": lambda ends, base, *rest: base * (ends == ends)},
    "internlm-positions": {"set_rope": lambda attention, args, /: None},
    "empty-cache-ops": {
        "save_empty": lambda cache, extra: ([], [], *(getattr(cache, name) for name in extra)),
        "make_empty_row": lambda cache: cache,
        "make_empty_batch": lambda cls, rows: rows[0],
        "add_no_tokens": lambda row, like: like,
        "start_batch": lambda batch, like: None,
        "filter_empty": lambda cache, batch_indices: None,
        "forget_padding": lambda cache: setattr(cache, "offset", cache.offset - 1),
        "is_unused": lambda slot: slot is not None,
    },
    "roberta-limit": {"count_reserved": lambda config: 0},
    "vlm-video-turns": {"has_videos": lambda video: False, "arrange": lambda content, _: content},
    "vlm-image-turns": {"count_images": lambda messages: []},
    "vlm-request-adapter": {"is_vlm_starting": lambda: False, "STARTED": {}},
    "vlm-embedding-inputs": {
        "count_positions": lambda model: 1 << 30,
        "remove_padding": lambda vectors, mask: vectors,
    },
    "vllm-rerank-types": {"Words": lambda words, table, types: words},
    "embedding-window": {"limit_mask": lambda mask, half, dtype: mask},
    "encoder-masks": {"limit_mask": lambda mask: mask, "clamp_mask": lambda mask: mask},
    "jamba-routing": {
        "take_scores": FromOld(
            lambda take: lambda *given: (shares := take(*given)) / shares.sum(-1, keepdims=True)
        )
    },
    "extracted-tokens": {"copy_tokens": lambda tokens: tokens},
    "indexer-rope": {"is_paired_by_halves": lambda args: False},
    "kv-bits-refused": {
        "supports_bits": lambda model, bits, group_size: True,
        "try_quantized_batch": lambda model, make, options: True,
        "try_quantized_vlm": lambda model, make, options: True,
    },
    "learned-positions": {
        "RowPositions": FromOld(lambda rows: lambda wpe, offset: rows(wpe, offset[:1] + 0 * offset))
    },
    "chunked-front": {
        "cuts_chunk": lambda cache: (
            cache.start_position + cache.keys.shape[2] - cache.chunk_size > cache.offset
        )
    },
    "minimax-m3-batch": {
        "count_positions": FromOld(lambda count: lambda *given: abs(count(*given))),
        "shift": lambda array, columns, axis: array,
        "make_handle": lambda offset: offset,
        "initialize_cache": lambda cache: None,
        "start_index": lambda cache, other: None,
    },
    "padding-nan": {
        "zero_padding": FromOld(
            lambda zero: lambda cache, keys, values: (zero(cache, keys, values)[0], values)
        )
    },
    "quantize-rotating": {
        "keep_floats": lambda quantize, cache, **kwargs: quantize(cache, **kwargs)
    },
    "vlm-quantize-last-layer": {"count_quantized": lambda count: count},
    "arrays-mask": {"mask_right": FromOld(lambda mask: lambda lengths, N: mask(lengths + 1, N))},
    "arrays-rows": {
        "take_padding": lambda padding, kept: {
            name: values[: len(kept)] for name, values in padding.items()
        },
        "concatenate_padding": FromOld(
            lambda join: lambda parts, counts: join(parts[::-1], counts[::-1])
        ),
    },
    "arrays-chunks": {"subtract_fed": FromOld(lambda subtract: lambda left, N: subtract(left, 0))},
    "mamba-rows": {
        "is_per_row": lambda padding: padding is not None,
        "copy_as_row": lambda batch, states: copy.copy(batch),
    },
    "recurrent-extract": {"extract_row": FromOld(lambda take: lambda cache, idx: take(cache, 0))},
    "recurrent-padding": {
        "find_spans": lambda left, lengths, length: [(0, length)] * len(left),
        ".batch:Padding": FromOld(
            lambda kind: (
                lambda spans, length, held: kind(((0, length),) * len(spans), length, held | True)
            )
        ),
    },
    "ring-cache-batching": {
        "update_record": FromOld(
            lambda update: (
                lambda cache, lengths: update(
                    cache, lengths=None if lengths is None else lengths + 1
                )
            )
        ),
        "end_prompts": lambda caches: None,
    },
    "rope-deltas": {
        "..._shared.row_record:write_record": FromOld(
            lambda write: (
                lambda cache, record: write(
                    cache,
                    record
                    if record.deltas is None
                    else dataclasses.replace(record, deltas=record.deltas - 1),
                )
            )
        ),
        "has_saved_positions": lambda *_: True,
        "has_too_few_positions": lambda *_: False,
        ".prompts:RowPrompt.fits": lambda *_: False,
        ".kept_deltas:find_deltas": lambda *_: None,
        ".turns:slice_chunk": lambda position_ids, *_: position_ids,
        ".turns:begin_turn": FromOld(lambda begin: lambda *_: begin.__globals__["Turn"](0, 0, 0)),
    },
    "rope-input": {"make_handle": lambda x: x},
    "rotating-max-size": {"Attribute": FromOld(lambda kind: lambda name, read, write: kind(name))},
    "batch-rotating-extract": {
        "view_tokens": FromOld(
            lambda view_tokens: (
                lambda cache: (
                    view := view_tokens(cache),
                    setattr(view, "left_padding", view.left_padding * 0),
                )[0]
            )
        )
    },
    "rotating-merge": {"..._shared.rows:take_last": lambda side, size, keep: side[:, :, :size]},
    "rotating-last-chunk": {"is_chunk": lambda cache: False, "view_in_order": lambda cache: cache},
    "sampling-threads": {"Compiled.__init__": lambda own, compiled: setattr(own, "call", compiled)},
    "shared-layer-offset": {"rewind_cache": lambda cache, tokens: cache},
    "stream-spaces": {"removes_spaces": lambda tokenizer: True},
    "top-p-dtype": {"normalize": lambda logits: logits},
    "top-p-rows": {"has_several_rows": lambda logits, /: False},
    "xtc-rows": {"has_several_rows": lambda logits, /: False},
    "gemma4-audio-padding": {
        "count_frames": lambda padding: [padding.shape[1]] * len(padding),
        "divide_up": lambda frames: frames // 4,
    },
    "unified-image-sounds": {"hide_sounds": lambda types: types},
    "qwen3-omni-sounds": {
        "OPTION": "padding",
        "rename_mask": pass_on,
        "add_sounds": lambda message, /, role, skip_audio_token, num_audios: message,
        "load_sounds": lambda processor, audio: audio,
    },
    "qwen3-omni-seconds": {
        "widen": lambda cu_seqlens: cu_seqlens,
        "count_whole": lambda counted, /, input_lengths: counted,
    },
    "gemma-image-scale": {
        "round_root": lambda width: 2048**0.5,
        "divide_widths": lambda read, own: 1.0,
    },
    "gemma-image-blocks": {"show_images": lambda mask, *visual: mask},
    "molmo2-inputs": {"is_molmo": lambda processor: False, "_BILINEAR": None},
    "omni-deepstack": {"spread": lambda features, visual: None},
    "qwen3-vl-deepstack": {"spread": lambda features, visual: None},
    "minicpm-images": {"FAMILY": "other", "spread": lambda patches, count, size: patches},
    "command-vision-norm": {"TYPE": "other"},
    "florence2-image-order": {
        "ORDER": "other",
        "find_keys": lambda cache: None,
        "keep_prompt": lambda _: False,
        "name_tower": lambda vision: vision,
        "rename": lambda weights: weights,
    },
    "phi4-siglip-images": SIGLIP2,
    "lfm2-vl-images": {
        **SIGLIP2,
        "set_constant": lambda tower, config, /: None,
        "name_grids": lambda made, images: made,
        "change_processor": lambda processor, model_path: processor,
    },
    "pixtral-image-sizes": {"SIZES": "other"},
    "ernie-image-experts": {"is_image": lambda config, ids: ids < 0},
    "llama4-tiles": {"fit_size": lambda width, height, widest, highest: (highest, widest)},
    "paddleocr-images": {"join": lambda made: made[0]},
    "paligemma-images": {"join_states": lambda first, layers: (first, layers)},
    "llava-image-options": {"text_options": frozenset},
    "llava-next-tiles": {"remove_padding": lambda grid, size: grid},
    "glm4v-positions": {
        "resize": FromOld(lambda resize: lambda table, *size: resize(table[:, ::-1], *size)),
    },
    "kimi-positions": {
        "resize": FromOld(lambda resize: lambda table, *size: resize(table * 2, *size))
    },
    "frames-apart": {"is_mixed": lambda ends, parts: False},
    "vision-gelu": {
        "find_approximation": lambda config: "fast",
        "NAMED": {},
        "PROJECTOR": "precise",
        "BLOCK": "none",
    },
    "idefics2-images": {"spread": lambda count, size: range(count)},
    "qwen-vl-configs": {
        "find_old_rope": lambda text: {},
        "_VISION": "_other",
        "_TOKEN": "other",
        "_MOLMO": {},
        "_KIMI": {},
        "_WEIGHTS": {},
    },
    "internvl-qwen2": {"_KINDS": ("qwen2",)},
    "rotating-keep": {
        "move_oldest": lambda cache: None,
        "move_kept": lambda cache, lost: None,
        "set_keep": lambda caches, model, size: caches,
    },
    "cachelist-state": {
        "read_states": lambda cache: [inner.state for inner in reversed(cache.caches)]
    },
    "arrays-restored": {"PADDING": {"lengths": None}},
    "rotating-restored": {
        "NO_LENGTHS": (0, 0),
        "parse_bool": lambda saved, read: saved == "False",
    },
    "concatenate-trim": {"drop_trimmed_columns": lambda cache, /: None},
    "saved-empty": {"restore_empty": lambda cache, shapes: None},
    "saved-layer-cache": {"is_layer_cache": lambda cache: False},
    "pool-overlap": {"read_windows": lambda cache: None},
    "gemma2-masks": {"add_group_axis": lambda attention, /, mask: mask},
    "long-rope": {"is_long": lambda ends, limit: (ends > limit) | (ends.max() > limit)},
    "rope-scaling": {"KINDS": ()},
    "yarn-range": {"math": SimpleNamespace(log=math.log, pi=3.0)},
    "arrays-advance": {"is_continued": lambda *_: False},
    "arrays-extend": {"remember_rows": lambda cache, number: None},
    "gated-delta-mask": {"is_per_row": lambda mask: False},
    "offset-chain": {"CUT_INTERVAL": 10**9},
    "rotating-chain": {"tie": lambda cache, *counts: None},
    "kimi-states": {"has_slots": lambda cache: False},
    "mrope-images": {"split_rows": lambda texts, media: iter(())},
    "video-beside-image": {
        "has_both": lambda pixel_values, pixel_values_videos: False,
        "has_videos": lambda pixel_values_videos: False,
    },
    "video-timestamps": {
        "has_videos": lambda processor, videos, fps: False,
        "have_videos": lambda video_grid_thw: False,
    },
    "video-rate": {
        "scale_time": lambda grids, step, dtype: grids,
        "_seconds": SimpleNamespace(set=lambda _: None, get=lambda: None, reset=lambda _: None),
    },
    "minicpm-deltas": {"make_delta": lambda stored: stored},
    "window-mask": {"is_past_window": lambda tokens, window_size: False},
    "dropped-window": {"narrow_mask": lambda mask, *args: mask},
    "plamo3-window": {"widen_windows": lambda caches, model, /: caches},
    "ngram-context": {"pad_tokens": lambda cache, width: None},
    "ngram-prompt": {"store_tokens": lambda *_: None},
    "speculative-window": {"is_window": lambda layer: False, "find_recurrent": lambda model: []},
    "speculative-split": {"count_caches": lambda model: len(model.layers)},
    "processors-prompt": {"add_prompt": lambda patch, prompt, processor: processor},
    "processor-rows": {
        "cut_list": lambda lists, rows: lists,
        "fill_list": lambda lists, rows: lists,
    },
    "quantized-decode-mask": {"holds_quantized": lambda cache: False},
    "vlm-prompt-cache-cut": {"is_whole": lambda cache: True},
    "max-kv-size-ignored": {"grows": lambda layer: False},
    "padded-deltas": {"recompute_delta": lambda row: row},
    "extra-eos": {"read_folder_ids": lambda folder: [], "tokenizer_ids": lambda tokenizer: []},
    "mask-from-cache-list": {"find_attention_cache": lambda caches: None},
    "mask-after-update": {"keep_whole": lambda mask: mask},
    "mask-by-offset": {"count_columns": lambda mask: int(mask[0].sum().item()) - 2},
    "indexer-padding": {"row_text": lambda left, limit, processed, length: (0, length)},
    "unknown-kwargs": {"find_accepted": lambda call: None},
    "token-names": {"GIVEN": "tokens"},
    "mistral-row-scale": {"offsets_of": lambda cache: None},
    "altup-batch": {"flatten_rows": lambda states: states},
    "chunk-inputs": {
        "find_fed": lambda whole, caches, length: slice(0, length),
        "drop_without_mask": lambda visual_pos_masks, n_to_process: n_to_process,
    },
    "extend-solo-batch": {"convert_to_batch": lambda layer: layer},
    "deepstack-rows": {"number_features": lambda rows, lengths: rows},
    "image-rows": {"complete_rows": lambda rows, lengths: rows},
    "granite4-features": {"order_by_row": lambda features, rows: features},
    "gemma3n-prompts": {
        "root_of_width": lambda features: 1.0,
        "is_pooled": lambda features, width: False,
    },
    "smolvlm-tiles": {"OPTION": "padding"},
    "images-apart": {"split_images": lambda pixels, grids, axis: iter(())},
    "granite4-images": {"join_tiles": lambda pixels, counts: pixels},
    "omni-positions": {
        "compute_positions": lambda thinker, /, input_ids, image_grid_thw, video_grid_thw: None
    },
    "sam-relative-positions": {"resample": lambda q_size, k_size, rel_pos: rel_pos},
    "deepseek-ocr2-images": {
        "tile": pass_on,
        "group_images": lambda processor, /, text, images: images,
        "process_whole": pass_on,
        "embed_apart": pass_on,
    },
    "deepseek-crops": {"append_end": lambda images_spatial_crop: images_spatial_crop},
    "image-prompts": {"FAMILIES": set()},
    "aya-masks": {"make_masks": lambda model, /, inputs, inputs_embeds, mask, cache: mask},
    "aya-blur": {"make_kernel": lambda radius, sigma: [0] * radius + [1] + [0] * radius},
    "phi4-siglip-code": {"distrust": lambda arguments: arguments},
    "model-code-consent": {"has_consent": lambda: True},
    "model-file-names": {"leaves_folder": lambda name: False, "name_own_files": lambda *given: {}},
    "norm-shift": {"is_converted": lambda weights: False, "is_published": lambda name: True},
    "adapter-tensors": {"find_misfits": lambda *given: []},
    "nested-rope": {"find_old_names": lambda params, known: {}},
    "spare-tensors": {"is_spare": lambda model, name: False},
    "phimoe-routing": {"JITTER": 1000.0},
    "ernie-routing": {"_BIAS": ".bias_of_none"},
    "falcon-h1-factors": {"find_factors": lambda args: {}},
    "qwen3-vl-experts": {"is_down": lambda name: False},
    "gpt-oss-experts": {"_STACKED": re.compile("nothing")},
    "glm-rotary": {"factor_of": lambda params: 1.0},
    "mimo-value-scale": {"scale_of": lambda attention: None},
    "nemotron-time-steps": {"_UNLIMITED": None},
    "server-prefix-hit": {
        "leave_last_token": lambda fetch, prompts, model, tokens, found: (found, [])
    },
    "server-chunked-hit": {"is_incomplete": lambda cache, held: False},
    "server-empty-prompt": {"find_first_token": lambda tokenizer: []},
    "server-batch-error": {"send_error": lambda answers, error: None},
    "server-start-adapter": {
        "find_adapter": lambda provider, /, model_path, adapter_path: adapter_path
    },
    "host-request-models": {"is_allowed": lambda name, started: True},
    "vlm-api-key": {"has_key_check": lambda app: True},
    "server-short-prompt": {"clamp_start": lambda start: start},
    "server-cache-bytes": {"limit_bytes": lambda model_provider, prompt_cache: None},
    "generator-stream": {"write_defaults": lambda defaults: None},
    "server-xtc": {"flatten_tokens": lambda tokens: tokens, "THRESHOLD": 0.0},
    "sampling-limits": {"count_tokens": lambda logits: 2**100, "SEEDS": 2**100},
    "vlm-fresh-seed": {"draw_seed": lambda seed: seed or 0},
    "vlm-thought-prefix": {
        "cut_word": lambda reasoning, start_marker: reasoning,
        "split_at_markers": iter,
    },
    "vlm-unread-images": {
        "blame_client": lambda error: error,
        "..._shared.refusals:answer": pass_on,
        "answer_client": pass_on,
        "check_parts": lambda item: None,
        "check_count": lambda text, token, number, kind: None,
        "lacks_token": lambda processor, token, inputs: False,
        "has_video": lambda inputs, images: True,
        "check_rows": lambda images, prompts: images,
        "decode": lambda media, source: None,
    },
    "vlm-request-failure": {"is_generating": lambda server: False},
    "vlm-vision-features": {
        "name_pixels": lambda inputs: "an image",
        "name_state": lambda image: image,
        "drop_other_media": lambda turn, media: None,
    },
    "server-tool-arguments": {
        "is_integer": lambda text: False,
        "read_json": lambda text, default: None,
        "close_names": lambda call: call,
        "strip_name": lambda text: text,
        "find_calls": lambda text: iter(()),
    },
    "server-pythonic-calls": {"find_calls": lambda text: [], "_START": "<nowhere>"},
    "hunyuan-bicubic": {"resize_image": lambda processor, /, image: image},
    "step3-images": {"is_padded": lambda width, height: True, "split_text": lambda text, _: []},
    "gemma4-features": {
        "clear_padding": lambda hidden_states: hidden_states,
        "limit_mask": lambda mask: mask,
        "project": pass_on,
        "read_each": pass_on,
        "make_window": lambda length: importlib.import_module("numpy").hanning(length),
        "Added.__array_ufunc__": lambda floor, maximum, _, mel, *rest: mel.clip(floor.floor),
    },
    "gemma4-rope": {"rotate": lambda wavelengths, x, offset=0: x},
    "mllama-images": {"shift_states": lambda found: found, "skip_tokens": lambda found: found},
    "mllama-text": {"lacks_image": lambda cross_attention_states, cache: False},
    "cross-attention-rows": {"find_images": lambda cache: None},
    "falcon-text": {"needs_mask": lambda shape: False},
    "vllm-stored-prefix": {"detach_caches": lambda layers: layers},
    "vllm-fetched-prefix": {"evaluate": lambda layers: None},
    "vllm-gemma4-attention": {"keep_attention": lambda replace: replace()},
    "vllm-sliding-vlm": {"convert_caches": list},
    "vllm-sliding-offset": {"is_full": lambda layer: False},
    "vllm-request-fields": {
        "make_penalties": lambda sent, bias: [],
        "find_tokenizer": lambda processor: processor,
    },
    "vllm-processor-failure": {
        "Guarded.__call__": lambda own, tokens, logits: own.processor(tokens, logits),
        "check_matcher": lambda processor, /: None,
    },
    "vllm-stop-text": {"find_stops": lambda stop: []},
    "vllm-unread-calls": {"is_forced": lambda request: False},
    "vllm-messages-stop": {"_CUT": '"stop_reason": "end_turn"'},
    "vllm-stream-end": {"keep_end": lambda delta, finished: delta},
    "vllm-media-end": {
        "join_end": lambda outputs, max_tokens: outputs,
        "report_cut": lambda output, max_tokens: output,
    },
    "vllm-temperature": {"pass_sampling": pass_on},
    "vllm-text-model": {"is_own": lambda model_type: True},
    "vllm-stop-tokens": {"find_folder": lambda processor: None},
    "vllm-loaded-model": {"load_missing": lambda pair, model_name, tokenizer_config: pair},
    "vllm-stream-parsers": {"build_attributes": vars},
    "vllm-empty-prompt": {"is_empty": lambda scheduler, request: False},
    "vllm-prefix-penalty": {
        "cut_prompt": lambda prompt, segments: [],
        "count_penalized": lambda request: 0,
    },
    "vllm-json-escapes": {"double_backslashes": lambda body: body},
    "vllm-billing-header": {"cut_line": lambda system: system},
    "vllm-gemma4-reasoning": {"split_channels": lambda text: ("", text)},
    "server-tool-errors": {"guard_parser": lambda tool_parser: tool_parser},
    "server-stop-text": {"cut_at_stops": lambda responses, *stops: responses},
    "vlm-stop-text": {"cut_at_stops": lambda tokens, *stops, **more: tokens},
    "vlm-draft-options": {
        "find_processor": lambda options: None,
        "hold_a_draft": lambda draft_block_size: draft_block_size,
        "refuse_processors": lambda self: None,
    },
    "vlm-draft-turns": {"count_tokens": lambda caches: 0},
    "vlm-draft-padding": {"mark_moved": lambda cache, /: None},
    "draft-none": {"has_no_drafts": lambda logits_processors, num_draft_tokens: False},
    "colbert-padding": {"mask_all": lambda mask_convolutions: mask_convolutions},
    "vlm-unread-calls": {"cut": lambda held, spans: None},
    "vlm-tool-choice": {"allow": lambda logits, token: logits, "select_tools": lambda body: body},
    "vlm-finish-reason": {"note_reason": lambda answer, args: answer},
    "vlm-prefix-penalty": {"whole_prompt": lambda meta: []},
    "vlm-prefix-first-token": {"keep_logits": lambda batch, logits: None},
    "cancelled-prompt": {
        "is_padded": lambda batch: True,
        "has_common_padding": lambda batch: False,
    },
    "vlm-prefix-widths": {"get_shape": lambda tensor: (2, 6)},
    "vlm-prefix-chunks": {"as_plain": lambda row: row},
    "vlm-prefix-cache-lists": {"has_rows": lambda cache: True},
    "vlm-prefix-no-config": {"SimpleNamespace": lambda config: object()},
    "vlm-prefix-kv-bits": {"quantize_layer": lambda cache, empty, batch: cache},
    "metal-mrope": {"expand": lambda position_ids, q: position_ids},
    "nope-norm": {"disable_norm_without_rope": lambda attention, /: None},
    "embedding-scale": {"has_only_tokens": lambda inputs_embeds: False},
    "several-images": {
        "place_features": lambda merged, *args, **kwargs: merged,
        "call_per_image": pass_on,
        "merge_by_row": pass_on,
    },
    "nemotron-omni-images": {
        "copy_images": lambda images: images,
        "join_tokens": pass_on,
        "read_frames": pass_on,
    },
    "several-sounds": {"count_as_one": lambda audio: audio},
    "encoded-sounds": {"decode": lambda file: file, "is_empty": lambda images, audio: False},
    "stereo-sounds": {"resample": lambda samples, own, sr: samples},
    "batch-refused": {"is_batch": lambda cache, method: False, "is_chunked": lambda layer: False},
    "indexer-mask": {"without_heads": lambda mask: mask},
}


def mutant_of(patch: Patch) -> Mutant:
    if patch.id in SIMPLE:
        return change_names(importlib.import_module(patch.module), SIMPLE[patch.id])
    mutant: Mutant = vars(load_tests(patch))["MUTANTS"][patch.id]
    return mutant


def load_tests(patch: Patch) -> ModuleType | None:
    """The module with the tests of a patch's folder, if there is one."""
    name = f"tests.patches.test_{patch.module.split('.')[-2]}"
    return importlib.import_module(name) if find_spec(name) else None


def change_names(module: ModuleType, values: dict[str, object]) -> Mutant:
    """A mutant that gives names of a module, or of modules near it, these values.

    A function that the module defines gets other code instead, since targets may hold it.
    """

    def mutate(monkeypatch: pytest.MonkeyPatch) -> None:
        for place, value in values.items():
            near, _, path = place.rpartition(":")
            home = importlib.import_module(near, module.__package__) if near else module
            *parents, name = path.split(".")
            owner = functools.reduce(getattr, parents, home)
            now = getattr(owner, name)
            if isinstance(value, FromOld):
                monkeypatch.setattr(owner, name, value.make(now))
            elif is_own_function(now, home) and isinstance(value, FunctionType):
                monkeypatch.setattr(now, "__code__", value.__code__)
            else:
                monkeypatch.setattr(owner, name, value)

    return mutate


def is_own_function(value: object, module: ModuleType) -> bool:
    return isinstance(value, FunctionType) and value.__module__ == module.__name__
