import copy
import gc
import importlib
import importlib.util
import weakref

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlx_patches.lab import engine
from mlx_patches.lab.compare import differences
from mlx_patches.lab.rows import feed, record_logits, row_with_image, rows_of, solo, text_and_image
from mlx_patches.patches import catalogue
from mlx_patches.patches._shared import row_record
from mlx_patches.patches.positions.rope_deltas import patch as rope_deltas
from mlx_patches.patches.positions.rope_deltas import prompts
from mlx_patches.probes.fixtures import BATCH_PATCHES

from ..releases.models import build_or_skip, or_skip

PATCH = catalogue.builtin().get("rope-deltas")
# Families whose models keep the positions, in every release that has the family.
FAMILIES = ("glm4v", "paddleocr_vl")


@pytest.fixture(params=FAMILIES)
@or_skip()
def model(request, ungated, beside):
    built = build_or_skip(f"mlx-vlm:{request.param}")
    row_with_image(built, 11, (2, 2))
    beside(*BATCH_PATCHES)
    ungated("rope-deltas")
    return built


def assert_equals_solo(model, rows):
    cell = differences(
        [row.logits for row in rows], [solo(model, row) for row in rows], model.tolerance
    )
    assert cell.verdict == "green", cell.detail


def images(model):
    """Three rows of one length: two with images of different shapes, and a text."""
    rows = [row_with_image(model, 11, patches) for patches in ((2, 2), (3, 2))]
    return [*rows, *rows_of(model, [11])]


def prefill(model, rows):
    """The rows' caches; another prompt was fed to the model after them."""
    caches = []
    for row in [*rows, *rows_of(model, [1, 11])[1:]]:
        caches.append(model.make_cache())
        feed(model, [row], caches[-1], row.chunks[0])
    return caches[:-1]


def copy_layers(cache):
    return [copy.copy(layer) for layer in cache]


def step(model, rows, cache, count=3):
    for _ in range(count):
        record_logits(rows, model.call(mx.array([row.take(1) for row in rows]), cache))


def test_cancel_keeps_other_rows_positions(model):
    rows = text_and_image(model, image_first=False)
    lengths = [row.chunks[0] - 1 for row in rows]
    cache = engine.merge(model, [model.make_cache() for _ in rows])
    for row in rows:
        engine.embed(model, row.image)
    model.call(mx.array([row.take(4) for row in rows]), cache)
    engine.keep(cache, [1])
    left = rows[1:]
    model.call(mx.array([left[0].take(lengths[1] - 4)]), cache)
    step(model, left, cache)
    assert_equals_solo(model, left)


@pytest.mark.parametrize("several", [False, True], ids=["solo", "batch"])
@pytest.mark.parametrize("again", [copy_layers, copy.deepcopy, engine.restore_copies])
def test_copied_rows_continue(model, several, again):
    rows = images(model) if several else images(model)[:1]
    caches = prefill(model, rows)
    cache = again(engine.merge(model, caches) if several else caches[0])
    step(model, rows, cache)
    assert_equals_solo(model, rows)


def test_copy_is_independent(model):
    rows = images(model)
    cache = engine.merge(model, prefill(model, rows))
    kept = copy_layers(cache)
    before = row_record.read_record(kept[0])
    engine.keep(cache, [2])
    assert row_record.read_record(kept[0]) is before
    assert before.deltas.shape == (3, 1)


def test_prompt_is_released_after_last_token(model):
    row = row_with_image(model, 11, (2, 2))
    cache = model.make_cache()
    waiting = prompts.find_waiting(model.module)
    waiting._queue = []  # drops prompts from the lab's own calls for positions
    engine.embed(model, row.image)
    (held,) = map(weakref.ref, waiting._queue)
    model.call(mx.array([row.take(4)]), cache)
    assert row_record.read_record(cache[0]).prompts
    assert not [name for name in vars(model.module) if "mlx_patches" in name]
    model.call(mx.array([row.take(7)]), cache)
    assert not row_record.read_record(cache[0]).prompts
    assert held() is None


def test_dropped_request_releases_prompt(model):
    waiting = prompts.find_waiting(model.module)
    row = row_with_image(model, 11, (2, 2))
    cache = model.make_cache()
    waiting._queue = []
    engine.embed(model, row.image)
    model.call(mx.array([row.take(4)]), cache)
    assert waiting
    gc.disable()
    try:
        del cache
        assert not waiting
    finally:
        gc.enable()


class Watched(mx.array):
    def tolist(self):
        raise AssertionError("read from the device")

    item = __int__ = __float__ = __bool__ = __index__ = tolist
    __array__ = __buffer__ = tolist


class Cache:
    keys = None

    def __init__(self, *offset):
        self.offset = Watched(list(offset))


class Model:
    _position_ids = _rope_deltas = None


def call(self, inputs, cache=None, position_ids=None, **kwargs):
    return position_ids


@pytest.mark.parametrize("length", [1, 5])
def test_text_prefill_reads_no_device(length):
    ids = Watched([[1] * length] * 2)
    model, cache = Model(), Cache(3, 4)
    for _ in range(2):
        positions = rope_deltas.call_with_positions(call)(model, ids, cache=[cache])
        assert positions.shape == (3, 2, length)
        assert mx.array(positions)[0, :, 0].tolist() == [3, 4]


def test_rows_decode_without_read():
    ids, cache = Watched([[1]] * 2), Cache(3, 4)
    row_record.update_record(cache, deltas=mx.array([[-2], [0]]))
    positions = rope_deltas.call_with_positions(call)(Model(), ids, cache=[cache])
    assert positions[0].tolist() == [[1], [4]]
    model, cache = Model(), Cache(3, 4)
    prompt = prompts.ImagePrompt(b"1234", mx.zeros((3, 1, 1), mx.int32))
    prompts.find_waiting(model).note([prompt], prompt.positions)
    positions = rope_deltas.call_with_positions(call)(model, Watched([[1]] * 2), cache=[cache])
    assert positions[0].tolist() == [[3], [4]]


@pytest.mark.parametrize("handed", [True, False], ids=["handed over", "read back"])
def test_waiting_prompt_state_survives_decode(handed):
    model, cache = Model(), Cache(3, 4)
    model._rope_deltas = mx.array([[-5]])
    deltas = {"rope_deltas": mx.array([[0], [0]])} if handed else {}
    rope_deltas.call_with_positions(call)(model, mx.array([[1]] * 2), cache=[cache], **deltas)
    # An engine that passes no deltas reads its batch's deltas from the model.
    assert model._rope_deltas.tolist() == ([[-5]] if handed else [[0], [0]])


def record(*deltas, prompts=()):
    return row_record.RowRecord(deltas=mx.array(deltas)[:, None], prompts=prompts)


def test_records_follow_rows():
    rows = record(1, 2, 3, prompts=(None, "b", "c"))
    kept = rows.filter_rows(mx.array([2, 0]))
    assert (kept.deltas.tolist(), kept.prompts) == ([[3], [1]], ("c", None))
    assert rows.filter_rows([0]).prompts == ()
    assert rows.filter_rows([1]).prompts == ("b",)
    assert rows.filter_rows([0]).prompts == ()
    caches = [Cache(1, 2), Cache(3)]
    row_record.write_record(caches[1], record(5, prompts=("a",)))
    both = row_record.concatenate_records(caches)
    assert (both.deltas.tolist(), both.prompts) == ([[0], [0], [5]], (None, None, "a"))
    assert both.lengths is None
    assert row_record.concatenate_records(caches[:1]) is None

    cache = Cache(1)
    row_record.write_record(cache, record(1, 2))
    assert row_record.read_column(cache, "deltas", 1) is None
    assert row_record.fill_column(cache, "deltas", 1).tolist() == [[0]]


PACKAGES = [name for name in ("mlx_lm", "mlx_vlm") if importlib.util.find_spec(name)]
KINDS = ("KVCache", "RotatingKVCache", "ArraysCache", "BatchKVCache", "BatchRotatingKVCache")


def cache_with_record(module, kind):
    made = getattr(module, kind, None)
    if made is None:
        pytest.skip(f"{module.__name__} has no {kind}")
    if kind == "ArraysCache":
        cache = made(1)
        cache[0] = mx.ones((1, 2))
    else:
        window = [8] if "Rotating" in kind else []
        cache = made(*window, *([[0]] if kind.startswith("Batch") else []))
        cache.update_and_fetch(*[mx.ones((1, 1, 3, 2))] * 2)
    row_record.write_record(cache, record(7))
    return cache


@pytest.fixture
def carriers(ungated):
    """Applies the patch to the installed packages' caches, even if no model needs it there."""
    needs = [target._replace(supports=False) for target in PATCH.targets if target.supports]
    return lambda: ungated(PATCH._replace(targets=tuple(needs)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("package", PACKAGES)
def test_release_reads_saved_record(package, kind, carriers):
    module = importlib.import_module(f"{package}.models.cache")
    manager = carriers()
    cache = cache_with_record(module, kind)
    saved = [cache.state, *([cache.meta_state] if hasattr(cache, "meta_state") else [])]
    manager.restore()
    again = type(cache).from_state(*saved)
    for (_, one), (_, other) in zip(*map(tree_flatten, (cache.state, again.state)), strict=True):
        assert mx.array_equal(one, other) if isinstance(one, mx.array) else one == other


@pytest.fixture
def file(tmp_path):
    if not importlib.util.find_spec("mlx_lm"):
        pytest.skip("no mlx-lm, which has the files")
    return str(tmp_path / "prompt.safetensors")


METADATA = [None, {}, {"model": "mine"}]


@pytest.mark.parametrize("metadata", METADATA, ids=str)
def test_release_reads_saved_file(file, metadata, carriers):
    module = importlib.import_module("mlx_lm.models.cache")
    manager = carriers()
    cache = cache_with_record(module, "KVCache")
    module.save_prompt_cache(file, [cache], *([] if metadata is None else [metadata]))
    manager.restore()
    (loaded,), found = module.load_prompt_cache(file, return_metadata=True)
    assert loaded.offset == 3
    assert row_record.read_record(loaded) is None
    assert (found.items() if metadata else {}.items()) >= (metadata or {}).items()

    carriers()
    (again,), found = module.load_prompt_cache(file, return_metadata=True)
    assert row_record.read_record(again).deltas.tolist() == [[7]]
    assert not found or row_record.RECORD not in found
    assert [one.offset for one in module.load_prompt_cache(file)] == [3]


@pytest.mark.parametrize("metadata", METADATA, ids=str)
def test_patch_reads_release_file(file, metadata, carriers):
    module = importlib.import_module("mlx_lm.models.cache")
    cache = cache_with_record(module, "KVCache")
    module.save_prompt_cache(file, [cache], *([] if metadata is None else [metadata]))
    carriers()
    (again,), found = module.load_prompt_cache(file, return_metadata=True)
    assert again.offset == 3
    assert row_record.read_record(again) is None
    assert not metadata or found == metadata


@pytest.mark.parametrize("package", PACKAGES)
def test_two_patches_share_record(package, ungated, carriers):
    module = importlib.import_module(f"{package}.models.cache")
    if not hasattr(module, "BatchKVCache"):
        pytest.skip("this release has no such cache")
    first = carriers()
    ungated(PATCH._replace(id="second", targets=first._patches["rope-deltas"].targets))
    cache = module.BatchKVCache([0, 0, 0])
    cache.update_and_fetch(*[mx.ones((3, 1, 3, 2))] * 2)
    row_record.write_record(cache, record(1, 2, 3))
    cache.filter(mx.array([2, 1]))
    assert row_record.read_column(cache, "deltas", 2).tolist() == [[3], [2]]
    assert row_record.read_column(cache.extract(1), "deltas", 1).tolist() == [[2]]
    saved = [cache.state, *([cache.meta_state] if hasattr(cache, "meta_state") else [])]
    again = type(cache).from_state(*saved)
    assert row_record.read_column(again, "deltas", 2).tolist() == [[3], [2]]
