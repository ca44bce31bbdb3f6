import inspect

import mlx.core as mx
import pytest

from mlx_patches.lab import LabModel, engine, generators
from mlx_patches.lab.engine_scenarios import compare_with_solo
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches._shared.rows import join_rows, recurrent, write_rows
from mlx_patches.patches.models.recurrent_padding import patch as recurrent_padding

from ..releases.conftest import is_installed
from ..releases.models import applicable, build_or_skip, or_skip
from .rows import PADDING, PROMPTS, TABLE, assert_close, compare, compare_step, logits_of

NEEDED = (
    *("offset-alias", "mask-by-offset", "quantized-masks", "batch-quantized"),
    *("rope-deltas", "padding-nan"),
)
LAST_PIECES = ("recurrent-padding", "rotating-last-chunk", *NEEDED)


@pytest.mark.parametrize("family", ["bailing_moe_linear", "jamba", "qwen3_5"])
def test_quantized_batch_stays_quantized(family, beside):
    model = build_or_skip(f"mlx-vlm:{family}")
    beside(*NEEDED, "recurrent-padding", "quantized-decode-mask")
    cell = applicable(SCENARIOS["quantized-8"](model))
    assert cell.verdict == "green", cell.detail


@pytest.fixture
def repaired(beside):
    managers = []

    def prepare(name: str) -> LabModel:
        model = build_or_skip(name)
        managers.append(beside("offset-alias", "mask-by-offset", "recurrent-padding"))
        return model

    yield prepare
    assert not any(manager.withdrawn for manager in managers)


@or_skip()
def pad_batch(model: LabModel) -> list[object]:
    """The caches of a left-padded batch; skips if the release has none."""
    cache = engine.batch_cache(model, PADDING)
    if len(list(recurrent(cache))) < len(list(recurrent(model.make_cache()))):
        pytest.skip("the release batches no recurrent caches")
    return cache


NEMOTRON_H = "mlx-lm:nemotron_h" if is_installed("mlx-lm") else "mlx-vlm:nemotron_h"
LM = ("mlx-lm:nemotron_h", "mlx-lm:falcon_h1", "mlx-lm:plamo2", "mlx-lm:mamba")
OMNI = "mlx-vlm:nemotron_h_nano_omni"
VLM = ("mlx-vlm:nemotron_h", "mlx-vlm:falcon_h1", "mlx-vlm:plamo2vl", OMNI)


@pytest.mark.parametrize("name", ["mlx-vlm:qwen3_5", "mlx-vlm:nemotron_h"])
def test_hidden_states_of_every_row(name, repaired):
    model = repaired(name)
    if not model.module(mx.array([[1]]), return_hidden=True).hidden_states:
        pytest.skip("the release gives no hidden states")
    out = model.module(mx.array(TABLE), cache=pad_batch(model), return_hidden=True)
    compare(out.logits, model)
    hidden = out.hidden_states[-1]
    assert hidden.shape[:2] == (2, 5)
    for row, prompt in enumerate(PROMPTS):
        engine.forget(model)
        tokens, cache = mx.array([prompt]), model.make_cache()
        solo = model.module(tokens, cache=cache, return_hidden=True).hidden_states[-1][0]
        assert_close(hidden[row, PADDING[row] :], solo)


@pytest.mark.parametrize("name", ["mlx-vlm:qwen3_5", "mlx-vlm:nemotron_h"])
def test_call_without_logits(name, repaired):
    model = repaired(name)
    given = {"return_hidden": True, "skip_logits": True, "return_shared_kv": True}
    if model.module(mx.array([[1]]), **given).logits is not None:
        pytest.skip("the release gives them all the same")
    cache = pad_batch(model)
    out = model.module(mx.array(TABLE), cache=cache, **given)
    assert out.logits is None and out.shared_kv_states == {}
    assert out.hidden_states[-1].shape[:2] == (2, 5)
    # The states equal the prompts' states, so the next step is right too.
    compare_step(model.call([[1], [2]], cache), model)


def test_omni_states_with_history(repaired, beside):
    """It runs Nemotron-H's layers itself, or, from mlx-vlm 0.7.10 on, calls the patched model."""
    model = repaired(OMNI)
    beside(*LAST_PIECES)
    cell = SCENARIOS["history"](model)
    assert cell.verdict == "green", cell.detail
    cache = pad_batch(model)
    out = model.module(mx.array(TABLE), cache=cache, output_hidden_states=True)
    compare(out.logits, model)
    solo = model.module(mx.array([PROMPTS[1]]), output_hidden_states=True).hidden_states
    assert len(out.hidden_states) == len(solo)
    for batched, row in zip(out.hidden_states, solo, strict=True):
        assert_close(batched[1:, PADDING[1] :], row)


@pytest.mark.parametrize("name", [*LM, *VLM])
def test_device_reads(name, repaired, device_reads):
    model = repaired(name)
    cache = pad_batch(model)

    def reads() -> int:
        """How many reads the patches made, or a cache for them, since the last call."""
        found = [one for one in device_reads if "mlx_patches/patches" in one or "cache.py" in one]
        device_reads.clear()
        return len(found)

    reads()
    model.call(TABLE, cache)
    assert reads() <= 2  # the recurrent caches' padding, the attention caches' counts
    for layer in recurrent(cache):
        assert layer.left_padding is None
    for token in (1, 2):
        model.call([[token], [token]], cache)
        assert reads() == 0


def test_equal_rows_read_device_once(repaired, device_reads):
    model = repaired(NEMOTRON_H)
    cache = pad_batch(model)
    for layer in recurrent(cache):
        layer.left_padding = mx.array([0, 0])
    model.call([PROMPTS[0], PROMPTS[0]], cache)
    assert sum("mlx_patches/patches" in one for one in device_reads) <= 1


@pytest.mark.parametrize("name", [*LM, *VLM])
def test_calls_of_hosts(name, repaired):
    model = repaired(name)
    parameters = inspect.signature(type(model.module).__call__).parameters
    tokens = mx.array(TABLE)
    if parameters["cache"].kind is not inspect.Parameter.KEYWORD_ONLY:
        before = [None] * (list(parameters).index("cache") - 2)
        compare(logits_of(model.module(tokens, *before, pad_batch(model))), model)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        out = model.module(tokens, cache=pad_batch(model), unknown=object(), n=3)
        compare(logits_of(out), model)
    else:
        with pytest.raises(TypeError):
            model.module(tokens, cache=pad_batch(model), unknown=1)
    assert logits_of(model.module(tokens, cache=None)).shape[:2] == (2, 5)

    cache = pad_batch(model)
    for layer in cache:
        for one in (layer, *getattr(layer, "caches", ())):
            one.__class__ = type("Host", (type(one),), {"__module__": __name__})
    compare(model.call(TABLE, cache), model)

    # The first chunk of both rows is only padding, as after a longer row left the batch.
    pad_batch(model)
    cache = engine.batch_cache(model, [2, 5])
    out = model.call([[0, 0], [0, 0]], cache)
    assert out.shape[:2] == (2, 2)
    compare(model.call(TABLE, cache), model)


@pytest.mark.parametrize("name", VLM)
def test_embeddings_instead_of_ids(name, repaired):
    model = repaired(name)
    inner = getattr(model.module, "backbone", None) or model.module.model
    embed = inner["embeddings"] if "embeddings" in inner else inner["embed_tokens"]
    embeddings = embed(mx.array(TABLE))
    expected = model.module(mx.array(TABLE[:1]), inputs_embeds=embeddings[:1]).logits
    out = model.module(mx.array(TABLE), inputs_embeds=embeddings, cache=pad_batch(model))
    assert_close(out.logits[:1], expected)
    short = model.module(mx.array(TABLE[1:])[:, 3:], inputs_embeds=embeddings[1:, 3:]).logits
    assert_close(out.logits[1:, 3:], short)


@pytest.fixture
def feed_last_chunk(beside):
    def feed(name: str):
        model = build_or_skip(name)
        beside(*LAST_PIECES)
        return applicable(SCENARIOS["last-chunk"](model))

    return feed


@pytest.mark.parametrize("name", [*LM, *VLM])
def test_last_single_token_chunk(name, feed_last_chunk):
    assert feed_last_chunk(name).verdict == "green"


def test_mutant_drops_states_of_last_chunk(monkeypatch, feed_last_chunk):
    def feed(call, bound, cache, fed):
        return call(*bound.args, **bound.kwargs)

    monkeypatch.setattr(recurrent_padding, "call_and_hold_states", feed)
    assert feed_last_chunk(NEMOTRON_H).verdict == "red"


def test_last_chunk_after_right_padding(monkeypatch, feed_last_chunk):
    """The joined batch still has the padding of earlier chunks, but none in the last chunk."""

    def by_row(call, bound, cache, fed):
        spans = [(0, int(has_token)) for has_token in fed]
        return recurrent_padding.forward_per_row(call, bound, spans, [0] * len(fed))

    monkeypatch.setattr(recurrent_padding, "call_and_hold_states", by_row)
    assert feed_last_chunk(NEMOTRON_H).verdict == "green"


@pytest.mark.parametrize("name", ["mlx-vlm:qwen3_5", "mlx-vlm:zaya1_vl"])
@or_skip()
def test_prompt_starts_in_last_chunk(name, beside):
    """The models feed left-padded rows one by one, but not in such a chunk."""
    model = build_or_skip(name)
    prompts = ([4], [5, 9, 2, 7, 3, 8, 6, 1, 4, 2])
    requests = [generators.Request(0, prompt, 3) for prompt in prompts]
    beside(*NEEDED, "recurrent-padding")
    outputs = generators.run_requests(model, requests, prefill_step_size=8)
    cell = compare_with_solo(model, requests, outputs)
    assert cell.verdict == "green", cell.detail


@pytest.mark.parametrize("failing", [0, 1])
def test_failing_row_restores_batch(failing):
    model = build_or_skip(NEMOTRON_H)
    cache = pad_batch(model)
    release = inspect.unwrap(type(model.module).__call__)
    fed = []

    def call(self, inputs, cache=None):
        fed.append(inputs.shape[0])
        if len(fed) > failing:
            raise RuntimeError("no memory")
        return release(self, inputs, cache=cache)

    before = [(dict(vars(one)), list(getattr(one, "cache", ()))) for one in cache]
    with pytest.raises(RuntimeError, match="no memory"):
        recurrent_padding.call_with_padding(call)(model.module, mx.array(TABLE), cache=cache)
    assert fed == [1] * (failing + 1)
    after = [(dict(vars(one)), list(getattr(one, "cache", ()))) for one in cache]
    for (old, states), (new, held) in zip(before, after, strict=True):
        assert all(new[key] is value for key, value in old.items())
        assert [id(one) for one in states] == [id(one) for one in held]


def test_sparse_layer_keeps_padding():
    """Qwen4 Exp's batch cache keeps its keys in another batch cache, which announces it."""
    language = pytest.importorskip("mlx_vlm.models.qwen4_exp.language")
    solo = [language.QSAKVCache() for _ in range(2)]
    for length, row in enumerate(solo, start=2):
        row.update_and_fetch(*[mx.ones((1, 1, length, 4))] * 2)
        row.update_indexer(mx.ones((1, length, 4)), mx.arange(length)[None])
    batch = language.BatchQSAKVCache([0, 0])
    batch.prepare(right_padding=[5, 6])
    write_rows(batch, join_rows(batch, solo, [0, 0]), dropped=[0, 1])
    assert batch.kv_cache._right_padding.tolist() == [5, 5]
    batch.update_and_fetch(*[mx.zeros((2, 1, 5, 4))] * 2)
    batch.update_indexer(mx.zeros((2, 5, 4)), mx.zeros((2, 5), mx.int32))
    batch.finalize()
    assert batch.offset.tolist() == [2, 3]
    assert batch.left_padding.tolist() == [6, 5]
    assert batch.index_position_ids[:, -2:].tolist() == [[0, 1], [1, 2]]
