import copy

import mlx.core as mx
import pytest

from mlx_patches.lab.cache_arrays import arrays, count_edges
from mlx_patches.patches import catalogue
from mlx_patches.patches.caches.padding_nan import patch as padding
from mlx_patches.probes.fixtures import make_batch, own_class_of

from ..releases.conftest import is_installed
from ..releases.models import build_or_skip, or_skip

PATCH = catalogue.builtin().get("padding-nan")


@pytest.fixture(
    params=[t for t in PATCH.targets if is_installed(t.distribution)], ids=lambda one: one.path
)
@or_skip()
def batch_class(request):
    return own_class_of(request.param)


def fill(cache, *counts: int, width: int = 64):
    """Feed ones; returns the keys from the last update, None if the cache is quantized."""
    held = None
    for count in counts:
        rows = cache.left_padding.shape[0]
        ones = mx.ones((rows, 1, count, width), dtype=mx.bfloat16)
        held, _ = cache.update_and_fetch(ones, 2 * ones)
    return held[..., 0][:, 0].tolist() if isinstance(held, mx.array) else None


@pytest.mark.parametrize(
    ("padding", "chunks"), [((3, 0, 5), (4, 2, 1)), ((3, 0, 2), (1, 1, 2, 1, 1))]
)
def test_only_padding_is_zeroed(batch_class, padding, chunks, ungated):
    if chunks[0] == 1 and "Rotating" in batch_class.__name__:
        pytest.skip("writes a chunk of padding where it writes a decode step's token")
    ungated("padding-nan")
    held = fill(make_batch(batch_class, [*padding], 16), *chunks)
    assert held in (None, [[0.0] * pad + [1.0] * (sum(chunks) - pad) for pad in padding])


def test_padding_beyond_window(batch_class, ungated):
    if "Rotating" not in batch_class.__name__:
        pytest.skip("has no window")
    ungated("padding-nan")
    cache = make_batch(batch_class, [7, 0], 4)
    assert fill(cache, 5) == [[0.0] * 5, [1.0] * 5]
    assert fill(cache, 5) == [[0.0] * 5 + [1.0] * 3, [1.0] * 8]  # 3 kept + 2 new are padding
    assert fill(cache, 1, 1, 1, 1, 1, 3) == [[1.0] * 6, [1.0] * 6]


def test_dtypes_and_values_are_kept(batch_class, ungated):
    manager = ungated("padding-nan")
    cache = make_batch(batch_class, [0, 0], 16)
    keys = mx.random.normal((2, 1, 5, 64), key=mx.random.key(0)).astype(mx.bfloat16)
    held, _ = cache.update_and_fetch(keys, keys)
    if isinstance(held, mx.array):
        assert held.dtype == mx.bfloat16
        assert mx.array_equal(held, keys)

    # As are rows that the batch has not.
    cache = make_batch(batch_class, [1, 2], 16)
    keys = mx.ones((4, 1, 5, 64), dtype=mx.bfloat16)
    held, _ = cache.update_and_fetch(keys, keys)
    if isinstance(held, mx.array):
        assert mx.array_equal(held, keys)
    assert all(outcome.status != "failed" for outcome in manager.status())


@pytest.mark.parametrize("name", ["gemma3n", "moondream3"])
@or_skip()
def test_models_with_nan_padding(name, ungated):
    """No NaN leaves the model's caches, whichever package they are from."""
    model = build_or_skip(f"mlx-vlm:{name}")
    cache = model.make_batch_cache([3, 0])
    width = model.config["hidden_size"]
    table = mx.array([[0, 0, 0, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7]])
    embeds = mx.random.normal((2, 7, width), key=mx.random.key(1))
    embeds[0, :3] = 0

    def compute_logits(cache):
        return model.call(table, cache, inputs_embeds=embeds)[:, 3:]

    try:
        before = compute_logits(cache)
    except (ValueError, TypeError) as crash:
        pytest.skip(f"this release cannot run such a batch: {crash}")
    ungated("padding-nan")
    after = compute_logits(model.make_batch_cache([3, 0]))
    assert not mx.isnan(after).any()
    if not mx.isnan(before).any():
        assert mx.array_equal(before, after)


def count_nodes(cache):
    return count_edges(*arrays(cache.state[:2]))


def feed_lazily(cache, *counts: int):
    for count in counts:
        rows = cache.left_padding.shape[0]
        keys = mx.random.normal((rows, 1, count, 64), key=mx.random.key(count))
        cache.update_and_fetch(keys, keys)
    return cache


COUNTS = [(4,), (4, 3), (4, 1, 1, 3), (9, 4, 4), (4, 1, 1, 1, 1, 1, 1, 1, 1, 3)]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_unpadded_batch_gets_no_operation(batch_class, counts, ungated):
    plain = count_nodes(feed_lazily(make_batch(batch_class, [0, 0], 6), *counts))
    ungated("padding-nan")
    assert count_nodes(feed_lazily(make_batch(batch_class, [0, 0], 6), *counts)) == plain


@pytest.mark.parametrize("counts", [(4, 4), (8, 1, 1), (5, 5, 5, 5)], ids=str)
@pytest.mark.parametrize("window", [6, 64])
def test_later_chunks_get_no_operation(batch_class, counts, window, ungated):
    """Only the first chunk of a padded batch adds nodes."""
    added = []
    for count in (1, len(counts)):
        plain = feed_lazily(make_batch(batch_class, [3, 0], window), *counts[:count])
        before = count_nodes(plain)
        manager = ungated("padding-nan")
        patched = feed_lazily(make_batch(batch_class, [3, 0], window), *counts[:count])
        added.append(count_nodes(patched) - before)
        manager.restore()
    assert added[0] > 0
    assert added[1] == added[0]


@pytest.mark.parametrize("window", [6, 64])
def test_padding_is_read_once_per_batch(batch_class, window, ungated, monkeypatch):
    reads = []
    read = padding.read_padding_end
    monkeypatch.setattr(padding, "read_padding_end", lambda c: reads.append(c) or read(c))
    ungated("padding-nan")
    cache = feed_lazily(make_batch(batch_class, [3, 0], window), 4, 5, 5, 5)
    assert len(reads) == 1
    feed_lazily(cache, *[1] * 9)
    assert len(reads) == 1


def test_copy_has_own_padding(batch_class, ungated):
    ungated("padding-nan")
    cache = make_batch(batch_class, [5, 0], 16)
    fill(cache, 2)
    for one in (copy.deepcopy(cache), copy.copy(cache), cache):
        assert fill(one, 6) in (None, [[0.0] * 5 + [1.0] * 3, [1.0] * 8])


def test_joining_rows_bring_padding(batch_class, ungated):
    """A batch without padding is joined by one whose padding is only partly written."""
    if not hasattr(batch_class, "extend"):
        pytest.skip("rows cannot join in this release")
    ungated("padding-nan")
    cache, other = make_batch(batch_class, [0], 16), make_batch(batch_class, [5], 16)
    for one in (cache, other):
        fill(one, 2)
    cache.extend(other)
    held = fill(cache, 6)
    assert held in (None, [[1.0] * 8, [0.0] * 5 + [1.0] * 3])


def test_trimmed_padding_can_return(batch_class, ungated):
    ungated("padding-nan")
    cache = make_batch(batch_class, [3, 0], 16)
    fill(cache, 6)
    if not cache.is_trimmable():
        pytest.skip("not trimmable")
    cache.trim(6)
    if "Rotating" in batch_class.__name__:
        cache.keys = cache.values = None  # the release cannot append to a window after a trim
    assert fill(cache, 5) in (None, [[0.0] * 3 + [1.0] * 2, [1.0] * 5])


def test_mutant_forgets_joining_rows(batch_class, ungated, monkeypatch):
    """The mutant trusts the recorded padding, which does not cover rows that joined since."""
    if not hasattr(batch_class, "extend") or "Quantized" in batch_class.__name__:
        pytest.skip("rows cannot join in this release, or are not handed out")
    ungated("padding-nan")
    read = padding.read_padding_end

    def read_note(cache):
        noted = vars(cache).get("_mlx_patches_padding_end")
        return noted[1] if noted else read(cache)

    monkeypatch.setattr(padding, "read_padding_end", read_note)
    cache, other = make_batch(batch_class, [1], 16), make_batch(batch_class, [5], 16)
    for one in (cache, other):
        fill(one, 2)
    cache.extend(other)
    assert fill(cache, 6) != [[0.0] + [1.0] * 7, [0.0] * 5 + [1.0] * 3]
