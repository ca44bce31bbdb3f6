"""``rotating-last-chunk``: whole models, with batched prompts in chunks, one of one token."""

import importlib

import mlx.core as mx
import pytest

from mlx_patches.lab import Family
from mlx_patches.lab.build import build
from mlx_patches.patches.caches.rotating_last_chunk.patch import is_chunk

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("mlx-lm"), reason="tests of mlx-lm")
HISTORIES = ([3, 1, 4], [1, 5, 9, 2, 6])
# Once the window has wrapped, the first row still has padding in it.
WRAPPED = ([3], [1, 5, 9, 2, 6, 5, 3, 5])
PROMPTS = ([5, 3, 5], [8, 9])
EVEN = ([5, 3, 5], [8, 9, 7])


def last_logits(model, caches, rows, chunks):
    """Each row's logits after its last token; the rows are padded on the right."""
    longest = max(map(len, rows))
    padded = mx.array([row + [0] * (longest - len(row)) for row in rows])
    outputs, done = [], 0
    for chunk in chunks:
        outputs.append(model(padded[:, done : done + chunk], cache=caches))
        done += chunk
    logits = mx.concatenate(outputs, axis=1)
    return mx.stack([logits[number, len(row) - 1] for number, row in enumerate(rows)])


@pytest.mark.parametrize(
    ("histories", "prompts", "chunks"),
    [
        (HISTORIES, PROMPTS, (2, 1)),
        (HISTORIES, PROMPTS, (1, 1, 1)),
        (WRAPPED, EVEN, (1, 2)),
        (WRAPPED, EVEN, (1, 1, 1)),
    ],
)
@pytest.mark.parametrize("name", ["gemma3_text", "gpt_oss", "exaone4", "olmo3", "cohere2"])
def test_model_equals_solo(name, histories, prompts, chunks, ungated, beside):
    cache_module = importlib.import_module("mlx_lm.models.cache")
    if not hasattr(cache_module.BatchRotatingKVCache, "finalize"):
        pytest.skip("this release pads no prompt on the right")
    ungated("rotating-last-chunk")
    beside("padding-nan")
    model = build(Family("mlx-lm", name)).module
    solo, rows = [], []
    for history in histories:
        caches = cache_module.make_prompt_cache(model)
        model(mx.array([history]), cache=caches)
        rows.append(caches)
    batch = [merge_layers(cache_module, layers) for layers in zip(*rows, strict=True)]
    for caches, prompt in zip(rows, prompts, strict=True):
        solo.append(last_logits(model, caches, [prompt], [len(prompt)]))
        solo.append(model(mx.array([[7]]), cache=caches)[:, -1])
    lengths = [len(prompt) for prompt in prompts]
    for layer in batch:
        layer.prepare(lengths=lengths, right_padding=[max(lengths) - one for one in lengths])
    together = last_logits(model, batch, prompts, chunks)
    for layer in batch:
        layer.finalize()
    step = model(mx.array([[7], [7]]), cache=batch)[:, -1]
    for number in range(len(prompts)):
        for ours, wanted in ((together, solo[2 * number]), (step, solo[2 * number + 1])):
            assert mx.abs(ours[number] - wanted[0]).max().item() < 2e-3


def merge_layers(cache_module, layers):
    kind = getattr(cache_module, f"Batch{type(layers[0]).__name__}")
    return kind.merge(list(layers))


def test_decode_equals_release(ungated):
    kind = importlib.import_module("mlx_lm.models.cache").BatchRotatingKVCache
    before = kind(4, [0, 2])
    assert not is_chunk(before)
    manager = ungated("rotating-last-chunk")
    after = kind(4, [0, 2])
    for length in (3, 1, 1, 1, 1):
        step = mx.random.normal((2, 1, length, 1))
        patched = after.make_mask(length), *after.update_and_fetch(step, step)
        manager.restore()
        released = before.make_mask(length), *before.update_and_fetch(step, step)
        manager = ungated("rotating-last-chunk")
        assert all(map(mx.array_equal, patched, released))
    assert (after._idx, after._offset, after.rotated) == (
        before._idx,
        before._offset,
        before.rotated,
    )


def list_attended(cache, tokens):
    """The numbers of the tokens that each new token attends to; a row's first token is 1."""
    count = tokens.shape[2]
    mask = cache.make_mask(count)
    keys = cache.update_and_fetch(tokens, tokens)[0][0, 0, :, 0].tolist()
    return [
        [int(key) for key, on in zip(keys, mask[0, 0, token].tolist(), strict=True) if on]
        for token in range(count)
    ]


def test_released_expectation_of_mlx_lm(ungated):
    """Its test_batch_rotating_kv_cache: window 8, four pad tokens, four tokens, a step, then two.

    The released mask depends on where the ring buffer starts: the same cache in order of age gives
    the mask with the patch.
    """
    kind = importlib.import_module("mlx_lm.models.cache").BatchRotatingKVCache

    def number_tokens(start, stop):
        return mx.arange(float(start), float(stop))[None, None, :, None]

    def make_rotated_cache():
        cache = kind(8, [4])
        cache.update_and_fetch(number_tokens(-3, 5), number_tokens(-3, 5))
        assert sorted(list_attended(cache, number_tokens(5, 6))[0]) == [1, 2, 3, 4, 5]
        return cache

    in_order = make_rotated_cache()
    in_order._temporal_order()
    whole = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]]
    assert list_attended(in_order, number_tokens(6, 8)) == whole
    # This is what their test asserts: the window has eight tokens, and the first of six is masked.
    assert list_attended(make_rotated_cache(), number_tokens(6, 8)) == [row[1:] for row in whole]
    ungated("rotating-last-chunk")
    assert list_attended(make_rotated_cache(), number_tokens(6, 8)) == whole
