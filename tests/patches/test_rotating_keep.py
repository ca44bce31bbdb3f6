import importlib

import mlx.core as mx
import pytest

from mlx_patches.core.packages import package_of
from mlx_patches.lab import Family
from mlx_patches.lab.build import build

WINDOW = 12


# Each release's caches, and a family of plain attention beside them.
MODELS = {"mlx-lm": "qwen3", "mlx-vlm": "qwen2"}


@pytest.fixture
def release(distribution, ungated, beside):
    module = importlib.import_module(f"{package_of(distribution)}.models.cache")
    kind = getattr(module, "BatchRotatingKVCache", None)
    if kind is None or kind.__module__ != module.__name__ or not hasattr(kind, "merge"):
        pytest.skip("this release has no rotating caches of its own that merge")
    beside("rotating-merge", "batch-rotating-extract", "rotating-last-chunk")
    ungated("rotating-keep")
    return module


@pytest.fixture
def model(distribution):
    lab = build(Family(distribution, MODELS[distribution]))
    return Model(lab)


class Model:
    def __init__(self, lab):
        self.call, self.layers = lab.call, lab.make_cache()

    def __call__(self, tokens, cache):
        return self.call(tokens, cache)


def rows_of(release, model, *lengths, keep=4):
    rows = []
    for length in lengths:
        caches = [release.RotatingKVCache(max_size=WINDOW, keep=keep) for _ in model.layers]
        model(mx.arange(2, length + 2)[None] % 50, cache=caches)
        rows.append(caches)
    return rows


def merge(release, rows):
    kind = release.BatchRotatingKVCache
    return [kind.merge(list(layers)) for layers in zip(*rows, strict=True)]


def rows_and_batch(release, model, *lengths, keep=4):
    rows, others = (rows_of(release, model, *lengths, keep=keep) for _ in range(2))
    return rows, merge(release, others)


def step(model, batch, rows, tokens):
    """One decode step in a batch and solo, with the same logits."""
    together = model(mx.array([[token] for token in tokens]), cache=batch)
    for number, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        solo = model(mx.array([[token]]), cache=row)
        assert mx.abs(together[number] - solo[0]).max().item() < 2e-3, number


def test_rows_outgrow_window_like_solo(release, model):
    rows, batch = rows_and_batch(release, model, 2, WINDOW - 1, WINDOW, 30)
    for number in range(3 * WINDOW):
        step(model, batch, rows, [number % 50 + one for one in range(len(rows))])


def test_rows_leave_and_join(release, model):
    rows, batch = rows_and_batch(release, model, 5, 30)
    for number in range(WINDOW):
        step(model, batch, rows, [number, number + 1])
    for layer in batch:
        layer.filter([1])
    more, joining = rows_and_batch(release, model, 3, 14)
    step(model, joining, more, [8, 9])
    for layer, other in zip(batch, joining, strict=True):
        layer.extend(other)
    rows = [rows[1], *more]
    for number in range(2 * WINDOW):
        step(model, batch, rows, [number, number + 1, number + 2])
    taken = [layer.extract(2) for layer in batch]
    assert [row.keep for row in taken] == [4] * len(taken)
    again = merge(release, [rows[0], taken])
    for number in range(WINDOW):
        step(model, again, [rows[0], rows[2]], [number, number + 3])


@pytest.mark.parametrize("chunks", [(3,), (2, 1), (1, 1, 1)])
def test_chunked_prompt_with_history(release, model, chunks):
    """Unequal right-padded prompts; some rows' windows are full, some are not."""
    if not hasattr(release.BatchRotatingKVCache, "finalize"):
        pytest.skip("this release pads no prompt on the right")
    prompts = ([7, 8, 9], [5], [3, 4])
    rows, batch = rows_and_batch(release, model, 4, 11, 30)
    padded = mx.array([prompt + [0] * (3 - len(prompt)) for prompt in prompts])
    for layer in batch:
        layer.prepare(
            lengths=[len(prompt) for prompt in prompts],
            right_padding=[3 - len(prompt) for prompt in prompts],
        )
    done = 0
    for chunk in chunks:
        model(padded[:, done : done + chunk], cache=batch)
        done += chunk
    for layer in batch:
        layer.finalize()
    for row, prompt in zip(rows, prompts, strict=True):
        for chunk in chunks:
            own, prompt = prompt[:chunk], prompt[chunk:]
            if own:
                model(mx.array([own]), cache=row)
    for number in range(2 * WINDOW):
        step(model, batch, rows, [number, number + 1, number + 2])


def test_rows_without_keep_are_unchanged(release, model):
    rows, batch = rows_and_batch(release, model, 5, 30, keep=0)
    assert [layer.keep for layer in batch] == [0] * len(batch)
    for number in range(2 * WINDOW):
        step(model, batch, rows, [number, number + 1])


def test_step_reads_no_device(release, model, device_reads):
    batch = merge(release, rows_of(release, model, 5, 30))
    device_reads.clear()
    for number in range(2 * WINDOW):
        model(mx.array([[number], [number]]), cache=batch)
    assert not device_reads


@pytest.mark.parametrize("rows", [1, 2])
def test_full_batch_is_not_trimmed(distribution, release, rows, beside):
    """``speculative-window`` trims only a row's full window, and detects one by its counts."""
    if distribution != "mlx-lm":
        pytest.skip("speculative-window is a patch of mlx-lm")
    manager = beside("speculative-window")
    batch = release.BatchRotatingKVCache(8, [0, 2][:rows])
    keys = mx.ones((rows, 1, 12, 4))
    batch.update_and_fetch(keys, keys)  # one chunk, longer than the window
    columns, offset = batch._idx, batch.offset.tolist()
    assert batch.keep == 0
    assert [release.trim_prompt_cache([batch], 1) for _ in range(3)] == [0, 0, 0]
    assert (batch._idx, batch.offset.tolist()) == (columns, offset)
    assert not manager.withdrawn
