"""The patches' cost for requests with images: embedding and prefill, decode, a joining row, memory.

    python -m benchmarks.images [--family qwen3_vl --family gemma3] [--rows 1 --rows 8] [--images 1]
        [--text 16] [--rounds 200] [--seconds 60] [--steps 16] [--clock wall|cpu|thread]

Like ``benchmarks.engine``, with tiny whole models of mlx-vlm: the vision tower, the projector and
the server's embedding step are part of the prefill. The text before each image differs in length.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Sequence

import mlx.core as mx

from mlx_patches.evidence.results import NotApplicable
from mlx_patches.lab import Family, NotBuilt
from mlx_patches.lab import engine as lab_engine
from mlx_patches.lab.image_scenarios import WholeGenerator
from mlx_patches.lab.whole import LAST, Prompt, Whole, build_whole

from .copies import Copy
from .engine import (
    CLOCKS,
    SHAPES,
    Run,
    Side,
    heading,
    import_all,
    line,
    rounds,
    time_parts,
)

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "gemma3", "llava_next", "pixtral", "idefics3")
ROWS = (1, 8)
# The tokens that each further row has more before its first image.
MORE = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", action="append", help="may be repeated")
    parser.add_argument("--rows", type=int, action="append", help="may be repeated")
    parser.add_argument("--images", type=int, default=1, help="in each prompt")
    parser.add_argument("--text", type=int, default=16, help="tokens before the first image")
    parser.add_argument("--rounds", type=int, default=200, help="at most, for each line")
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, for each line")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    shape = SHAPES["tiny"]._replace(prompt=options.text, steps=options.steps)
    print(heading("tiny", shape, options.rounds, options.clock), flush=True)
    for name in options.family or FAMILIES:
        family = Family("mlx-vlm", name)
        try:
            two = sides(family, options.text)
        except (NotApplicable, NotBuilt) as reason:
            print(f"| {family} | not built: {reason} |")
            continue
        for rows in options.rows or ROWS:
            prompts = [
                make_prompt(two[0].model, options.text + MORE * row, row, options.images)
                for row in range(rows)
            ]
            limit = (options.rounds, options.seconds)
            found = rounds(two, prompts, options.steps, limit, options.clock)
            kind = f"{options.images} image" + "s" * (options.images > 1)
            print(line(family, rows, kind, found, options.steps), flush=True)
        del two
        gc.collect()
        mx.clear_cache()


def sides(family: Family, text: int) -> tuple[Side, Side]:
    """A whole model in two copies of the release, without patches.

    Raises:
        NotBuilt: the family cannot be built.
    """
    found: list[Side] = []
    for copy in (Copy(), Copy()):
        with copy.active():
            whole = build_whole(family)
            if found:
                whole.module.update(found[0].model.module.parameters())
            found.append(Side(copy, whole, run, make_prompt(whole, text, 0, 1)))
            import_all(found[-1])
    first, second = found
    return first, second


def make_prompt(whole: Whole, text: int, row: int, images: int) -> Prompt:
    """A prompt with a row's images after ``text`` tokens."""
    tokens = [1 + at % LAST for at in range(text)]
    seeds = [10 * row + index for index in range(images)]
    tokens += [*whole.tokens, 1, 2] * images
    return Prompt(0, tokens, 1 << 12, shown=whole.images.inputs(tokens, seeds))


def run(whole: Whole, prompts: Sequence[Prompt], steps: int, clock: Callable[[], float]) -> Run:
    """Run one batch: its images and prompts, its steps, and one more row that joins it."""
    lab_engine.forget(whole.lab)
    rows = len(prompts)
    generator = WholeGenerator(
        whole, 4 * steps, prefill_batch_size=rows, completion_batch_size=2 * rows
    )
    return time_parts(generator, generator.insert_requests, prompts, steps, clock)


if __name__ == "__main__":
    main()
