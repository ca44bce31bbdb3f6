"""Counts the device reads, graph nodes and live bytes of a forward pass."""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import mlx.core as mx

import mlx_patches
from mlx_patches.core.packages import MODEL_PACKAGES, MODELS
from mlx_patches.lab import LabModel, engine
from mlx_patches.lab.cache_arrays import arrays
from mlx_patches.lab.families import models_folder

# The array methods that wait for an array's value.
READS = ("tolist", "item", "__bool__", "__int__", "__float__", "__format__", "__repr__")
READS += ("__dlpack__",)
EVALUATIONS = ("eval", "synchronize")
# Calls to numpy that read an array through the buffer protocol, without a method of the array.
NUMPY = ("array", "asarray", "ascontiguousarray", "copyto", "frombuffer")
PACKAGE = Path(mlx_patches.__file__).parent
# The parts of the package that run inside a host's calls.
OURS = tuple(f"{PACKAGE / part}/" for part in ("core", "patches"))
# More decode steps than a graph grows for before a patch cuts it.
PERIOD = 36
Rows = Sequence[Sequence[int]]


class Reads(list[str]):
    """The device reads by code of mlx_patches: the read, the function and the line."""

    def __init__(self, ours: Sequence[str] = OURS):
        super().__init__()
        self.ours = tuple(ours)

    def note(self, what: str, frame: FrameType | None) -> None:
        """Add a read if a frame of mlx_patches is nearer on the stack than one of a release."""
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.ours):
                code = frame.f_code
                self.append(f"{what} in {code.co_filename}:{frame.f_lineno} {code.co_qualname}")
                return
            if str(frame.f_globals.get("__name__")).startswith(MODELS):
                return
            frame = frame.f_back


@contextmanager
def reads(ours: Sequence[str] = OURS) -> Iterator[Reads]:
    seen = Reads(ours)
    undo: list[Callable[[], None]] = []

    def replace(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            seen.note(what, sys._getframe(1))
            return original(*args, **kwargs)

        setattr(owner, name, count)
        undo.append(lambda: setattr(owner, name, original))

    def view(module: Any) -> None:
        def count(value: Any) -> Any:
            if isinstance(value, mx.array):
                seen.note("memoryview", sys._getframe(1))
            return memoryview(value)

        module.memoryview = count
        undo.append(lambda: delattr(module, "memoryview"))

    def profile(frame: FrameType, event: str, callee: Any) -> None:
        if event == "c_call" and getattr(callee, "__name__", "") in NUMPY:
            module = str(getattr(callee, "__module__", ""))
            if module.startswith("numpy") and frame.f_code.co_filename.startswith(seen.ours):
                seen.note(f"numpy.{callee.__name__}", frame)

    before = sys.getprofile()
    try:
        for name in READS:
            replace(mx.array, name, name)
        for name in EVALUATIONS:
            replace(mx, name, f"mx.{name}")
        for module in list(sys.modules.values()):
            # Not getattr: it would make a lazy module import.
            file = getattr(module, "__dict__", {}).get("__file__")
            if str(file).startswith(seen.ours):
                view(module)
        sys.setprofile(profile)
        yield seen
    finally:
        sys.setprofile(before)
        for restore in reversed(undo):
            restore()


def nodes(outputs: Any, folder: Path) -> Counter[str]:
    """The number of primitives that are not evaluated yet for these arrays, by name."""
    file = folder / "graph.dot"
    mx.export_to_dot(str(file), *arrays(outputs))
    lines = file.read_text().splitlines()
    names = [line.split('label ="')[1] for line in lines if "shape=rectangle" in line]
    return Counter(name.split('"')[0] for name in names)


class Batch:
    """A left-padded batch of a model, as the release's engine feeds it.

    Args:
        model: a model of the lab.
        padding: the left padding of each row, in tokens.
    """

    def __init__(self, model: LabModel, padding: Sequence[int]):
        self.model = model
        self.padding = list(padding)
        self.cache = self._make_cache()
        for name in engine.REMEMBERED:  # left by an earlier batch
            if hasattr(model.module, name):
                setattr(model.module, name, None)

    def _make_cache(self) -> list[Any]:
        return engine.batch_cache(self.model, self.padding)

    def prefill(self, length: int) -> Any:
        tokens = [[0] * pad + tokens_of(length - pad, row) for row, pad in enumerate(self.padding)]
        places = [[max(0, i - pad) for i in range(length)] for pad in self.padding]
        return self._call(tokens, places)

    def step(self, step: int = 0) -> Any:
        """One decode step; returns the logits, not evaluated."""
        return self._call([[1 + (step + row) % 20] for row in range(len(self.padding))], None)

    def evaluate(self, logits: Any = None) -> None:
        mx.eval(arrays([logits, self.cache]))

    def _call(self, tokens: Rows, places: Rows | None) -> Any:
        kwargs = engine.position_kwargs(self.model, [0] * len(tokens), places, new=bool(places))
        return self.model.call(tokens, self.cache, **kwargs)


class Solo(Batch):
    """One row in the model's own caches."""

    def __init__(self, model: LabModel):
        super().__init__(model, [0])

    def _make_cache(self) -> list[Any]:
        return self.model.make_cache()


def tokens_of(length: int, row: int) -> list[int]:
    return [1 + (3 * row + 7 * i) % 20 for i in range(length)]


def count_evaluated_nodes(batch: Batch, steps: int, folder: Path) -> int:
    """How many nodes an engine evaluates in decode steps if it evaluates only the logits."""
    total = 0
    for step in range(steps):
        logits = batch.step(step)
        total += nodes([logits], folder).total()
        mx.eval(logits)
    return total


def live_bytes(make: Callable[[], Any]) -> int:
    """How many bytes of arrays stay alive for an object, and elsewhere, after making it."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        mx.synchronize()
        before = mx.get_active_memory()
        kept = make()
        mx.synchronize()
        mx.clear_cache()
        after = mx.get_active_memory()
        del kept
        return int(after - before)
    finally:
        if collects:
            gc.enable()


def with_models() -> tuple[str, ...]:
    """The code whose device reads count, since the releases' models may not read either."""
    folders = filter(None, map(models_folder, MODEL_PACKAGES.values()))
    return (*OURS, *(f"{folder}/" for folder in folders))


def decoder_rows(model: LabModel, monkeypatch: Any) -> list[int]:
    """A list that gets the number of rows of each call of the model's decoder, from now on."""
    decoder = type(model.module.model)
    own = decoder.__call__
    rows: list[int] = []

    def count(self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        tokens = kwargs.get("input_ids", kwargs.get("x", inputs))
        rows.append(tokens.shape[0])
        return own(self, *(() if inputs is None else (inputs,)), *args, **kwargs)

    monkeypatch.setattr(decoder, "__call__", count)
    return rows
