"""Requests that overlap and nest: the patches of open requests are in effect."""

import asyncio
import functools
import itertools
import threading

import pytest

import mlx_patches
from mlx_patches import MlxPatchesError
from mlx_patches.activation import session as activation
from mlx_patches.activation.session import Session

from .conftest import in_threads, load, matrix_for, patch_of, registry_of, target

NAMES = ("a", "b", "c")
FUNCTIONS = dict(zip(NAMES, ("attend", "Cache.update", "Cache.twice"), strict=True))


@pytest.fixture
def session(site, monkeypatch):
    from .conftest import CACHE, MODEL

    site.install(
        "mlx-lm", "1.0", {"mlx_lm/models/cache.py": CACHE, "mlx_lm/models/gemma.py": MODEL}
    )
    patches = [
        patch_of(target(name, "mlx_lm.models.cache", distribution="mlx-lm"), id=id_)
        for id_, name in FUNCTIONS.items()
    ]
    models = {"default": {}, "gemma": {"mlx-lm": list(NAMES)}}
    made = Session(registry_of(*patches), matrix_for(*patches, models=models))
    monkeypatch.setattr(activation, "_session", made)
    load("mlx_lm.models.cache")
    yield made
    made.restore(None)


def in_effect() -> str:
    """The ids in effect, after a check of the status."""
    report = mlx_patches.status()
    assert report.ok, report.findings
    return "".join(sorted({one.patch for one in report.applied}))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_blocks_end_in_any_order(session, order):
    held = [["a"], ["a", "b"], ["b", "c"]]
    blocks = [mlx_patches.patched(ids) for ids in held]
    for block in blocks:
        block.__enter__()
    left = set(range(3))
    for index in order:
        blocks[index].__exit__(None, None, None)
        left.remove(index)
        assert in_effect() == "".join(sorted({id_ for i in left for id_ in held[i]}))
    assert not session.active


def test_blocks_nest(session):
    mlx_patches.apply(["a"])
    with mlx_patches.patched(["a", "b"]):
        with pytest.raises(ZeroDivisionError), mlx_patches.patched(["b", "c"]):
            assert in_effect() == "abc"
            raise ZeroDivisionError
        assert in_effect() == "ab"
    assert in_effect() == "a"


def test_block_is_entered_again(session):
    block = mlx_patches.patched(iter(["a"]))
    for _ in range(2):
        with block as report:
            assert in_effect() == "a" and report.ok
            with block:
                assert in_effect() == "a"
            assert in_effect() == "a"
        assert in_effect() == "" and not session.active


def test_blocks_of_threads_overlap(session):
    entered, both, left = threading.Event(), threading.Event(), threading.Event()
    seen = []

    def first():
        with mlx_patches.patched(["a"]):
            entered.set()
            both.wait(9)
        left.set()

    def second():
        entered.wait(9)
        with mlx_patches.patched(["b"]):
            seen.append(in_effect())
            both.set()
            left.wait(9)
            seen.append(in_effect())

    in_threads([first, second])
    assert seen == ["ab", "b"]
    assert in_effect() == ""


def test_blocks_of_tasks_overlap(session):
    async def block(ids, until):
        with mlx_patches.patched(ids):
            await until.wait()

    async def run():
        ends = [asyncio.Event() for _ in NAMES]
        held = (["a", "b"], ["b"], ["b", "c"])
        tasks = [asyncio.create_task(block(*one)) for one in zip(held, ends, strict=True)]
        await asyncio.sleep(0)
        seen = [in_effect()]
        for end, task in zip(ends, tasks, strict=True):
            end.set()
            await task
            seen.append(in_effect())
        return seen

    assert asyncio.run(run()) == ["abc", "bc", "bc", ""]


def test_import_after_overlapping_blocks_adds_nothing(session):
    one, other = mlx_patches.patched(), mlx_patches.patched()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    load("mlx_lm.models.gemma")
    assert in_effect() == ""
    assert not session.by_model


def test_import_stays_in_open_block(session):
    one, other = mlx_patches.patched(), mlx_patches.patched()
    one.__enter__()
    load("mlx_lm.models.gemma")
    assert in_effect() == "abc"
    other.__enter__()
    one.__exit__(None, None, None)
    assert in_effect() == "abc"
    other.__exit__(None, None, None)
    assert in_effect() == ""


def test_apply_outlives_block(session):
    with mlx_patches.patched(["a"]):
        mlx_patches.apply(["a", "b"])
    assert in_effect() == "ab"
    assert session.active


def test_restore_takes_out_of_every_request(session):
    mlx_patches.apply(["a"])
    with mlx_patches.patched(["a", "b"]):
        mlx_patches.restore(["a"])
        assert in_effect() == "b"
        mlx_patches.apply(["a"])
        assert in_effect() == "ab"
        mlx_patches.restore()
        assert in_effect() == ""
    assert in_effect() == ""


def test_entry_does_not_reapply_restored_patch(session):
    mlx_patches.apply()
    mlx_patches.restore(["a"])
    load("mlx_lm.models.gemma")
    assert in_effect() == "bc"
    with mlx_patches.patched(["a"]):
        assert in_effect() == "abc"
    assert in_effect() == "bc"
    for again in (["a"], None):
        mlx_patches.apply(again)
        assert in_effect() == "abc"
        mlx_patches.restore(["a"])


def test_failed_block_leaves_others(session):
    with mlx_patches.patched(["a"]):
        with pytest.raises(MlxPatchesError), mlx_patches.patched(["a", "none"]):
            pass
        assert in_effect() == "a"
    assert in_effect() == ""


def test_concurrent_request_survives_end(session, monkeypatch):
    """While a patch is removed, another request may come."""
    restore, others = session.manager.restore, []

    def late(ids, kept):
        if not others:
            others.append(mlx_patches.patched(["a"]))
            others[0].__enter__()
        return restore(ids, kept)

    with mlx_patches.patched(["a"]):
        monkeypatch.setattr(session.manager, "restore", late)
    assert in_effect() == "a"
    others[0].__exit__(None, None, None)
    assert in_effect() == ""


def test_many_threads_leave_nothing(session):
    def run(seed):
        for count in range(20):
            with mlx_patches.patched([NAMES[(seed + count) % 3], NAMES[(seed + 1) % 3]]):
                mine = {NAMES[(seed + count) % 3], NAMES[(seed + 1) % 3]}
                if not mine <= set(in_effect()):
                    lost.append(mine)

    lost: list[set[str]] = []
    in_threads([functools.partial(run, seed) for seed in range(6)])
    assert lost == []
    assert in_effect() == ""


def test_status_never_reports_a_block_that_ends_as_lost(session):
    """Another thread may read the status between the removal of a layer and its record."""
    ended = threading.Event()
    findings = []

    def read():
        while not ended.is_set():
            findings.extend(mlx_patches.status().findings)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for one in readers:
        one.start()
    for _ in range(60):
        with mlx_patches.patched(["a", "b"]):
            pass
    ended.set()
    for one in readers:
        one.join()
    assert not findings
