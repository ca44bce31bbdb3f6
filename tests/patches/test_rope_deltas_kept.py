import mlx.core as mx
import pytest

from mlx_patches.lab import engine, offline
from mlx_patches.lab.rows import LENGTHS, generate_solo, rows_of
from mlx_patches.patches._shared.row_calls import accepts_deltas
from mlx_patches.patches._shared.row_record import fill_column, read_column
from mlx_patches.patches.positions.rope_deltas import kept_deltas
from mlx_patches.patches.positions.rope_deltas import probe_kept as probe

from ..releases.models import build_or_skip

pytest.importorskip("mlx_vlm")
COUNT = 8


@pytest.fixture(params=kept_deltas.FAMILIES)
def model(request, beside):
    built = build_or_skip(f"mlx-vlm:{request.param}")
    if not accepts_deltas(type(built.module).__call__):
        pytest.skip("the release's model accepts no rope deltas")
    beside("row-by-row", "rope-deltas", "padded-prompts")  # the order of the catalogue
    engine.forget(built)
    return built


def test_texts_of_changing_batch_size(model):
    """In 0.5.0 the engine raised when one row followed three."""
    prompts = [list(row.text[: row.chunks[0]]) for row in rows_of(model, sorted(LENGTHS))]
    together = offline.batch_generate(model, prompts, COUNT)
    for prompt, generated in zip(prompts, together, strict=True):
        assert [one.token for one in generated] == [
            one.token for one in offline.batch_generate(model, [prompt], COUNT)[0]
        ]
        own = [int(mx.argmax(logits).item()) for logits in generate_solo(model, prompt, COUNT)]
        assert [one.token for one in generated] == own


def test_text_has_no_image_delta(model):
    model.call([list(probe.PROMPT)], model.make_cache(), rope_deltas=mx.array([[probe.DELTA]]))
    cache = model.make_cache()
    model.call([list(probe.OTHER)], cache)
    assert not mx.any(getattr(model.module, kept_deltas.KEPT) or mx.array(0))
    assert not mx.any(fill_column(cache[0], "deltas", 1))


def test_merged_rows_keep_deltas(model):
    """A host that merges rows passes no deltas; an image's row and a text equal their solo runs."""
    deltas = [{"rope_deltas": mx.array([[probe.DELTA]])}, {}]
    prompts = [probe.PROMPT, probe.OTHER]
    own = [
        probe.feed_rows(model, [one], [given])[0]
        for one, given in zip(prompts, deltas, strict=True)
    ]
    engine.forget(model)
    caches = [model.make_cache() for _ in prompts]
    for cache, prompt, given in zip(caches, prompts, deltas, strict=True):
        model.call([list(prompt)], cache, **given)
    batch = engine.merge(model, caches)
    for step, token in enumerate(probe.STEPS, 1):
        generated = model.call([[token], [token]], batch)[:, -1]
        for row in (0, 1):
            assert mx.allclose(generated[row], own[row][step], atol=1e-3)


@pytest.mark.parametrize("given", [[-3], [[-3]], [-3, -1, 0], [[-3], [-1]], [[-3], [-1], [0]]])
def test_record_holds_model_state(model, given):
    """One delta is all rows'; the model leaves surplus ones out."""
    cache = engine.batch_cache(model, [0, 0])
    deltas = mx.array(given)
    kept_deltas.keep_deltas(cache[0], deltas, 2)
    held = read_column(cache[0], "deltas", 2)
    flat = deltas.reshape(-1).tolist()
    assert held.reshape(-1).tolist() == (flat[:2] if len(flat) > 1 else flat * 2)


def test_step_rebuilds_nothing(model):
    """An engine passes one array in each step: the record keeps that object."""
    cache = engine.batch_cache(model, [0, 0])
    deltas = mx.zeros((2, 1), mx.int32)
    for _ in range(2):
        model.call([[4], [5]], cache, rope_deltas=deltas)
        assert read_column(cache[0], "deltas", 2) is deltas
