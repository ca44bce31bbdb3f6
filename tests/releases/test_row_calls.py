import inspect
from collections import namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches._shared.row_calls import (
    RowPart,
    find_argument,
    find_shape,
    join_outputs,
    slice_argument,
    slice_call,
)

# Two rows of four positions; the second row's tokens are the last two.
SHAPE = (2, 4)
SPANS = [(0, 4), (2, 4)]


def numbers(*shape: int) -> object:
    return mx.arange(mx.zeros(shape).size).reshape(shape)


def same(one: object, other: object) -> bool:
    return one.shape == other.shape and mx.array_equal(one, other).item()


PART = RowPart(1, SHAPE, (2, 4), keys=(9, 6))


@pytest.mark.parametrize(
    ("name", "shape", "index"),
    [
        ("inputs", (2, 4), (slice(1, 2), slice(2, 4))),
        ("inputs_embeds", (2, 4, 8), (slice(1, 2), slice(2, 4))),
        ("position_ids", (2, 4), (slice(1, 2), slice(2, 4))),
        ("position_ids", (3, 2, 4), (slice(None), slice(1, 2), slice(2, 4))),
        ("position_ids", (1, 4), (slice(None), slice(2, 4))),
        ("position_ids", (3, 1, 4), (..., slice(2, 4))),
        ("position_ids", (3, 2, 20), (slice(None), slice(1, 2))),
        ("rope_deltas", (2, 1), (slice(1, 2),)),
        ("cross_attention_states", (2, 4, 8), (slice(1, 2),)),
        ("cross_attention_mask", (2, 1, 4, 5), (slice(1, 2), slice(None), slice(2, 4))),
        ("mask", (2, 1, 4, 9), (slice(1, 2), slice(None), slice(2, 4), slice(6, 9))),
        ("mask", (1, 1, 4, 9), (slice(None), slice(None), slice(2, 4), slice(6, 9))),
        ("attention_mask", (2, 9), (slice(1, 2), slice(6, 9))),
        ("mask", (4, 4), ()),
        ("unknown", (7, 3), ()),
        ("scale", (), ()),
    ],
)
def test_array_is_cut_to_row(name, shape, index):
    value = numbers(*shape) if shape else mx.array(3)
    assert same(slice_argument(name, value, PART), value[index] if index else value)


def test_other_values_are_cut_or_pass():
    value = numbers(3, 3, 8)
    part = RowPart(2, (3, 3), (1, 3))
    assert same(slice_argument("inputs_embeds", value, part), value[2:3, 1:3])
    assert same(slice_argument("position_ids", value[..., :3], part), value[:, 2:3, 1:3])
    value = numbers(2, 4)
    found = slice_argument("any", {"one": [value, None], "two": (value,)}, PART)
    assert same(found["one"][0], value[1:2, 2:4]) and found["one"][1] is None
    assert same(found["two"][0], value[1:2, 2:4])

    for value in (None, 3, "text", [1, 2], (), [], object(), {"n": 1}):
        sliced = slice_argument("any", value, PART)
        assert sliced is value or sliced == value


@pytest.mark.parametrize("given", ["named", "extra"])
def test_call_has_own_cache(given):
    def call_by_name(self, inputs=None, cache=None, **kwargs): ...

    def extra(self, inputs=None, **kwargs): ...

    signature = inspect.signature(call_by_name if given == "named" else extra)
    bound = signature.bind("model", input_ids=numbers(2, 4), cache=["batch"], n=5)
    assert find_shape(bound) == (2, 4)
    own = slice_call(bound, PART, ["own"])
    assert find_argument(own, "cache") == ["own"]
    assert find_argument(own, "n") == 5
    assert find_argument(own, "input_ids").shape == (1, 2)
    assert own.args == ("model",)
    assert find_argument(bound, "cache") == ["batch"]


def rows(*trailing: int) -> list[object]:
    return [numbers(1, stop - start, *trailing) + 1 for start, stop in SPANS]


def test_outputs_are_padded_and_joined():
    long, short = rows(8)
    joined = join_outputs([long, short], SPANS, SHAPE)
    assert joined.shape == (2, 4, 8)
    assert same(joined[:1], long) and same(joined[1:, 2:], short)
    assert not mx.any(joined[1, :2]).item()
    long = rows(8)[0].astype(mx.bfloat16)
    joined = join_outputs([long, None], [(0, 4), (4, 4)], SHAPE)
    assert joined.dtype == mx.bfloat16
    assert same(joined[:1], long) and not mx.any(joined[1]).item()

    joined = join_outputs([numbers(1, 4, 8), numbers(1, 1, 8) + 1], [(0, 4), (0, 1)], SHAPE)
    assert same(joined[1:, :1], numbers(1, 1, 8) + 1) and not mx.any(joined[1, 1:]).item()

    pooled = [numbers(1, 8), numbers(1, 8) + 1]
    assert same(join_outputs(pooled, SPANS, SHAPE), mx.concatenate(pooled))


@dataclass
class Output:
    logits: object = None
    hidden_states: object = None
    shared: object = None
    made: object = field(init=False, default=None)


@dataclass(frozen=True)
class Frozen:
    logits: object = None


Pair = namedtuple("Pair", "one other")


def test_containers_are_joined():
    outs = [Output(None, [a, a], {"keys": (a, Pair(a, None))}) for a in rows(8)]
    for out, made in zip(outs, rows(3), strict=True):
        out.made = made
    joined = join_outputs(outs, SPANS, SHAPE)
    assert type(joined) is Output and joined.logits is None
    whole = join_outputs(rows(8), SPANS, SHAPE)
    assert [same(one, whole) for one in joined.hidden_states] == [True, True]
    assert same(joined.shared["keys"][0], whole)
    assert type(joined.shared["keys"][1]) is Pair and joined.shared["keys"][1].other is None
    assert joined.made.shape == (2, 4, 3)
    assert outs[0].hidden_states[0].shape[0] == 1


@pytest.mark.parametrize("kind", [Frozen, SimpleNamespace])
def test_other_objects_with_logits(kind):
    joined = join_outputs([kind(logits=one) for one in rows(8)], SPANS, SHAPE)
    assert type(joined) is kind and joined.logits.shape == (2, 4, 8)


@pytest.mark.parametrize("kind", [Output, Frozen, SimpleNamespace])
def test_only_row_with_tokens(kind):
    long = rows(8)[0]
    joined = join_outputs([kind(logits=long), None], [(0, 4), (4, 4)], SHAPE)
    assert type(joined) is kind and joined.logits.shape == (2, 4, 8)
    assert same(joined.logits[:1], long)
    for value in (None, "text", object()):
        assert join_outputs([value, None], [(0, 4), (4, 4)], SHAPE) is value
