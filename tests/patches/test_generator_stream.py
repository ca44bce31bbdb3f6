import gc
import importlib
import weakref
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest

from mlx_patches.lab import Family
from mlx_patches.lab.build import build
from mlx_patches.patches.generation.generator_stream import patch as generator_stream

from ..releases.conftest import is_installed

if not is_installed("mlx-lm"):
    pytest.skip("no mlx-lm, whose generators these are", allow_module_level=True)
module = importlib.import_module("mlx_lm.generate")
NAMES = ("generate_step", "speculative_generate_step")
by_name = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def same_defaults():
    defaults = generator_stream.read_defaults()
    yield
    generator_stream.write_defaults(defaults)


@pytest.fixture(scope="module")
def model():
    return build(Family("mlx-lm", "llama")).module


@pytest.fixture
def patched(ungated):
    ungated("generator-stream")


def begin(name, model, **kwargs):
    models = [model, model] if name.startswith("speculative") else [model]
    return getattr(module, name)(mx.array([5, 9, 2, 7]), *models, max_tokens=6, **kwargs)


def read_steps(steps):
    return [(int(step[0]), step[1].tolist()) for step in steps]


@by_name
def test_tokens_and_probabilities_equal_release(name, model, ungated):
    before = read_steps(begin(name, model))
    ungated("generator-stream")
    assert read_steps(begin(name, model)) == before
    assert len(before) == 6


@by_name
def test_reader_can_change_its_stream(name, model, patched):
    device = mx.default_device()
    seen = []
    for _ in begin(name, model):
        own = mx.new_stream(device)
        mx.set_default_stream(own)
        seen.append(own)
        assert mx.default_stream(device) == own
    assert mx.default_stream(device) == seen[-1]


@by_name
def test_interleaved_generations(name, model, patched):
    before = read_steps(begin(name, model))
    one, two, together = begin(name, model), begin(name, model), []
    defaults = generator_stream.read_defaults()
    for pair in zip(one, two, strict=True):
        together.append(read_steps(pair))
        assert generator_stream.read_defaults() == defaults
    assert [pair[0] for pair in together] == [pair[1] for pair in together] == before


@by_name
def test_generation_error_is_raised(name, model, patched):
    defaults = generator_stream.read_defaults()

    def fail(tokens, logits):
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        next(begin(name, model, logits_processors=[fail]))
    assert generator_stream.read_defaults() == defaults


@by_name
def test_collected_in_another_thread(name, model, patched, recwarn):
    held = [begin(name, model)]
    next(held[0])
    seen = weakref.ref(held[0])
    gc.disable()
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(held.clear).result()
        assert seen() is None, "a cycle keeps it"
    finally:
        gc.enable()
    assert not list(recwarn)


def test_other_errors_at_end_are_raised(patched):
    def tokens():
        try:
            yield 1
        finally:
            raise RuntimeError("on purpose")

    steps = generator_stream.restore_defaults(tokens())
    next(steps)
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(steps.close).exception()
    assert str(error) == "on purpose"
