"""The patches' cost in the releases' own engines: prefill, decode, a joining row, memory.

    python -m benchmarks.engine [--shape tiny|1b|8b] [--family llama --family qwen3_vl]
        [--rows 1 --rows 8] [--prompts equal|unequal] [--rounds 200] [--seconds 60] [--steps 64]
        [--clock wall|cpu|thread]

Requests go through the release's own ``BatchGenerator``. It computes a step while the tokens of
the step before are read, so a device read that a patch adds shows in the times. The process holds
two copies of the release with the same weights, which are random. A round runs the same requests
once in each, in random order, one as released and one with what `apply()` puts in effect. A copy is
up to 2 % faster than another throughout a process, with the same code. So the patches change copies
after each quarter of the rounds, and the table shows how much faster the first copy was. It prints
the interquartile mean of the rounds' ratios with a 95 % bootstrap interval. On a busy machine use
``--clock cpu``, the CPU time of the process, or ``--clock thread``, the CPU time of the thread that
drives the engine: it includes what the patches add, and no kernels. Run it from the repository's
root, in an environment with mlx-lm or mlx-vlm and mlx-patches; it uses MLX's default device.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

import mlx_patches
from mlx_patches.lab import Family, LabModel, NotBuilt, engine, generators
from mlx_patches.lab.build import build
from mlx_patches.lab.families import models_folder

from .copies import Copy

FAMILIES = (
    "llama",
    "gemma3_text",
    "gemma3",
    "gemma4",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "nemotron_h",
    "gpt_oss",
)
ROWS = (1, 8, 32)
# Rounds that are not counted: each copy's caches and inline caches fill in them.
WARM_UP = 3
# How often the patches are applied: in the first copy, the second, and so on.
TURNS = 4
KINDS = ("equal", "unequal")
PARTS = ("prefill", "decode", "join")
CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "cpu": time.process_time,
    "thread": time.thread_time,
}
# About 1.2 billion parameters. Heads are 64 wide, because the M-RoPE sections add up to 32.
BILLION = {
    "vocab_size": 32768,
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 8,
    "head_dim": 64,
    "global_head_dim": 64,
    "sliding_window": 512,
    "max_position_embeddings": 8192,
    "mrope_section": [8, 12, 12],
    "vocab_size_per_layer_input": 32768,
    "moe_intermediate_size": 1024,
    "linear_num_value_heads": 16,
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
}

EIGHT_BILLION = {
    **BILLION,
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "head_dim": 128,
    "global_head_dim": 128,
}


# The lab builds llama with sliding layers. gpt_oss would have 3.5 billion parameters.
FULL = {"layer_types": None, "sliding_window": None}
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {"llama": FULL},
    "1b": {
        "llama": FULL,
        "gpt_oss": {"intermediate_size": 2048},
        "limite": {"num_key_value_heads": 2},  # it stores value embeddings for two heads
        "ernie4_5_moe_vl": {"mrope_section": [12, 12, 8]},  # height and width sections are equal
    },
}


class Shape(NamedTuple):
    """Sizes of all models, sizes by family, tokens of the longest prompt, decode steps."""

    sizes: dict[str, Any]
    own: dict[str, dict[str, Any]]
    prompt: int
    steps: int


SHAPES = {
    "tiny": Shape({}, OWN["tiny"], 64, 48),
    "1b": Shape(BILLION, OWN["1b"], 512, 64),
    "8b": Shape(EIGHT_BILLION, OWN["1b"], 512, 64),
}
WHAT = {
    "tiny": "tiny random weights",
    "1b": "random bf16 weights of about 1.2B",
    "8b": "random bf16 weights of about 8B (Llama's shape)",
}


class Run(NamedTuple):
    """Seconds to all first tokens, for the steps, to a joining row's first token; peak bytes."""

    prefill: float
    decode: float
    join: float
    peak: float


class Side(NamedTuple):
    """A copy of the releases, a model of it, what runs the model, and a short prompt."""

    copy: Copy
    model: Any
    run: Callable[..., Run]
    short: Any


class Round(NamedTuple):
    """A run without the patches and one with them; None for a run that raised.

    ``turn`` is the copy that had the patches: 0 or 1.
    """

    plain: Run | None
    patched: Run | None
    turn: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--family", action="append", help="may be repeated")
    parser.add_argument("--rows", type=int, action="append", help="may be repeated")
    parser.add_argument("--prompts", choices=KINDS, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=200, help="at most, for each line")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most, for each line")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--prompt", type=int, help="tokens of the longest prompt")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    shape = shape._replace(
        prompt=options.prompt or shape.prompt, steps=options.steps or shape.steps
    )
    print(heading(options.shape, shape, options.rounds, options.clock), flush=True)
    for name in options.family or FAMILIES:
        for family in find_family(name):
            try:
                two = sides(family, shape)
                for rows in options.rows or ROWS:
                    for kind in options.prompts or KINDS if rows > 1 else KINDS[:1]:
                        vocabulary = two[0].model.vocabulary
                        prompts = texts(rows, shape.prompt, kind == "equal", vocabulary)
                        limit = (options.rounds, options.seconds)
                        found = rounds(two, prompts, shape.steps, limit, options.clock)
                        print(line(family, rows, kind, found, shape.steps), flush=True)
            except NotBuilt as reason:
                print(f"| {family} | not built: {reason} |")
            gc.collect()
            mx.clear_cache()


def find_family(name: str) -> list[Family]:
    """The family in mlx-vlm if that has it, else in mlx-lm; empty if neither does."""
    found = []
    for distribution in ("mlx-vlm", "mlx-lm"):
        folder = models_folder(distribution)
        if folder is not None and ({name, f"{name}.py"} & {path.name for path in folder.iterdir()}):
            found.append(Family(distribution, name))
    return found[:1]


def build_model(family: Family, shape: Shape) -> LabModel:
    """Build a model with random weights, and the shape's sizes where the family accepts them."""
    model = build(family, sizes={**shape.sizes, **shape.own.get(family.name, {})})
    if shape.sizes:
        module = model.module
        module.update(tree_map(half, module.parameters()))
        mx.eval(module.parameters())
    return model


def build_plain(family: Family, shape: Shape) -> LabModel:
    """The same model with a call that returns the logits in the model's own dtype."""
    model = build_model(family, shape)

    def call(tokens: Any, cache: Any, **kwargs: Any) -> Any:
        out = model.module(tokens, cache=cache, **kwargs)
        return getattr(out, "logits", out)

    return dataclasses.replace(model, call=call)


def half(value: Any) -> Any:
    """Cast float weights to bf16; others stay as they are."""
    return value.astype(mx.bfloat16) if mx.issubdtype(value.dtype, mx.floating) else value


def texts(rows: int, longest: int, equal: bool, vocabulary: int) -> list[list[int]]:
    """Draw prompts of length ``longest``, or of unequal lengths from half of it on."""
    lengths = [longest if equal else longest - row * longest // (2 * rows) for row in range(rows)]
    words = random.Random(0)
    return [[words.randrange(1, vocabulary - 20) for _ in range(length)] for length in lengths]


def sides(family: Family, shape: Shape) -> tuple[Side, Side]:
    """A model in two copies of the release, without patches.

    Raises:
        NotBuilt: the family cannot be built.
    """
    found: list[Side] = []
    for copy in (Copy(), Copy()):
        with copy.active():
            model = build_plain(family, shape)
            if found:
                model.module.update(found[0].model.module.parameters())
            found.append(Side(copy, model, run, [1, 2]))
            import_all(found[-1])
    first, second = found
    return first, second


def import_all(side: Side) -> None:
    """Import what a run imports: patches in the other copy would change what comes later."""
    with suppress(Exception):  # `rounds` tells it
        side.run(side.model, [side.short], 2, time.perf_counter)


def rounds(
    two: tuple[Side, Side],
    prompts: Sequence[Any],
    steps: int,
    limit: tuple[int, float],
    clock: str,
) -> list[Round]:
    """Runs of the two copies, in a random order in each round; the patches change copies.

    ``limit`` is the most rounds, and the seconds after which no further round begins; each turn
    gets its share, and at least one round.
    """
    count, seconds = limit
    chance = random.Random(0)
    found: list[Round] = []
    for turn in range(TURNS):
        with patches_in(two[turn % 2]):
            gc.collect()
            gc.freeze()  # so that the collection before each run looks only at what the runs left
            end = time.perf_counter() + seconds / TURNS
            for number in range(-WARM_UP, max(1, count // TURNS)):
                if number > 0 and time.perf_counter() > end:
                    break
                one = round_of(two, turn % 2, prompts, steps, CLOCKS[clock], chance)
                if number >= 0 or one.patched is None:
                    found.append(one)
                if one.patched is None:
                    break
            gc.unfreeze()
    return found


def round_of(
    two: tuple[Side, Side],
    turn: int,
    prompts: Sequence[Any],
    steps: int,
    clock: Callable[[], float],
    chance: random.Random,
) -> Round:
    """A run of each copy, in random order; the patches are in copy ``turn``."""
    found: dict[int, Run | None] = {}
    for index in chance.sample((0, 1), 2):
        with two[index].copy.active():
            found[index] = time_run(two[index], prompts, steps, clock)
    return Round(found[1 - turn], found[turn], turn)


@contextmanager
def patches_in(side: Side) -> Iterator[None]:
    """Apply inside the block what ``apply()`` gives this model and release in one copy."""
    with ExitStack() as applied:
        with side.copy.active():
            applied.enter_context(patches(True))
            import_all(side)
        try:
            yield
        finally:
            with side.copy.active():  # patches are removed where they were applied
                applied.close()


@contextmanager
def patches(wanted: bool) -> Iterator[None]:
    """Apply inside the block what ``apply()`` gives this model and release, or nothing."""
    with mlx_patches.patched() if wanted else nullcontext():
        yield


def time_run(
    side: Side, prompts: Sequence[Any], steps: int, clock: Callable[[], float]
) -> Run | None:
    """A run without garbage collections; None if it raised."""
    gc.collect()
    gc.disable()
    try:
        return side.run(side.model, prompts, steps, clock)
    except Exception:
        return None
    finally:
        gc.enable()


def run(
    model: LabModel,
    prompts: Sequence[Sequence[int]],
    steps: int,
    clock: Callable[[], float],
    **options: Any,
) -> Run:
    """Run one batch: its prompts, its steps, and one more row that joins it.

    ``options`` are further arguments of the generator.
    """
    engine.forget(model)
    # mlx-vlm admits prompts only if a whole prefill batch fits into the completion batch.
    rows = len(prompts)
    generator = generators.make_generator(
        model, 4 * steps, prefill_batch_size=rows, completion_batch_size=2 * rows, **options
    )
    return time_parts(generator, generator.insert, prompts, steps, clock)


def time_parts(
    generator: Any,
    insert: Callable[[Sequence[Any]], Sequence[int]],
    prompts: Sequence[Any],
    steps: int,
    clock: Callable[[], float],
) -> Run:
    """Time the prompts of a batch, its steps, and a row that joins it."""
    mx.reset_peak_memory()
    start = clock()
    waiting = set(insert(prompts))
    while waiting:
        waiting -= {uid for uid, _ in generator.next()}
    begun = clock()
    for _ in range(steps):
        generator.next()
    decoded = clock()
    (late,) = insert([prompts[-1]])
    for _ in range(steps):
        if late in {uid for uid, _ in generator.next()}:
            break
    joined = clock()
    return Run(begun - start, decoded - begun, joined - decoded, mx.get_peak_memory())


def line(family: Family, rows: int, kind: str, found: Sequence[Round], steps: int) -> str:
    """A line of the table: ratios of speeds, patched over unpatched, and of peak memory."""
    cells = [str(family), str(rows), kind]
    patched = [one.patched for one in found if one.patched]
    if not patched or len(patched) < len(found):
        return " | ".join(["|", *cells, "the patched release raises |"])
    both = [one for one in found if one.plain]
    parts = [speeds(both, part) for part in PARTS] if both else []
    cells += [format_ratio(turns) for turns in parts] or ["unpatched raises"] * len(PARTS)
    cells.append(", ".join(f"{first_over_second(turns):.3f}" for turns in parts) or "-")
    peaks = [one.patched.peak / one.plain.peak for one in both if one.plain.peak]
    cells.append(f"{statistics.median(peaks):.3f}" if peaks else "-")
    speed = statistics.median(rows * steps / one.decode for one in patched)
    return f"| {' | '.join([*cells, f'{speed:.0f}', str(len(both))])} |"


def speeds(found: Sequence[Round], part: str) -> list[list[float]]:
    """Speeds with the patches over speeds without, for each copy that had the patches."""
    return [
        [getattr(one.plain, part) / getattr(one.patched, part) for one in found if one.turn == turn]
        for turn in sorted({one.turn for one in found})
    ]


def format_ratio(turns: Sequence[Sequence[float]]) -> str:
    """Format a ratio of speeds with its interval."""
    low, high = interval(turns)
    return f"{ratio(turns):.3f} ({low:.3f} to {high:.3f})"


def ratio(turns: Sequence[Sequence[float]]) -> float:
    """The ratio of speeds, without the difference of the copies."""
    return statistics.geometric_mean(map(middle, turns))


def first_over_second(turns: Sequence[Sequence[float]]) -> float:
    """How fast the first copy is, as a multiple of the second's speed."""
    first, second = (middle(turns[0]), middle(turns[-1]))
    return float((first / second) ** 0.5)


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half: outliers count as little as in a median, which varies more."""
    ordered, quarter = sorted(values), len(values) // 4
    return statistics.fmean(ordered[quarter : len(values) - quarter])


def interval(turns: Sequence[Sequence[float]], draws: int = 2000) -> tuple[float, float]:
    """The 95 % bootstrap interval of the ratio, with a fixed seed."""
    chance = random.Random(0)
    found = sorted(
        ratio([chance.choices(values, k=len(values)) for values in turns]) for _ in range(draws)
    )
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


def heading(name: str, shape: Shape, count: int, clock: str) -> str:
    """A description of the measurement, and the table's header."""
    line = (
        f"Speed with patches over speed without, in the engines of {versions()}, {device()}, "
        f"commit {commit()}. Shape {name}: {WHAT[name]}, prompts of {shape.prompt} tokens, unequal "
        f"ones from half of that on, {shape.steps} steps; interquartile means of up to {count} "
        f"rounds, 95 % intervals, {clock} time. Copies: the first one's speed over the second's."
    )
    head = "| family | rows | prompts | prefill | decode | first token of a row that joins "
    return f"{line}\n\n{head}| copies | peak memory | tokens/s | rounds |\n|{'---|' * 10}"


def versions() -> str:
    """The installed releases."""
    found = []
    for name in ("mlx-lm", "mlx-vlm", "mlx"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def device() -> str:
    """MLX's default device, the number of CPU cores, and the machine's load."""
    load = f"{os.cpu_count()} CPU cores, load {os.getloadavg()[0]:.1f}"
    if mx.default_device() == mx.Device(mx.cpu):
        return f"{platform.system()} CPU ({load})"
    info = getattr(mx, "device_info", dict)()
    return f"{info.get('device_name', mx.default_device())} ({load})"


def commit() -> str:
    """The commit of this checkout; ``-dirty`` is added if files differ from it."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
