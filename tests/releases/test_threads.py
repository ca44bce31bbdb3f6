"""Threads that apply, restore and import while others run models, in a new process."""

import faulthandler
import importlib
import importlib.util
import itertools
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import mlx_patches
from mlx_patches.lab import Family, LabModel
from mlx_patches.lab.build import build
from mlx_patches.patches import catalogue

from .costs import Batch

pytestmark = pytest.mark.slow


# The patch of the threads' models: without it, other models are needed here.
recurrent_batch = pytest.importorskip("mlx_patches.patches.models.recurrent_padding.batch")
ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("MLX_PATCHES_THREAD_SECONDS", "3"))
# Seconds for everything but the threads' work, on a busy machine.
GRACE = 120
# A model that needs no patch, and one whose padded prompts need a patch of its call and of its
# layers. The model's call announces the padding, so each layer may heed it or not: a call during a
# change runs some layers with the patch and some without.
RIGHT_ALREADY = (Family("mlx-vlm", "llama"), Family("mlx-lm", "llama"))
REPAIRED = (Family("mlx-vlm", "mamba"), Family("mlx-lm", "mamba"))
# Small modules with a target, which those models do not use.
RELOADED = (
    "mlx_lm.models.gpt_bigcode",
    "mlx_lm.models.internlm2",
    "mlx_vlm.models.gpt_bigcode.language",
    "mlx_vlm.models.qwen2_vl.language",
)


def test_threads_apply_restore_import_and_call() -> None:
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(SECONDS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS + 2 * GRACE,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    rounds = json.loads(done.stdout.splitlines()[-1])
    assert len(rounds) == 8
    assert all(rounds.values()), rounds


# MLX before 0.31.2 has no thread-local streams: two threads that evaluate at once end the process,
# even without patches. There the models run in turn, while the other threads continue.
MLX_IN_TURN: AbstractContextManager[Any] = (
    nullcontext() if hasattr(mx, "new_thread_local_stream") else threading.Lock()
)


class Caller:
    """A model in the thread of its arrays, and the answers that it may return."""

    def __init__(self, choice: Iterable[Family]):
        self.family = next(f for f in choice if has_module(module_of(f)))
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"call {self.family}")
        self.known: list[Any] = []
        self.seen: Counter[int] = Counter()
        self._model: LabModel | None = None

    def learn(self) -> None:
        self.known.append(self.thread.submit(self._answer).result(GRACE))

    def learn_mixes(self) -> None:
        """Add the answers of patched calls with some unpatched layers."""
        (place,) = (
            (target.module, target.name.partition(".")[0])
            for target in catalogue.builtin().get("recurrent-padding").targets
            if target.module.startswith(module_of(self.family)) and target.supports
        )
        assert self._model is not None
        layer = getattr(sys.modules[place[0]], place[1])
        layers = sum(isinstance(one, layer) for one in self._model.module.modules())
        installed = layer.__call__

        def learn(heeds: Iterator[bool]) -> None:
            def call(block: Any, *args: Any, **kwargs: Any) -> Any:
                padding = recurrent_batch._ANNOUNCED.get()
                token = recurrent_batch._ANNOUNCED.set(padding if next(heeds) else None)
                try:
                    return installed(block, *args, **kwargs)
                finally:
                    recurrent_batch._ANNOUNCED.reset(token)

            layer.__call__ = call
            self.learn()

        try:
            for heeds in itertools.product([True, False], repeat=layers):
                learn(iter(heeds))
        finally:
            layer.__call__ = installed

    def check(self) -> None:
        answer = self._answer()
        assert answer in self.known, f"{self.family} gives an answer that no state of it gives"
        self.seen[self.known.index(answer)] += 1

    def _answer(self) -> Any:
        with MLX_IN_TURN:
            if self._model is None:
                self._model = build(self.family)
            return Batch(self._model, [3, 0]).prefill(8)[:, -1].tolist()


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def run_threads(seconds: float) -> dict[str, int]:
    """Run the threads, then check the state they leave; returns each thread's rounds, by name.

    Raises:
        AssertionError: an answer was wrong, a patch failed, or an object was not put back.
    """
    warnings = Warnings()
    logging.getLogger("mlx_patches").addHandler(warnings)
    ids = list(catalogue.builtin().ids())
    modules = [name for name in RELOADED if has_module(name)]
    callers = [Caller(RIGHT_ALREADY), Caller(REPAIRED)]
    for caller in callers:
        caller.learn()
    before = live_attributes()
    mlx_patches.apply(patches=ids)
    applied = list_applied(before)
    for caller in callers:
        caller.learn()
    callers[1].learn_mixes()
    seen = [str(one) for one in mlx_patches.status() if module_of(callers[1].family) in one.target]
    mlx_patches.restore()
    assert callers[0].known[0] == callers[0].known[1], "the patches change what is right"
    assert callers[1].known[0] != callers[1].known[1], (seen, warnings.messages)

    end = time.monotonic() + seconds
    rounds = {f"call {caller.family}": 0 for caller in callers}

    def repeat(name: str, work: Callable[[], object]) -> None:
        while True:
            work()
            rounds[name] = rounds.get(name, 0) + 1
            if time.monotonic() > end:
                return

    others: dict[str, Callable[[], object]] = {
        "apply all": lambda: (mlx_patches.apply(patches=ids), mlx_patches.restore()),
        "apply all too": lambda: (mlx_patches.apply(patches=ids), mlx_patches.restore()),
        "apply some": lambda: apply_and_restore(random.sample(ids, 9)),
        "apply by model": lambda: (mlx_patches.apply(), mlx_patches.restore()),
        "load again": lambda: load_again(random.choice(modules)),
        "look": mlx_patches.status,
    }
    pool = ThreadPoolExecutor(len(others))
    futures = [
        caller.thread.submit(repeat, f"call {caller.family}", caller.check) for caller in callers
    ]
    futures += [pool.submit(repeat, name, work) for name, work in others.items()]
    done, running = wait(futures, seconds + GRACE, FIRST_EXCEPTION)
    end = 0.0
    for future in done:
        future.result()
    wait(running, GRACE)

    mlx_patches.restore()
    changed = [
        path for path, held in live_attributes().items() if before.get(path, held) is not held
    ]
    assert not changed, f"not the release's own again: {changed}"
    mlx_patches.apply(patches=ids)
    other = applied ^ list_applied(before)
    assert not other, f"in effect now or at first, not both: {sorted(other)}"
    assert not warnings.messages, "\n".join(warnings.messages)
    return rounds


def apply_and_restore(ids: list[str]) -> None:
    """Apply some patches, and remove them one by one in another order."""
    mlx_patches.apply(patches=ids)
    for id_ in random.sample(ids, len(ids)):
        mlx_patches.restore(patches=[id_])


def load_again(name: str) -> None:
    module = importlib.import_module(name)
    if random.random() < 0.5:
        importlib.reload(module)
    else:
        del sys.modules[name]
        importlib.import_module(name)


def module_of(family: Family) -> str:
    return f"{family.distribution.replace('-', '_')}.models.{family.name}"


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def live_attributes() -> dict[str, Any]:
    found = {}
    for target in (target for patch in catalogue.builtin() for target in patch.targets):
        if target.module not in sys.modules or target.module in RELOADED:
            continue
        owner: Any = sys.modules[target.module]
        *parents, attribute = target.name.split(".")
        for name in parents:
            owner = getattr(owner, name, None)
        found[target.path] = getattr(owner, "__dict__", {}).get(attribute)
    return found


def list_applied(paths: Iterable[str]) -> set[tuple[str, str]]:
    wanted = set(paths)
    return {(o.patch, o.target) for o in mlx_patches.status().applied if o.target in wanted}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[1]) + 1.5 * GRACE, exit=True)
    try:
        result = run_threads(float(sys.argv[1]))
    except BaseException:
        logging.exception("a thread failed")
        sys.stderr.flush()
        os._exit(1)  # does not wait for the other threads
    print(json.dumps(result), flush=True)
    os._exit(0)
