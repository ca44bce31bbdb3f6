"""Fuzz the reader of a model's folder: ``python -m tests.fuzz.loader --seconds 60``."""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from mlx_patches import MlxPatchesError
from mlx_patches.auditing.models import read_folder

# Seconds of CPU for one input.
SLOW = 5.0
CONFIG = '{"model_type": "gemma4", "eos_token_id": [1, 106], "text_config": {"eos_token_id": 1}}'
# Tokens that often break parsers.
TOKENS = (
    *(":", "-", "?", "|", ">", "%", "@", "`", '"', "'", "{", "}", "[", "]", ",", "#", "---", "..."),
    *("null", "~", "true", ".inf", ".nan", "0x1F", "1e999", "1_000", "2001-01-01", "NaN", "-0"),
    *("Infinity", '"\\ud800"', '"\\u0000"', "0123456789abcdef", "model_type", "eos_token_id"),
)


def bend(seed: bytes, chance: random.Random) -> bytes:
    """An input with a few random changes."""
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        to = min(len(data), at + chance.choice((0, 1, 2, 8, 64)))
        data[at:to] = chance.choice((flip, token, repeat, copy, cut))(bytes(data), chance)
    return bytes(data)


def flip(data: bytes, chance: random.Random) -> bytes:
    return bytes([chance.randrange(256)])


def token(data: bytes, chance: random.Random) -> bytes:
    return b" " * chance.randrange(2) + chance.choice(TOKENS).encode() + b" " * chance.randrange(2)


def repeat(data: bytes, chance: random.Random) -> bytes:
    return chance.choice((b"[", b"{", b"9", b"a: ", b"- ", b"(", b"\n", b" ", b"!")) * (
        chance.choice((3, 30, 5000))
    )


def copy(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[at : at + chance.choice((8, 64, 512))]


def cut(data: bytes, chance: random.Random) -> bytes:
    return b""


def folder(folder: Path, data: bytes) -> None:
    """Read a model's folder; its two files share the input."""
    (folder / "config.json").write_bytes(data)
    (folder / "generation_config.json").write_bytes(data[::-1] if len(data) % 2 else data)
    read_folder(folder)


TARGETS: dict[str, tuple[Callable[[Path, bytes], None], tuple[bytes, ...]]] = {
    "folder": (folder, (CONFIG.encode(), b"[]", b"{}"))
}


def fault(target: str, data: bytes) -> str:
    """The problem of loading an input; empty if there is none."""
    run, _ = TARGETS[target]
    began = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        try:
            run(Path(place), data)
        except MlxPatchesError as error:
            if len(str(error)) > 2000 or not str(error).isprintable():
                return f"a message nobody can read: {str(error)[:200]!r}"
        except Exception:
            return traceback.format_exc()
    took = time.process_time() - began
    return f"took {took:.1f} s" if took > SLOW else ""


def search(
    seconds: float, seed: int, count: int | None = None
) -> tuple[int, list[tuple[str, bytes, str]]]:
    """Try inputs until time is up, or ``count`` of them.

    Returns:
        How many were tried, and (target, input, problem) of each that failed.
    """
    chance, until = random.Random(seed), time.monotonic() + seconds
    tried, failed = 0, []
    while time.monotonic() < until and tried != count:
        name = chance.choice(list(TARGETS))
        data = bend(chance.choice(TARGETS[name][1]), chance)
        problem = fault(name, data)
        if problem:
            failed.append((name, data, problem))
        tried += 1
    return tried, failed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.loader")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    options = parser.parse_args()
    tried, failed = search(options.seconds, options.seed)
    for index, (name, data, problem) in enumerate(failed):
        options.keep.mkdir(parents=True, exist_ok=True)
        (options.keep / f"{name}-{index}").write_bytes(data)
        print(f"{name}-{index}: {problem.strip()}")
    print(f"seed {options.seed}: {tried} inputs, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
