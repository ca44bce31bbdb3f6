"""A patched generator or coroutine function gives the journal of the released one."""

import asyncio
import copy
import functools
import gc
import inspect
import pickle
import weakref

import pytest

from mlx_patches.core.patch import around

from .conftest import apply_all, load, target

SOURCE = '''
LOG = []

def numbers(n, step: int = 1, *, start=0) -> "list":
    """Count."""
    LOG.append("begins")
    try:
        for i in range(start, start + n, step):
            try:
                sent = yield i
                LOG.append(("sent", sent))
            except KeyError as error:
                LOG.append(("caught", str(error)))
                yield "caught"
        return "all"
    finally:
        LOG.append("ends")

async def wait(n, step: int = 1, *, start=0):
    LOG.append("begins")
    try:
        await pause()
        if n < 0:
            raise ValueError(n)
        return start + n * step
    finally:
        LOG.append("ends")

async def stream(n, step: int = 1, *, start=0):
    LOG.append("begins")
    try:
        for i in range(start, start + n, step):
            try:
                sent = yield i
                LOG.append(("sent", sent))
                await pause()
            except KeyError as error:
                LOG.append(("caught", str(error)))
                yield "caught"
    finally:
        await pause()
        LOG.append("ends")

async def pause():
    import asyncio
    await asyncio.sleep(0)

async def guard(source, n):
    """A host's: it ends a stream whose client has left."""
    events = aiter(source)
    try:
        while n:
            n -= 1
            yield await anext(events)
    except StopAsyncIteration:
        pass
    finally:
        await events.aclose()
        LOG.append("guarded")

def plain(n, step: int = 1, *, start=0):
    return numbers(n, step, start=start)
'''


@pytest.fixture
def kinds(fake):
    fake.write("fake_lm/kinds.py", SOURCE)
    return load("fake_lm.kinds")


def passes(released, *args, **kwargs):
    return released(*args, **kwargs)


def iterates(released, *args, **kwargs):
    return (yield from released(*args, **kwargs))


async def awaits(released, *args, **kwargs):
    return await released(*args, **kwargs)


def fails(released, *args, **kwargs):
    raise RuntimeError("the layer's")


LAYERS = {
    "numbers": [passes, iterates, fails],
    "wait": [passes, awaits, fails],
    "stream": [passes, fails],
    "plain": [passes, iterates, fails],
    "guard": [passes, fails],
}


def exhaust(function):
    made = function(3)
    found = list(made)
    return [found, next(made, "nothing more")]


def send(function):
    made = function(2, start=5)
    with pytest.raises(TypeError, match="just-started"):
        made.send(1)
    found = [next(made), made.send("a")]
    with pytest.raises(StopIteration) as ended:
        made.send("b")
    return [*found, ended.value.value]


def throw(function):
    made = function(3)
    found = [next(made), made.throw(KeyError("k")), next(made)]
    with pytest.raises(ZeroDivisionError):
        made.throw(ZeroDivisionError)
    return [*found, next(made, "ended")]


def throw_at_once(function):
    made = function(3)
    with pytest.raises(ZeroDivisionError):
        made.throw(ZeroDivisionError)
    return [next(made, "ended")]


def close(function):
    made, other = function(3), function(3)
    found = [next(made), made.close(), other.close()]
    return [*found, next(made, "closed"), next(other, "closed")]


def drop(function):
    made = function(3)
    found = next(made)
    del made
    gc.collect()
    return [found]


def names(function):
    made = function(3)
    return [made.__name__, made.__qualname__, inspect.isgenerator(made)]


@pytest.mark.parametrize(
    "script", [exhaust, send, throw, throw_at_once, close, drop], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("layer", LAYERS["numbers"])
@pytest.mark.parametrize("name", ["numbers", "plain"])
def test_generators(kinds, name, layer, script):
    compare(kinds, name, layer, script)


@pytest.mark.parametrize("layer", LAYERS["numbers"])
def test_generator_names(kinds, layer):
    compare(kinds, "numbers", layer, names)


def compare(kinds, name, layer, run):
    right = [run(vars(kinds)[name]), [*kinds.LOG]]
    kinds.LOG.clear()
    manager, _ = apply_all(target(name, "fake_lm.kinds", around(layer)))
    try:
        assert [run(vars(kinds)[name]), kinds.LOG] == right
        assert bool(manager.failures) == (
            layer is fails and (name == "plain" or "begins" in kinds.LOG)
        )
    finally:
        manager.restore()


def test_generator_is_lazy(kinds):
    manager, _ = apply_all(target("numbers", "fake_lm.kinds", around(fails)))
    made = kinds.numbers(1)
    assert inspect.getgeneratorstate(made) == inspect.GEN_CREATED
    assert not manager.failures
    assert next(made) == 0
    assert kinds.LOG == ["begins"]
    assert manager.failures["fix"].count == 1


async def async_exhaust(function):
    return [[one async for one in function(3)]]


async def async_send(function):
    made = function(2, start=5)
    found = [await anext(made), await made.asend("a")]
    with pytest.raises(StopAsyncIteration):
        await made.asend("b")
    return found


async def async_throw(function):
    made = function(3)
    found = [await anext(made), await made.athrow(KeyError("k")), await anext(made)]
    with pytest.raises(ZeroDivisionError):
        await made.athrow(ZeroDivisionError())
    return [*found, await anext(made, "ended")]


async def async_close(function):
    made, other = function(3), function(3)
    found = [await anext(made), await made.aclose(), await other.aclose()]
    return [*found, await anext(made, "closed"), await anext(other, "closed")]


async def async_cancel(function):
    made = function(3)
    found = [await anext(made)]
    task = asyncio.ensure_future(anext(made))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return [*found, await anext(made, "ended")]


async def async_drop(function):
    """The loop closes generators that are collected early."""
    made = function(3)
    found = await anext(made)
    del made
    gc.collect()
    for _ in range(9):
        await asyncio.sleep(0)
    return [found]


async def async_names(function):
    made = function(3)
    return [made.__name__, made.__qualname__, inspect.isasyncgen(made), made.ag_running]


async def leave(function):
    """A client reads one event and leaves."""
    source = load("fake_lm.kinds").stream(9)
    made = function(source, 5)
    found = [await anext(made), await made.aclose()]
    return [*found, await anext(source, "closed")]


async def exhaust_stream(function):
    return [[one async for one in function(load("fake_lm.kinds").stream(2), 5)]]


class Iterator:
    def __init__(self, values):
        self.values = iter(values)

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return next(self.values)
        except StopIteration:
            raise StopAsyncIteration from None


def test_own_async_iterator(kinds):
    apply_all(target("stream", "fake_lm.kinds", around(lambda released, n: Iterator("ab"))))
    assert asyncio.run(async_exhaust(kinds.stream)) == [["a", "b"]]

    async def throw():
        made = kinds.stream(3)
        found = await anext(made)
        with pytest.raises(KeyError):
            await made.athrow(KeyError("k"))
        return found

    assert asyncio.run(throw()) == "a"


async def await_call(function):
    return [await function(3, start=5)]


async def failing(function):
    with pytest.raises(ValueError, match="-1"):
        await function(-1)
    return []


async def leave_unawaited(function):
    made = function(3)
    found = [inspect.getcoroutinestate(made), made.__name__, made.__qualname__]
    made.close()
    return found


async def cancel(function):
    task = asyncio.ensure_future(function(3))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return []


ASYNC = {
    "stream": [
        *(async_exhaust, async_send, async_throw, async_close, async_cancel, async_drop),
        async_names,
    ],
    "guard": [leave, exhaust_stream],
    "wait": [await_call, failing, leave_unawaited, cancel],
}


@pytest.mark.parametrize(
    ("name", "layer", "script"),
    [(name, layer, one) for name in ASYNC for layer in LAYERS[name] for one in ASYNC[name]],
)
def test_async_functions(kinds, name, layer, script):
    compare(kinds, name, layer, lambda function: asyncio.run(script(function)))


@pytest.mark.parametrize("name", ["numbers", "wait", "stream"])
def test_arguments_are_not_kept(kinds, name):
    """The release's own function may drop them while it runs."""

    class Argument:
        pass

    def layer(released, n):
        del n
        return released(1)

    apply_all(target(name, "fake_lm.kinds", around(layer)))
    argument = Argument()
    gone = weakref.ref(argument)
    made = vars(kinds)[name](argument)
    del argument
    step = {"numbers": "__next__", "wait": "send", "stream": "__anext__"}[name]
    begun = getattr(made, step)(*([None] if name == "wait" else []))
    if name == "stream":
        with pytest.raises(StopIteration):
            begun.send(None)
    assert gone() is None
    if name == "stream":  # without a loop nothing else closes it
        closing = made.aclose()
        with pytest.raises(StopIteration):
            while True:
                closing.send(None)


KINDS = [
    *(inspect.isfunction, inspect.isgeneratorfunction),
    *(inspect.iscoroutinefunction, inspect.isasyncgenfunction, asyncio.iscoroutinefunction),
]


@pytest.mark.parametrize("layer", [passes, fails])
@pytest.mark.parametrize("name", LAYERS)
def test_inspection(kinds, name, layer):
    released = vars(kinds)[name]

    def look():
        function = vars(kinds)[name]
        return {
            "kind": [kind(function) for kind in KINDS],
            "partial": [kind(functools.partial(function, 1)) for kind in KINDS],
            "signature": inspect.signature(function),
            "unwrapped": inspect.unwrap(function),
            "own": inspect.signature(function, follow_wrapped=False).return_annotation
            if name == "numbers"
            else None,
            "source": inspect.getsource(function),
            "copies": [copy.copy(function) is function, copy.deepcopy(function) is function],
            "pickled": pickle.loads(pickle.dumps(function)) is function,
            "names": [
                getattr(function, one)
                for one in (*functools.WRAPPER_ASSIGNMENTS, "__defaults__", "__kwdefaults__")
            ],
            "attributes": {*vars(function)} - {"__wrapped__"},
        }

    before = look()
    manager, _ = apply_all(target(name, "fake_lm.kinds", around(layer)))
    assert vars(kinds)[name] is not released
    assert look() == before
    manager.restore()
    assert vars(kinds)[name] is released
