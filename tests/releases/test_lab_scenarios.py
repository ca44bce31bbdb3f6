import importlib
import importlib.metadata
import inspect
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import pytest

import mlx_patches
from mlx_patches.evidence.words import BFLOAT16
from mlx_patches.lab import Family, LabModel, NotBuilt, engine, generators
from mlx_patches.lab.build import build
from mlx_patches.lab.child import device, main
from mlx_patches.lab.engine_scenarios import penalize, second_best
from mlx_patches.lab.scenarios import SCENARIOS, forget_solo_runs
from mlx_patches.probes.batch_invariance import tiny

from .conftest import is_installed, is_needed
from .models import applicable
from .test_batch_invariance import has_defect

pytestmark = pytest.mark.slow

needs_lm = pytest.mark.skipif(not is_installed("mlx-lm"), reason="this set has no mlx-lm")
needs_vlm = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="this set has no mlx-vlm")


@pytest.fixture
def right() -> LabModel:
    if is_installed("mlx-lm"):
        return tiny("mlx-lm", "llama", layer_types=["full_attention"] * 4)
    return tiny("mlx-vlm", "gemma4", layer_types=["full_attention"] * 4)


@pytest.fixture
def applied():
    mlx_patches.apply()
    yield
    mlx_patches.restore()


def run_patched(scenario, model):
    mlx_patches.apply()
    try:
        forget_solo_runs()
        return SCENARIOS[scenario](model)
    finally:
        mlx_patches.restore()
        forget_solo_runs()


# Scenarios that are n/a for a plain attention model in some or all releases.
MAY_LACK = {
    *("right-padded", "rope-deltas", "images", "batch-generate-images", "quantized-8"),
    *("quantized-4", "processors", "leaves", "engine-images", "cache-dtype", "max-kv-size"),
}


def wrong_engine(distribution: str) -> set[str]:
    """The scenarios that a defect of the release's engine turns red for every family."""
    wrong = set()
    if is_needed("processor-rows", distribution):
        wrong |= {"processors", "samplers"} if distribution == "mlx-lm" else {"processors"}
    if is_needed("top-p-rows", distribution):
        wrong.add("samplers")
    return wrong


def test_right_family_is_green(right):
    cells = {name: scenario(right) for name, scenario in SCENARIOS.items()}
    wrong = {name: cell for name, cell in cells.items() if cell.verdict not in ("green", "n/a")}
    assert wrong.keys() == wrong_engine(right.family.distribution), wrong
    assert {name for name, cell in cells.items() if cell.verdict == "n/a"} <= MAY_LACK
    assert all(cell.detail for cell in cells.values())
    assert all(cell.figure < 1e-4 for cell in cells.values() if cell.verdict == "green")


@needs_vlm
@pytest.mark.parametrize("name", ["left-padded", "equal-lengths", "extend", "history"])
def test_gemma4_as_released(name):
    cell = SCENARIOS[name](tiny("mlx-vlm", "gemma4"))
    assert cell.verdict == ("red" if has_defect() else "green"), cell.detail


@needs_vlm
def test_gemma4_patched(applied):
    model = tiny("mlx-vlm", "gemma4")
    for name in ("left-padded", "equal-lengths", "extend", "filter", "extract-late", "history"):
        assert SCENARIOS[name](model).verdict == "green", name


def plant(monkeypatch, kind, name, around):
    """Put ``around(original, self, ...)`` in place of a method, or of a property's setter."""
    own = inspect.getattr_static(kind, name)
    original = own.fset if isinstance(own, property) else getattr(own, "__func__", own)

    def broken(self, *args, **kwargs):
        return around(original, self, *args, **kwargs)

    made = own.setter(broken) if isinstance(own, property) else broken
    monkeypatch.setattr(kind, name, classmethod(made) if isinstance(own, classmethod) else made)


def stays(name):
    def around(original, self, *args, **kwargs):
        before = getattr(self, name)[:]
        result = original(self, *args, **kwargs)
        setattr(self, name, before)
        return result

    return around


def shift_offset(original, self, *args):
    """The offset of a cache, or of a merged one, is off by one afterwards."""
    made = original(self, *args)
    cache = self if made is None else made
    cache.offset = cache.offset + 1
    return made


def swap_keys(original, self, *args):
    original(self, *args)
    self.keys = self.keys[::-1]


def nothing(original, self, *args, **kwargs):
    return None


def first_row(original, self, row):
    return original(self, 0)


def no_padding(original, self, *args, **kwargs):
    kept, self.left_padding = self.left_padding, self.left_padding * 0
    mask = original(self, *args, **kwargs)
    self.left_padding = kept
    return mask


PLANTED = [
    ("update_and_fetch", stays("offset"), {"left-padded", "equal-lengths", "chunked-batch"}),
    ("make_mask", no_padding, {"left-padded", "chunked-batch", "extract-early"}),
    ("extend", shift_offset, {"extend", "engine"}),
    ("extend", stays("left_padding"), {"extend"}),
    ("filter", stays("offset"), {"filter"}),
    ("filter", swap_keys, {"filter"}),
    ("extract", first_row, {"extract-early", "extract-late"}),
    ("trim", stays("offset"), {"trim"}),
    ("trim", nothing, {"trim"}),
    ("state", shift_offset, {"state"}),
    ("merge", shift_offset, {"merge", "history"}),
    ("finalize", nothing, {"history", "last-chunk"}),
]


def kinds_of(model):
    return {type(layer) for layer in engine.batch_cache(model, [0])}


@pytest.mark.parametrize(("method", "around", "names"), PLANTED)
def test_planted_defect_is_red(right, monkeypatch, method, around, names):
    for kind in kinds_of(right):
        plant(monkeypatch, kind, method, around)
    for name in names:
        assert SCENARIOS[name](right).verdict == "red", name


def test_swapped_processors_are_red(right, applied, monkeypatch):
    if SCENARIOS["processors"](right).verdict == "n/a":
        pytest.skip("this release's generator takes no processors of a row")
    kinds = (generators._LmGenerator, generators.VlmGenerator)
    kept = [kind.insert_requests for kind in kinds]

    def turn(insert):
        def insert_others(self, requests):
            others = [() if one.processors else [penalize] for one in requests]
            pairs = zip(requests, others, strict=True)
            return insert(self, [replace(one, processors=own) for one, own in pairs])

        return insert_others

    for kind, insert in zip(kinds, kept, strict=True):
        monkeypatch.setattr(kind, "insert_requests", turn(insert))
    assert SCENARIOS["processors"](right).verdict == "red"


def test_swapped_samplers_are_red(right, applied, monkeypatch):
    assert SCENARIOS["samplers"](right).verdict == "green"
    insert = generators._LmGenerator.insert_requests

    def turn(self, requests):
        others = [None if one.sampler else second_best for one in requests]
        pairs = zip(requests, others, strict=True)
        return insert(self, [replace(one, sampler=own) for one, own in pairs])

    monkeypatch.setattr(generators._LmGenerator, "insert_requests", turn)
    if not generators.samples_by_row(right):
        monkeypatch.setattr(generators, "nucleus", lambda model, top_p: token_of_the_first_row)
    assert SCENARIOS["samplers"](right).verdict == "red"


def token_of_the_first_row(logprobs):
    return mx.broadcast_to(mx.argmax(logprobs[:1], axis=-1), logprobs.shape[:1])


def test_wrong_nucleus_is_red(right, applied, monkeypatch):
    monkeypatch.setattr(
        generators, "nucleus", lambda *options: lambda logprobs: second_best(logprobs)
    )
    assert SCENARIOS["samplers"](right).verdict == "red"


@pytest.mark.parametrize("change", [stays("offset"), swap_keys, None])
def test_wrong_removal_is_red(right, applied, monkeypatch, change):
    if SCENARIOS["leaves"](right).verdict == "n/a":
        pytest.skip("this release's generator cannot remove a row")
    if change is None:
        for kind in (generators._LmGenerator, generators.VlmGenerator):
            monkeypatch.setattr(kind, "remove", lambda self, uid: None)
    else:
        for kind in kinds_of(right):
            plant(monkeypatch, kind, "filter", change)
    assert SCENARIOS["leaves"](right).verdict == "red"


@needs_vlm
def test_engine_images():
    model = build(Family("mlx-vlm", "glm4v"))
    cell = applicable(SCENARIOS["engine-images"](model))
    assert cell.verdict == ("red" if is_needed("rope-deltas", "mlx-vlm") else "green"), cell.detail
    assert run_patched("engine-images", model).verdict == "green"


def test_growing_graph_is_red(right, monkeypatch):
    def broken(original, self, *args):
        self.fed = getattr(self, "fed", mx.array(0)) + 1
        return original(self, *args)

    for kind in kinds_of(right):
        plant(monkeypatch, kind, "update_and_fetch", broken)
    assert SCENARIOS["growth"](right).verdict == "red"


def test_changed_cache_dtype_is_red(right, applied, monkeypatch):
    # The dtype of the weights does not matter: a cache must have its solo dtype.
    model = replace(right, dtype=BFLOAT16)
    if SCENARIOS["cache-dtype"](model).verdict == "n/a":
        pytest.skip("no batch joins here that has no keys yet")

    def broken(original, self, other):
        original(self, other)
        self.keys = self.keys.astype(mx.float16)

    for kind in kinds_of(right):
        plant(monkeypatch, kind, "extend", broken)
    cell = SCENARIOS["cache-dtype"](model)
    assert cell.verdict == "red"
    assert "float16" in cell.detail


@pytest.mark.parametrize(
    ("scenario", "name", "patch", "dtype"),
    [
        ("processors", "llama", "processor-rows", "float32"),
        ("samplers", "llama", "processor-rows", "float32"),
        ("samplers", "llama", "top-p-dtype", "bfloat16"),
        ("leaves", "nemotron_h", "recurrent-padding", "float32"),
        ("growth", "nemotron_h", "arrays-advance", "float32"),
        ("growth", "cohere2", "offset-chain", "float32"),
        ("last-chunk", "gemma3_text", "rotating-last-chunk", "float32"),
        ("max-kv-size", "qwen3", "rotating-keep", "float32"),
        ("cache-dtype", "gemma3_text", "joined-dtype", "bfloat16"),
    ],
)
@needs_lm
def test_known_defect_is_red(scenario, name, patch, dtype):
    model = build(Family("mlx-lm", name), dtype=dtype)
    if scenario == "max-kv-size":
        generator = importlib.import_module("mlx_lm.generate").BatchGenerator
        if "max_kv_size" not in inspect.signature(generator).parameters:
            pytest.skip("the batch generator of this release takes no max_kv_size")
    cell = SCENARIOS[scenario](model)
    right = ("green", "n/a")
    if is_needed(patch, "mlx-lm"):
        assert cell.verdict == "red", cell.detail
    elif patch != "arrays-advance":  # nemotron_h also has attention layers, with offset-chain
        assert cell.verdict in right, cell.detail
    cell = run_patched(scenario, model)
    assert cell.verdict in right, cell.detail


@needs_vlm
def test_defect_after_window_wraps(applied, monkeypatch):
    model = tiny("mlx-vlm", "gemma4")
    kind = next(one for one in kinds_of(model) if "Rotating" in one.__name__)

    def broken(original, self, *args, **kwargs):
        kept = self.left_padding
        if self._offset > self.max_size + 6:
            self.left_padding = kept + 2
        mask = original(self, *args, **kwargs)
        self.left_padding = kept
        return mask

    plant(monkeypatch, kind, "make_mask", broken)
    assert SCENARIOS["extract-early"](model).verdict == "green"
    assert SCENARIOS["left-padded"](model).verdict == "red"


def test_nan_is_red(right):
    def call(tokens, cache, **kwargs):
        logits = right.call(tokens, cache, **kwargs)
        return mx.where(mx.array(len(tokens) > 1), mx.array(float("nan")), logits)

    cell = SCENARIOS["left-padded"](replace(right, call=call))
    assert cell.verdict == "red"
    assert "NaN" in cell.detail


def test_other_favourite_token_is_red(right):
    def call(tokens, cache, **kwargs):
        logits = right.call(tokens, cache, **kwargs)
        logits = logits / mx.abs(logits).max() * 1e-3
        logits = mx.where(mx.arange(right.vocabulary) == 5, 1.0, logits)
        return mx.where(mx.arange(right.vocabulary) == 6 + (len(tokens) > 1), 1.0018, logits)

    cell = SCENARIOS["equal-lengths"](replace(right, call=call))
    assert cell.verdict == "red"


def test_crash_names_package_line(right):
    def call(tokens, cache, **kwargs):
        if len(tokens) > 1:
            cache[0].update_and_fetch(None, None)
        return right.call(tokens, cache, **kwargs)

    cell = SCENARIOS["left-padded"](replace(right, call=call))
    package = type(engine.batch_cache(right, [0])[0]).__module__.replace(".", "/")
    assert cell.verdict == "red"
    assert cell.detail.startswith("AttributeError: ")
    assert f"({package}.py:" in cell.detail


def test_refusals_are_not_applicable(right, monkeypatch):
    def refuses(*arguments):
        raise ValueError("StrangeCache does not yet support batching")

    with monkeypatch.context() as patched:
        generate = importlib.import_module(
            f"{right.family.distribution.replace('-', '_')}.generate"
        )
        patched.setattr(generate, "_merge_caches", refuses, raising=False)
        cell = SCENARIOS["left-padded"](replace(right, make_batch_cache=refuses))
    assert (cell.verdict, cell.detail) == ("n/a", "StrangeCache does not yet support batching")
    kind = type(engine.batch_cache(right, [0])[0])
    monkeypatch.delattr(kind, "extract")
    cell = SCENARIOS["extract-early"](right)
    assert (cell.verdict, cell.detail) == ("n/a", f"{kind.__name__} has no extract")


def test_engine_reports_every_token(right):
    prompts = [[3, 4, 5], [6, 7, 8, 9, 10]]
    generated = generators.generate(right, prompts, [11, 12], 9)
    assert [len(row) for row in generated] == [9, 9, 9]
    importlib.import_module("mlx.core").clear_cache()


@pytest.fixture
def child(right, monkeypatch, capsys):
    def run(*arguments, build=lambda family, **options: right, sensitivity=1.0, differ=True):
        fake = SimpleNamespace(
            build=build, sensitivity=lambda model: sensitivity, differ=lambda one, other: differ
        )
        monkeypatch.setitem(sys.modules, "mlx_patches.lab.build", fake)
        main([str(right.family), *arguments])
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_child_prints_one_line_per_scenario(child):
    lines = child("--scenario", "equal-lengths", "--scenario", "rope-deltas")
    assert [(line["scenario"], line["verdict"]) for line in lines] == [
        ("equal-lengths", "green"),
        ("rope-deltas", "n/a"),
    ]


def test_insensitive_family_is_never_green(child, right, monkeypatch):
    plant(monkeypatch, type(engine.batch_cache(right, [0])[0]), "trim", nothing)
    names = ["left-padded", "rope-deltas", "trim"]
    lines = child(*(part for name in names for part in ("--scenario", name)), sensitivity=1e-9)
    assert [line["verdict"] for line in lines] == ["insensitive", "n/a", "red"]
    assert "hardly depend on earlier tokens" in lines[0]["detail"]


def test_unbuilt_family_is_one_line(child):
    def needs_a_kernel(family, **options):
        raise NotBuilt("needs a Metal kernel")

    (line,) = child(build=needs_a_kernel)
    assert line == {
        "scenario": "build",
        "verdict": "not-built",
        "detail": "needs a Metal kernel",
        "figure": None,
        "device": device(),
        "dtype": "float32",
    }

    def breaks(family, **options):
        raise KeyError("hidden_size")

    (line,) = child(build=breaks)
    assert line["verdict"] == "not-built"
    assert line["detail"].startswith("KeyError: 'hidden_size' (")


def test_package_output_is_separate(child, right):
    def chatty(family, **options):
        print("Fetching 3 files")
        return right

    assert len(child("--scenario", "trim", build=chatty)) == 1
