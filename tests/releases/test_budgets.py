"""Budgets of a step with every patch in effect: device reads, graph nodes and live bytes."""

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import pytest

import mlx_patches
from mlx_patches.lab import Family, LabModel, generators
from mlx_patches.lab.build import build
from mlx_patches.lab.families import models_folder
from mlx_patches.patches import catalogue

from . import costs
from .conftest import is_installed, verdict
from .costs import Batch, Solo

pytestmark = pytest.mark.slow

Value = TypeVar("Value")

# Each tuple stands for one kind of model; the first name that the release has is used.
SAMPLE = {
    "mlx-lm": (
        *(("llama",), ("gemma3_text",), ("qwen3_5", "qwen3_next"), ("nemotron_h",)),
        *(("afm7",), ("gpt_oss",)),
    ),
    "mlx-vlm": (
        *(("gemma3",), ("gemma4",), ("qwen2_5_vl",), ("qwen3_vl",), ("qwen3_5",)),
        *(("nemotron_h",), ("mllama",), ("moondream3",), ("afm7",)),
    ),
}
PROMPT = 6
LONG = 40  # a prompt longer than any span after which a patch evaluates a batch's counts
# More families with counts that no layer reads: recurrent layers, layers without rotary positions.
COUNTING = (
    *("qwen3_next", "kimi_linear", "granitemoehybrid", "falcon_h1", "mamba2", "jamba"),
    *("cohere2", "exaone4"),
)
# Two spans of decode steps, each longer than the period in which a graph is cut.
EARLY, LATE = range(40, 80), range(260, 300)
# Buffers grow by this many tokens. A prompt of this length makes a cut buffer as large as others.
BLOCK = 256
STEPS = 50
# Prompts that wait for a batch, and the Python calls that patches may add to each.
PROMPTS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
MOST_CALLS = 20
# The share by which live keys and values may grow.
SHARE = 0.01


def sample(more: Sequence[str] = ()) -> list[Family]:
    """The families of the sample and of ``more`` that the installed release has."""
    distribution = "mlx-vlm" if is_installed("mlx-vlm") else "mlx-lm"
    folder = models_folder(distribution)
    if folder is None:
        return []
    there = {entry.stem for entry in folder.iterdir()}
    choices = (*SAMPLE[distribution], *((name,) for name in more))
    found = ([name for name in names if name in there] for names in choices)
    return list(dict.fromkeys(Family(distribution, choice[0]) for choice in found if choice))


@cache
def list_needed(patch_id: str) -> set[str]:
    if patch_id not in catalogue.builtin():
        return set()
    patch = catalogue.builtin().get(patch_id)
    targets = [target for target in patch.targets if is_installed(target.distribution)]
    return {target.module for target in targets if verdict(patch, target).ok}


def needs(family: Family, patch_id: str) -> bool:
    """Whether a family's own module needs a patch in the installed release."""
    package = f"{family.distribution.replace('-', '_')}.models.{family.name}"
    return bool(list_needed(patch_id) & {package, f"{package}.language"})


def runs_batched(family: Family) -> bool:
    """Whether a step of a batch is one call of the model."""
    return not needs(family, "row-by-row")


# A known cost: at the start of a prompt the deltas of rows without an image are recorded. These are
# the most nodes that this may add to a call; they are not computed until a step reads the deltas.
NODE_DEBTS = {"rope-deltas": 3}


def node_debt(family: Family) -> int:
    """How many nodes the patches that a family needs may add to a call of it."""
    return sum(most for patch_id, most in NODE_DEBTS.items() if needs(family, patch_id))


ALL = [pytest.param(family, id=family.name) for family in sample()]
BATCHED = [pytest.param(family, id=family.name) for family in sample() if runs_batched(family)]
COUNTED = [
    pytest.param(family, id=family.name) for family in sample(COUNTING) if runs_batched(family)
]


@cache
def model_of(family: Family) -> LabModel:
    """A model after one call: some models keep arrays of their first call."""
    model = build(family)
    call_once(model)
    return model


def call_once(model: LabModel) -> None:
    """Feed a short prompt. A model that keeps arrays of its last call, as Gemma 4 does, has few."""
    once = Solo(model)
    once.evaluate(once.prefill(PROMPT))


@contextmanager
def every_patch_applied() -> Iterator[None]:
    mlx_patches.apply(patches=catalogue.builtin().ids())
    try:
        yield
    finally:
        mlx_patches.restore()


def measure_unpatched(measure: Callable[[], Value], solo: Callable[[], Value]) -> Value:
    try:
        return measure()
    except Exception:
        return solo()


def measure_patched(measure: Callable[[], Value]) -> Value:
    """A measurement with every patch in effect."""
    with every_patch_applied():
        assert mlx_patches.status().with_status("applied", "late")
        return measure()


@pytest.mark.parametrize("family", BATCHED)
def test_decode_reads_no_device(family: Family) -> None:
    model = model_of(family)

    def decode_step() -> list[str]:
        batch = Batch(model, [2, 0])
        batch.evaluate(batch.prefill(PROMPT))
        batch.evaluate(batch.step(0))
        with costs.reads() as seen:
            logits = batch.step(1)
        batch.evaluate(logits)
        return seen

    seen = measure_patched(decode_step)
    assert not seen, "\n".join(seen)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("family", BATCHED)
def test_unpadded_batch_adds_no_nodes(family: Family, rows: int, tmp_path: Path) -> None:
    """Except for NODE_DEBTS. A family that runs row by row has a graph for each row."""
    model = model_of(family)

    def graphs() -> dict[str, Counter[str]]:
        return graphs_of(Batch(model, [0] * rows), tmp_path)

    def solo() -> dict[str, Counter[str]]:
        one = graphs_of(Solo(model), tmp_path)
        return {
            part: Counter({k: rows * n for k, n in graph.items()}) for part, graph in one.items()
        }

    expect_no_more_nodes(family, measure_unpatched(graphs, solo), measure_patched(graphs))


@pytest.mark.parametrize("family", ALL)
def test_solo_adds_no_nodes(family: Family, tmp_path: Path) -> None:
    model = model_of(family)

    def graphs() -> dict[str, Counter[str]]:
        return graphs_of(Solo(model), tmp_path)

    expect_no_more_nodes(family, graphs(), measure_patched(graphs))


@pytest.mark.parametrize("family", BATCHED)
def test_engine_evaluates_no_more_nodes(family: Family, tmp_path: Path) -> None:
    """An engine evaluates only the tokens: lazy arrays of a release are free."""
    model = model_of(family)

    def count_evaluated() -> int:
        batch = Batch(model, [0, 0])
        batch.evaluate(batch.prefill(PROMPT))
        return costs.count_evaluated_nodes(batch, costs.PERIOD, tmp_path)

    try:
        before = count_evaluated()
    except Exception:
        pytest.skip("the release refuses this batch without a patch")
    # In each layer, `offset-chain` adds a node once in 32 steps, and two at the first of these.
    most = 3
    if list_needed("rotating-chain"):  # one per step in sliding layers, as in mlx-lm from 0.31.1 on
        most += costs.PERIOD
    assert measure_patched(count_evaluated) - before <= most * len(model.make_cache())


@pytest.mark.parametrize("family", ALL)
def test_calls_of_a_waiting_prompt(family: Family) -> None:
    """Python calls that the patches of a process add when a prompt arrives."""
    model = model_of(family)

    def count_calls() -> float:
        generator = generators.make_generator(model, 8)
        generator.insert(PROMPTS)  # the first call may import modules or fill caches
        events: list[str] = []
        sys.setprofile(lambda frame, event, callee: events.append(event))
        try:
            generator.insert(PROMPTS)
        finally:
            sys.setprofile(None)
        return (events.count("call") + events.count("c_call")) / len(PROMPTS)

    try:
        before = count_calls()
    except Exception:
        pytest.skip("the release refuses this batch without a patch")
    with mlx_patches.patched():
        added = count_calls() - before
    assert added <= MOST_CALLS


def expect_no_more_nodes(
    family: Family, before: dict[str, Counter[str]], after: dict[str, Counter[str]]
) -> None:
    more = {part: difference(before[part], after[part]) for part in after}
    most = node_debt(family)
    over = [f"{part}: {added}" for part, added in more.items() if sum(added.values()) > most]
    assert not over, "\n".join(over)


@pytest.mark.parametrize("family", BATCHED)
def test_mask_kinds_of_equal_prompts(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for "causal" and for no mask are faster than the same mask as an array."""
    model = model_of(family)
    fast = mx.fast
    attend, kinds = fast.scaled_dot_product_attention, []

    def note_mask(*args: Any, mask: Any = None, **kwargs: Any) -> Any:
        kinds.append(mask if mask is None or isinstance(mask, str) else "array")
        return attend(*args, mask=mask, **kwargs)

    def list_masks() -> list[Any]:
        kinds.clear()
        batch = Batch(model, [0, 0])
        for feed in (lambda: batch.prefill(LONG), batch.step, batch.step):
            batch.evaluate(feed())
        return list(kinds)

    monkeypatch.setattr(fast, "scaled_dot_product_attention", note_mask)
    try:
        before = list_masks()
    except Exception:
        pytest.skip("the release refuses this batch without a patch")
    arrays = [one == "array" for one in measure_patched(list_masks)]
    assert len(arrays) == len(before)
    assert not [i for i, kind in enumerate(before) if arrays[i] and kind != "array"]


@pytest.mark.parametrize("padding", [[2, 0], [0, 0]], ids=["padded", "equal"])
@pytest.mark.parametrize("family", COUNTED)
def test_graph_does_not_grow(family: Family, padding: list[int], tmp_path: Path) -> None:
    """The unevaluated nodes in the caches do not grow if the engine evaluates only the tokens."""
    model = model_of(family)

    def measure_leftovers() -> tuple[int, int]:
        batch = Batch(model, padding)
        batch.evaluate(batch.prefill(PROMPT))
        sizes = []
        for step in range(LATE.stop):
            mx.eval(batch.step(step))
            sizes.append(costs.nodes([batch.cache], tmp_path).total())
        return max(sizes[n] for n in EARLY), max(sizes[n] for n in LATE)

    early, late = measure_patched(measure_leftovers)
    assert late <= early


@pytest.mark.parametrize("family", ALL)
def test_no_keys_and_values_stay_alive(family: Family) -> None:
    model = model_of(family)

    def measure_bytes() -> int:
        call_once(model)
        return costs.live_bytes(lambda: decode(Batch(model, [2, 0])))

    def solo() -> int:
        call_once(model)
        return costs.live_bytes(lambda: [decode(Solo(model)) for _ in range(2)])

    before, after = measure_unpatched(measure_bytes, solo), measure_patched(measure_bytes)
    assert after <= before * (1 + SHARE), f"{before} bytes without patches"


READERS: dict[str, Callable[[Any], Any]] = {
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x.item(),
    "__bool__": lambda x: 1 if x else 0,
    "__int__": lambda x: int(x),
    "__float__": lambda x: float(x),
    "__format__": lambda x: f"{x}",
    "in a list": lambda x: x in [x + 1],
    "mx.eval": lambda x: mx.eval(x),
    "memoryview": lambda x: memoryview(x),
    "numpy": lambda x: importlib.import_module("numpy").array(x),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_planted_read_is_counted(read: Callable[[Any], Any]) -> None:
    value = mx.array(1)
    with costs.reads(ours=[__file__]) as seen:
        read(value)
    assert len(seen) == 1, seen
    assert "test_budgets.py" in seen[0]
    with costs.reads() as seen:
        read(value)
    assert not seen, "it is no code of a patch"
    assert read(value) is not None or read is READERS["mx.eval"]


def test_planted_costs_are_counted(tmp_path):
    value = mx.array([1.0])
    plain, more = costs.nodes([value * 2], tmp_path), costs.nodes([-(value * 2)], tmp_path)
    assert difference(plain, more) == {"Negative": 1}

    def leaking() -> None:
        cycle: list[Any] = [mx.zeros(1000)]
        mx.eval(cycle[0])
        cycle.append(cycle)

    assert costs.live_bytes(lambda: None) == 0
    assert costs.live_bytes(leaking) >= 4000


def graphs_of(batch: Batch, folder: Path) -> dict[str, Counter[str]]:
    graphs = {}
    feeds = {"prefill": lambda: batch.prefill(LONG), "decode": batch.step}
    for name, feed in feeds.items():
        batch.evaluate()
        logits = feed()
        graphs[name] = costs.nodes([logits, batch.cache], folder)
        batch.evaluate(logits)
    return graphs


def difference(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    more = {name: after[name] - before[name] for name in after | before}
    return {name: count for name, count in more.items() if count}


def decode(batch: Batch) -> Any:
    batch.evaluate(batch.prefill(BLOCK))
    for step in range(STEPS):
        batch.evaluate(batch.step(step))
    return batch.cache
