import gc
from types import SimpleNamespace

import mlx.core as mx

from mlx_patches.patches._shared import prompt_chunks


def at_column(column: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(offset=column)]


def test_tokens_are_counted_from_first_chunk():
    whole, other = mx.zeros((1, 10)), mx.zeros((1, 10))
    fed = [prompt_chunks.find_fed(whole, at_column(7 + start), 4) for start in (0, 4)]
    assert fed == [slice(0, 4), slice(4, 8)]
    assert prompt_chunks.find_fed(other, at_column(11), 4) == slice(0, 4)
    # The same prompt again, in a cache that holds less.
    assert prompt_chunks.find_fed(whole, at_column(2), 4) == slice(0, 4)
    assert prompt_chunks.find_fed(whole, None, 10) == slice(0, 10)


def test_nothing_is_kept_of_ended_prompt():
    before = len(prompt_chunks._BEGAN._held)
    whole = mx.zeros((1, 10))
    prompt_chunks.find_fed(whole, at_column(3), 4)
    assert len(prompt_chunks._BEGAN._held) == before + 1
    del whole
    gc.collect()
    assert len(prompt_chunks._BEGAN._held) == before
