from collections import deque

import mlx.core as mx
import pytest

from mlx_patches.lab import LabModel
from mlx_patches.lab.walks import engines
from mlx_patches.lab.walks.program import draw, parse
from mlx_patches.lab.walks.walk import run
from mlx_patches.probes import NotApplicable

from .conftest import is_tested
from .faults import off, plant
from .models import build_or_skip

# How many walks find a planted fault, and how many of each kind are right without one.
MOST, RIGHT = 40, 1


def build(family: str) -> LabModel:
    if not is_tested(family.partition(":")[0]):
        pytest.skip("this set tests another package")
    return build_or_skip(family)


def kinds(model: LabModel, *having: str) -> list[frozenset[str]]:
    try:
        found = engines.kinds(model)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    return [one for one in found if one >= set(having)]


def first_red(model: LabModel, may: list[frozenset[str]], most: int = MOST) -> str:
    for seed in range(most):
        program = draw(str(model.family), seed, may, model.window or 8)
        try:
            if red := run(model, program):
                return f"{red[0]}: {program}"
        except NotApplicable:
            continue
    return ""


RIGHT_LM = ("qwen2", "gemma3_text", "gpt_oss", "mamba2", "qwen3_next", "lfm2", "deepseek_v3")


@pytest.mark.parametrize(
    "family",
    [
        "mlx-lm:llama",
        *(pytest.param(f"mlx-lm:{name}", marks=pytest.mark.slow) for name in RIGHT_LM),
        "mlx-vlm:gemma3",
        pytest.param("mlx-vlm:qwen2_vl", marks=pytest.mark.slow),
    ],
)
def test_right_model_walks_are_right(family, patched):
    model = build(family)
    may = kinds(model)
    assert not first_red(model, may, RIGHT * len(may))


def keys_off(original, self, *args, **kwargs):
    """A method of a cache, after which its keys are off."""
    result = original(self, *args, **kwargs)
    for cache in (self, result):
        if getattr(cache, "keys", None) is not None and not isinstance(cache.keys, tuple):
            cache.keys = off(cache.keys)
    return result


def shift_loaded(original, *args, **kwargs):
    loaded = original(*args, **kwargs)
    for layer in loaded:
        if getattr(layer, "keys", None) is not None:
            layer.state = off(layer.state)
    return loaded


def shift_quantized(original, caches):
    """If a row is quantized, its batch has shifted keys."""
    merged = original(caches)
    if any(hasattr(layer, "bits") for row in caches for layer in row):
        for layer in merged:
            layer.keys = off(layer.keys)
    return merged


def other_samplers(original, self, *args, samplers=None, **kwargs):
    turned = samplers and [*samplers[1:], samplers[0]]
    return original(self, *args, samplers=turned, **kwargs)


def short_texts(original, self, *args, logits_processors=None, **kwargs):
    def short(process):
        return lambda tokens, logits: process(tokens[-3:], logits)

    wrapped = logits_processors and [[short(one) for one in row] for row in logits_processors]
    return original(self, *args, logits_processors=wrapped, **kwargs)


def other_segments(original, self, segments, *args, **kwargs):
    turned = [[*row[1:-1], row[0], row[-1]] if len(row) > 2 else row for row in segments]
    return original(self, turned, *args, **kwargs)


def shift_closed(original, self):
    original(self)
    norm = self.model.model.norm
    norm.weight = norm.weight * 1.5


def shift_grown(original, self, keys, values):
    """A batch's buffers that grow lose their first column."""
    before = None if self.keys is None else self.keys.shape[2]
    result = original(self, keys, values)
    if before and self.keys.shape[2] > before:
        self.keys[..., self._idx - 2, :] = 0
    return result


def see_row(original, self, *args, **kwargs):
    SEEN.append(self)
    return original(self, *args, **kwargs)


def copies_off(original, *args, **kwargs):
    """A copy of a cache for the prefix cache, or from it."""
    copied = original(*args, **kwargs)
    for layer in copied or []:
        if getattr(layer, "keys", None) is not None:
            layer.keys = off(layer.keys)
    return copied


def text_axes(original, self, *args, position_ids=None, **kwargs):
    """A model that gives a batch with an image the positions of text: one for all three axes."""
    if position_ids is not None and position_ids.ndim == 3 and position_ids.shape[1] > 1:
        position_ids = mx.broadcast_to(position_ids[:1], position_ids.shape)
    return original(self, *args, position_ids=position_ids, **kwargs)


SEEN: list[object] = []
LM, VLM = "mlx-lm:llama", "mlx-vlm:qwen2_vl"
CACHE, GENERATE = "mlx_lm.models.cache", "mlx_lm.generate"
BATCH = "BatchKVCache.update_and_fetch"


def one_queue(original, self, *args, queue=deque(), **kwargs):  # noqa: B006
    """All engines have the same queue of prompts."""
    original(self, *args, **kwargs)
    self._unprocessed_sequences = queue


def smaller(original, self, *args, max_kv_size=None, **kwargs):
    return original(self, *args, max_kv_size=max_kv_size and max_kv_size - 1, **kwargs)


# A kind of operation or of setting, the walks that have it, and the planted fault.
FAULTS = {
    "add": (LM, "copy", [(CACHE, "BatchKVCache.extend", keys_off)]),
    "drop": (
        *(LM, "drop"),
        [(CACHE, "BatchKVCache.filter", lambda f, self, rows: f(self, mx.arange(len(rows))))],
    ),
    "copy": (LM, "reuse", [(CACHE, "BatchKVCache.extract", keys_off)]),
    "after": (LM, "reuse", [(CACHE, "BatchKVCache.merge", keys_off)]),
    "trim": (LM, "reuse", [(CACHE, "KVCache.trim", lambda f, self, n: f(self, n - 1) + 1)]),
    "save": (LM, "save", [(CACHE, "load_prompt_cache", shift_loaded)]),
    "quantize": (LM, "quantize", [(GENERATE, "_merge_caches", shift_quantized)]),
    "segment": (LM, "segment", [(GENERATE, "BatchGenerator.insert_segments", other_segments)]),
    "processor": (LM, "processor", [(GENERATE, "BatchGenerator.insert_segments", short_texts)]),
    "sampler": (LM, "sampler", [(GENERATE, "BatchGenerator.insert_segments", other_samplers)]),
    # Unlike llama, qwen2 leaves its caches to the engine, which limits them.
    "max_kv_size": (
        *("mlx-lm:qwen2", "max_kv_size"),
        [(GENERATE, "BatchGenerator.__init__", smaller)],
    ),
    "grow": (LM, "copy", [(CACHE, BATCH, shift_grown)]),
    "renew": (LM, "renew", [(GENERATE, "BatchGenerator.close", shift_closed)]),
    "engines": (LM, "engines", [(GENERATE, "BatchGenerator.__init__", one_queue)]),
    "solo": (
        *(LM, "solo"),
        [
            (CACHE, "KVCache.update_and_fetch", see_row),
            (
                CACHE,
                BATCH,
                lambda f, self, keys, values: f(self, off(keys) if SEEN else keys, values),
            ),
        ],
    ),
    "kv_bits": (
        *(VLM, "kv_bits"),
        [
            (
                *("mlx_vlm.models.cache", "BatchQuantizedKVCache.update_and_fetch"),
                lambda f, self, keys, values: f(self, keys, off(values)),
            )
        ],
    ),
    "prefix": (
        *("mlx-vlm:gemma3", "prefix"),
        [("mlx_vlm.apc", "_clone_prompt_cache_for_apc", copies_off)],
    ),
    "images": (
        *(VLM, "images"),
        [("mlx_vlm.models.qwen2_vl.language", "Qwen2Model.__call__", text_axes)],
    ),
}
SOON = ("add", "drop", "trim", "save", "kv_bits")


@pytest.mark.parametrize(
    "line",
    [
        # Only a batch's quantized caches let the model run a prompt of several tokens.
        "mlx-vlm:paddleocr_vl kv_bits=8; add row=8 text=1 length=2 tokens=1",
        # The model's vocabulary exceeds the tokens of its texts.
        "mlx-vlm:molmo_point logprobs=1; add row=16 length=1 tokens=1",
        "mlx-vlm:paddleocr_vl prefill_batch_size=1 kv_bits=8 prefix=1; "
        "add row=1 length=4 tokens=2; add row=2 length=5 tokens=1",
        "mlx-vlm:gemma3 prefill_batch_size=1 kv_bits=8 prefix=1; "
        "add row=10 text=2 length=2 tokens=1; add row=11 text=2 length=1 tokens=2",
        "mlx-vlm:deepseek_v32 prefix=1; add row=8 text=1 length=2 tokens=1",
        "mlx-vlm:phi4mm prefix=1; add row=12 text=1 length=2 tokens=1",
    ],
)
def test_repaired_walks(line, patched):
    try:
        assert run(build(line.split()[0]), parse(line)) == []
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    "operation",
    [pytest.param(one, marks=[] if one in SOON else pytest.mark.slow) for one in FAULTS],
)
def test_planted_fault_is_found(operation, patched, monkeypatch):
    family, having, faults = FAULTS[operation]
    model = build(family)
    may = kinds(model, having)
    if not may:
        pytest.skip(f"no walk with {having} is right in this release")
    SEEN.clear()
    for module, path, around in faults:
        plant(monkeypatch, f"{module}:{path}", around)
    assert first_red(model, may)
