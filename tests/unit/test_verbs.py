import inspect
from typing import Any

import pytest

from mlx_patches.core import calls
from mlx_patches.core.calls import Parameters, compile_check
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.core.verbs import (
    after,
    argument,
    around,
    before,
    by_rows,
    convert,
    define,
    everywhere,
    family,
    result,
    tensors,
    wrap,
)

PLACE = "toy_lm.cache:Cache.trim"


def apply(targets: Any, function: Any) -> Any:
    (target,) = targets
    return target.factory(function)


def record(first: Any, second: Any = 2, *args: Any, third: Any = 3, **kwargs: Any) -> Any:
    return first, second, args, third, kwargs


def record_in_place(first, second=2, /):
    return first, second


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {}),
        ((1, 5), {}),
        ((), {"first": 1, "second": 5}),
        ((1, 5, 6, 7), {"third": 8, "other": 9}),
    ],
)
def test_argument_replaces_one_argument_of_any_call(args, kwargs):
    released = record(*args, **kwargs)
    patched = apply(argument(PLACE, "second", lambda second: -second), record)
    expected = (released[0], -released[1], *released[2:])
    assert patched(*args, **kwargs) == expected


def test_argument_of_any_kind():
    def change(start: Any, /, third: Any, other: Any) -> Any:
        return start, third, other

    patched = apply(argument(PLACE, "third", change), record)
    assert patched(1, third=4, other=5)[3] == (1, 4, 5)
    assert patched(1)[3] == (1, 3, None)
    patched = apply(argument(PLACE, "other", lambda other: -other), record)
    assert patched(1, other=5, more=6)[-1] == {"other": -5, "more": 6}
    assert patched(1, more=6)[-1] == {"more": 6}

    patched = apply(argument(PLACE, "second", lambda second: second + 1), record_in_place)
    assert patched(1) == (1, 3)
    with pytest.raises(TypeError, match="positional-only"):
        patched(1, second=2)

    def release(self, other):
        return self, other

    patched = apply(argument(PLACE, "self", lambda cache, /: [cache]), release)
    assert patched(1, 2) == patched(1, other=2) == ([1], 2)


@pytest.mark.parametrize("name", ["fourth", "change"])
def test_unknown_parameter_is_an_error(name):
    def release(first):
        return first

    with pytest.raises(MlxPatchesError, match=f"release has no parameter '{name}'"):
        apply(argument(PLACE, name, lambda: 0), release)
    reads = eval(f"lambda {name}: 0")
    with pytest.raises(MlxPatchesError, match=f"no parameter '{name}'"):
        apply(argument(PLACE, "first", reads), release)


def test_builtin_is_an_error():
    with pytest.raises(MlxPatchesError, match="not a Python function"):
        Parameters(len)


def test_functions_compile_once_at_their_first_call(monkeypatch):
    compiled = []
    monkeypatch.setattr(calls, "_compile", lambda *given: compiled.append(given) or compile(*given))
    patched = [apply(result(PLACE, lambda result: result[1]), record) for _ in range(2)]
    assert not compiled
    assert (patched[0](1), patched[0](1, 5)) == (2, 5)
    assert len(compiled) == 1
    assert patched[1](1) == 2
    assert patched[0].__code__ is not patched[1].__code__


def test_result_reads_the_result_and_arguments():
    def change(result: Any, start: Any, /, third: Any) -> Any:
        return result[0], start, third

    assert apply(result(PLACE, change), record)(1, third=4) == (1, 1, 4)
    assert apply(result(PLACE, lambda result: result[1]), record)(1) == 2


def test_before_runs_first_and_may_refuse():
    def refuse(start: Any, /, third: Any) -> None:
        if third == 4:
            raise ValueError(f"refused {start}")

    patched = apply(before(PLACE, refuse), record)
    assert patched(1, other=5) == record(1, other=5)
    with pytest.raises(ValueError, match="refused 1"):
        patched(1, third=4)


def test_after_runs_after_success():
    seen = []
    patched = apply(after(PLACE, lambda first, second: seen.append((first, second))), record)
    assert patched(1, second=7) == record(1, second=7)
    assert seen == [(1, 7)]

    def fail(first):
        raise ValueError(first)

    seen: list[Any] = []
    with pytest.raises(ValueError):
        apply(after(PLACE, lambda first: seen.append(first)), fail)(1)
    assert not seen


def test_tensors_changes_the_checkpoint():
    def sanitize(self, weights):
        return dict(weights)

    patched = apply(tensors(PLACE, lambda weights: {**weights, "b": 2}), sanitize)
    assert patched(None, {"a": 1}) == {"a": 1, "b": 2}


def test_compiled_function_looks_released():
    patched = apply(argument(PLACE, "second", lambda second: second), record)
    assert patched.__name__ == "record"
    assert inspect.signature(patched) == inspect.signature(record)
    assert inspect.unwrap(patched) is record
    assert patched.__globals__["__name__"] == __name__


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_methods_keep_their_kind(kind):
    def release(first, second=2):
        return second

    made = apply(argument(PLACE, "second", lambda second: second + 1), kind(release))
    assert type(made) is kind
    assert made.__func__(1) == 3


def test_property_and_defaults_are_kept():
    def get(self):
        return 1

    def put(self, value):
        raise AttributeError

    made = apply(result(PLACE, lambda value: value + 1), property(get, put))
    assert (made.fget(None), made.fset) == (2, put)

    default = object()

    def release(first=default, *, second=default):
        return first, second

    assert apply(after(PLACE, lambda first: None), release)() == (default, default)


def test_checks_read_by_name_or_get_the_call():
    (target,) = after(PLACE, lambda first: None, when=lambda third: third == 4)
    check = compile_check(target.when, record)
    assert check(1, third=4)
    assert not check(1)

    def is_needed(*args: Any, **kwargs: Any) -> bool:
        return True

    assert compile_check(is_needed, record) is is_needed

    (target,) = by_rows(PLACE, lambda rows, /: len(rows) > 1)
    check = compile_check(target.when, record)
    assert check([1, 2])
    assert not check([1])
    assert target.factory(record)([1])[0] == [1]


def test_convert_reads_and_writes_one_attribute_of_two_classes():
    places = ("toy_lm.cache:Cache.size", "toy_lm.cache:Batch.size")
    targets = convert(places, "Cache.__init__", read=lambda one: vars(one)["size"] + 1, write=int)
    assert [target.name for target in targets] == ["Cache.size", "Batch.size"]
    assert all(one.defines_new_attribute and one.bodies == ("Cache.__init__",) for one in targets)
    first, second = (target.factory(None) for target in targets)
    assert first is not second  # each reports to its own site
    cache = type("Cache", (), {"size": first})()
    cache.size = "4"
    assert (vars(cache)["size"], cache.size) == (4, 5)


def test_places_name_both_packages():
    assert everywhere("models.cache:KVCache.trim") == (
        "mlx_lm.models.cache:KVCache.trim",
        "mlx_vlm.models.cache:KVCache.trim",
    )
    assert family("a b", "Attention.__call__") == (
        "mlx_lm.models.a:Attention.__call__",
        "mlx_lm.models.b:Attention.__call__",
        "mlx_vlm.models.a.language:Attention.__call__",
        "mlx_vlm.models.b.language:Attention.__call__",
    )


@pytest.mark.parametrize(
    ("place", "distribution"),
    [
        ("mlx_vlm.apc:f", "mlx-vlm"),
        ("transformers.utils:f", "transformers"),
        ("rapid_mlx:f", "rapid-mlx"),
    ],
)
def test_place_names_its_distribution(place, distribution):
    (target,) = after(place, lambda: None)
    assert (target.distribution, target.path) == (distribution, place)


@pytest.mark.parametrize("verb", [after, before, result, argument])
def test_verb_changes_nothing_if_its_check_fails(verb):
    """Another patch's check may let the layer run."""
    seen = []

    def change(first: Any) -> Any:
        seen.append(first)
        return "changed"

    name = ["first"] if verb is argument else []
    changed = change if verb is not result else (lambda result, first: change(first))
    patched = apply(verb(PLACE, *name, changed, when=lambda first: first > 1), record)
    assert patched(1) == record(1)
    assert seen == []
    patched(2)
    assert seen == [2]


def test_check_must_name_its_arguments():
    def is_needed(*args: Any, **kwargs: Any) -> bool:
        return True

    with pytest.raises(MlxPatchesError, match="is_needed must name each argument"):
        apply(after(PLACE, lambda first: None, when=is_needed), record)


@pytest.mark.parametrize(
    "declare", [wrap, lambda *given, **named: define(given[0], around(given[1]), **named)]
)
def test_wrapper_runs_only_in_calls_that_pass_its_check(declare):
    """Another patch's check may let the layers of a call run."""

    def negate(release: Any, *args: Any, **kwargs: Any) -> "Any | None":
        return -release(*args, **kwargs)

    def release(first: Any, third: Any = 3) -> Any:
        return third

    (target,) = declare(PLACE, negate, when=lambda first, third=3: third == 4)
    for kind in (lambda function: function, staticmethod):
        patched = target.factory(kind(release))
        assert (patched(1, third=4), patched(1, 5), patched(1)) == (-4, 5, 3)
    assert "None" in patched.__func__.__annotations__["return"]
