"""Runs the batch engine of a checkout of mlx-engine over tiny models, without and with the patches.

    python tools/downstream/engine.py CHECKOUT
    python tools/downstream/engine.py CHECKOUT --model qwen3_5

No package index has mlx-engine, LM Studio's engine: CHECKOUT is a clone of its repository. For its
pinned commits of mlx-vlm and mlx-lm, the environment has the release set of ``PINNED``.
PyTorch is a stand-in: the engine calls only its seed.

The right answer is that of a new engine without other requests. It is an error if an answer with
the patches differs from it, or if the patches change it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import release_sets  # noqa: E402

PLACE = release_sets.ROOT / ".nox" / "downstream"
# The commit of mlx-vlm that the engine pins, and the nearest release with the mlx-lm of that time.
PINNED = {
    "23e1dff": "mlx-vlm 0.4.4",  # one commit later; mlx-lm 0.31.2
    "58e2435": "mlx-vlm 0.4.4",  # 13 commits later; mlx-lm 0.31.2 and three commits
    "84f4375": "mlx-vlm 0.6.5",  # the release; mlx-lm 0.31.3 and 13 commits
    "321514d": "mlx-vlm 0.6.12",  # the release; mlx-lm 0.31.3 and 13 commits
}
REQUIRES = ("outlines==0.1.11", "dill", "xxhash", "sentencepiece", "protobuf", "httpx")
# Families of mlx-lm; "whole": of mlx-vlm; "images": also with images in the requests.
TEXT = ("llama", "granitemoehybrid", "gpt_oss", "lfm2", "qwen3_next")
MODELS = {
    "mlx-vlm 0.4.4": ("qwen3_5", *TEXT),
    "mlx-vlm 0.6.5": (*TEXT, "qwen2_5_vl images", "qwen3_5 images", "gemma4 whole"),
    "mlx-vlm 0.6.12": (*TEXT, "qwen2_5_vl images", "qwen3_5 images", "gemma4 whole"),
}
SECONDS = 900
# A way to send requests, and for each request its answer and the right one.
Ways = Mapping[str, Sequence[tuple[Any, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a clone of github.com/lmstudio-ai/mlx-engine")
    parser.add_argument("--model", action="append", help="only this family; default: several")
    options = parser.parse_args()
    one = release_sets.load()[find_pinned(options.checkout)]
    models = options.model or MODELS[one.name]
    python = release_sets.make(one, PLACE / f"engine-{one.slug}", *REQUIRES)
    print(f"{options.checkout} with {one.name}: {release_sets.versions(python)}", flush=True)
    wrong = [model for model in models if not judge(model, python, options.checkout)]
    if wrong:
        sys.exit(f"wrong with the patches: {', '.join(wrong)}")


def find_pinned(checkout: Path) -> str:
    """The release set for a checkout's pins."""
    file = checkout / "requirements.txt"
    if not (file.is_file() and (checkout / "mlx_engine").is_dir()):
        sys.exit(f"{checkout}: no checkout of mlx-engine: clone github.com/lmstudio-ai/mlx-engine")
    found = re.search(r"mlx-vlm\.git@([0-9a-f]{7})", file.read_text())
    if found is None or found[1] not in PINNED:
        known = ", ".join(PINNED)
        sys.exit(
            f"{file}: its commit of mlx-vlm is none of {known}: add it to PINNED in {__file__}"
        )
    return PINNED[found[1]]


def judge(model: str, python: Path, checkout: Path) -> bool:
    """Run a model in every way, without and with the patches; False if it is wrong with them."""
    family, *kind = model.split()
    with tempfile.TemporaryDirectory(prefix="engine-") as scratch:
        folder = Path(scratch, family)
        package = "mlx-vlm" if kind else "mlx-lm"
        release_sets.run(python, "-m", "tests.hosts.model", str(folder), family, package)
        without, with_ = (
            run_engine(python, checkout, [str(folder), *kind], patched) for patched in (False, True)
        )
    print(f"{model:20} without: {table(without)}")
    print(f"{'':20} with:    {table(with_)}", flush=True)
    return not differing(with_) and rights(without) == rights(with_)


def run_engine(python: Path, checkout: Path, model: Sequence[str], patched: bool) -> Ways:
    """The answers of an engine in a separate process."""
    command = [str(python), str(HERE / "engine_child.py"), *model]
    if patched:
        command = [str(python.with_name("mlx-patches")), "run", "--", *command]
    with tempfile.TemporaryDirectory(prefix="engine-home-") as home:
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HOME": home,  # the engine has caches below it
            "MLX_PATCHES": "1" if patched else "0",
            "PYTHONPATH": os.pathsep.join([str(release_sets.ROOT), str(checkout.resolve())]),
        }
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            sys.exit(f"{model[0]}: not done after {SECONDS} s")
    if done.returncode:
        sys.exit(f"{model[0]}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def differing(ways: Ways) -> dict[str, int]:
    counts = {way: sum(answer != right for answer, right in pairs) for way, pairs in ways.items()}
    return {way: count for way, count in counts.items() if count}


def rights(ways: Ways) -> dict[str, list[Any]]:
    return {way: [right for _, right in pairs] for way, pairs in ways.items()}


def table(ways: Ways) -> str:
    """Wrong answers of each way that has one, in words."""
    count = {way: len(pairs) for way, pairs in ways.items()}
    wrong = ", ".join(f"{n} of {count[way]} {way}" for way, n in differing(ways).items())
    failed = next((answer for p in ways.values() for answer, _ in p if isinstance(answer, str)), "")
    return (wrong or f"right in {len(ways)} ways") + (f" ({failed})" if failed else "")


if __name__ == "__main__":
    main()
