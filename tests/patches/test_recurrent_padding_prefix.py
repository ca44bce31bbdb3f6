"""Rows that continue stored prefixes by unequal rests, as in a batch of mlx-vlm's prefix cache."""

import importlib
import inspect
import re

import pytest

from mlx_patches.lab import Cell, engine, generators, rows
from mlx_patches.lab.compare import compare_generated
from mlx_patches.patches.models.recurrent_padding import by_row as recurrent_by_row
from mlx_patches.patches.models.recurrent_padding import patch as recurrent_padding
from mlx_patches.probes import NotApplicable

from ..releases.models import build_or_skip

pytestmark = pytest.mark.usefixtures("patched")

QWEN = ("mlx-vlm:qwen3_5", "mlx-vlm:qwen3_5_moe")
# The layers of these use counts beyond a chunk.
MAMBA = [
    f"{package}:{family}"
    for package in ("mlx-lm", "mlx-vlm")
    for family in ("granitemoehybrid", "falcon_h1", "mamba2")
]


def continue_rows(name: str) -> Cell:
    """Two rows with prefixes get their other tokens in chunks of two positions.

    Both have tokens in the first chunk, one in the last.
    """
    model = build_or_skip(name)
    texts = rows.rows_of(model, (3, 6), more=(8, 4))
    try:
        cache = engine.merge(model, [rows.prefill_solo(model, row) for row in texts])
        rows.prefill_right(model, texts, cache, 2)
        rows.decode(model, texts, cache, 3)
        return rows.compare(model, texts)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", [*QWEN, *MAMBA])
def test_padding_after_whole_chunks(name):
    cell = continue_rows(name)
    assert cell.verdict == "green", cell.detail


def answer_prompts(name: str) -> Cell:
    model = build_or_skip(name)
    generator = engine.generate_module(model).BatchGenerator
    if "apc_manager" not in inspect.signature(generator).parameters:
        pytest.skip("the release's engine has no prefix cache")
    stored = importlib.import_module("mlx_vlm.apc").APCManager()
    text = list(range(1, 61))
    for lengths in ([40], [44, 60]):
        made = generators.make_generator(model, 4, apc_manager=stored)
        own = {"_apc_semantic_hash": 0}  # as mlx_vlm.server has it
        prompts = [text[:length] for length in lengths]
        requests = [generators.Request(0, prompt, 4, arguments=own) for prompt in prompts]
        generated = generators.run_in(made, requests)
    solo = [rows.generate_solo(model, prompt, 4) for prompt in prompts]
    return compare_generated(generated, solo, model.tolerance)


@pytest.mark.parametrize("name", [one for one in (*QWEN, *MAMBA) if "vlm" in one])
def test_rows_with_same_stored_prompt(name):
    cell = answer_prompts(name)
    assert cell.verdict == "green", cell.detail


def test_mutant_repeats_first_row(monkeypatch):
    fed_solo = []

    def first(outputs, spans, shape):
        fed_solo.append(spans)
        return next(out for out in outputs if out is not None)

    monkeypatch.setattr(recurrent_by_row, "join_outputs", first)
    try:
        cell = answer_prompts(QWEN[0])
    except ValueError as error:
        assert re.search("squeeze|broadcast", str(error))
    else:
        assert not fed_solo, cell
        pytest.skip("this release's Qwen3.5 is fed no row by itself")


def test_mutant_keeps_merged_caches(monkeypatch):
    kept = []

    def keep_merged(cache, own):
        kept.extend(new for new, old in zip(cache, own, strict=True) if new is not old)

    monkeypatch.setattr(recurrent_padding, "restore_caches", keep_merged)
    cell = continue_rows(QWEN[0])
    if not kept:
        pytest.skip("this release's Qwen3.5 makes no new caches of its rows")
    assert cell.verdict == "red"
