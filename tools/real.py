"""Runs twelve prompts of real models in a release: solo, batched, joining, and in its server.

    PYTHONPATH=FOLDER python tools/real.py --out FOLDER2 [--scenario S] [--family F] [--kind K]

Run by each release's own Python; FOLDER has the packages of weights and their reader, and FOLDER2
keeps the model folders. `make real` does both, for five releases. Answers are compared with a loop
over the model, one prompt at a time, without the release's engine. The counts are written to
tools/evidence/real/, unless only some scenarios, families or kinds are run.
Exits with 1 if an answer is wrong with the patches.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import real_judge
from real_child import SERVED
from real_judge import ANOTHER, EVIDENCE, FLOAT32, KINDS, LEADS, SCENARIOS, WRONG, Verdict
from real_weights import GEMMA3, SMOLLM2, Weights, save

sys.path.insert(0, str(Path(__file__).parents[1]))

from mlx_patches.lab.kernels import kernel_folder

REMEDY = "run make real again"
TOKENS = 6
# The prompts with a repetition penalty: some of those that join late. The prompts for every family;
# the first one gets all. How many of these the other kinds get.
PENALIZED, SOME, FEW = (7, 10), (0, 3, 7, 10), 3
# How many families run between two writes of the evidence.
AT_ONCE, SECONDS = 8, 1800
TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
QUESTIONS, BEGINNINGS = TEXTS["questions"], TEXTS["beginnings"]
# A text that is longer than the window of Gemma 3, and a short one.
COUNTING = ", ".join(map(str, range(1, 150))) + ","
LONG = (COUNTING, "1, 2, 3, 4, 5, 6,")
PARTS = ("without", "with")
# A question as SmolLM2's template writes it.
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
# The first of these families in a release computes the solo answers.
FIRST = ("llama", "gemma3_text", "idefics3", "gemma3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for models; kept")
    parser.add_argument("--weights", choices=("SmolLM2", "Gemma"), help="only these")
    parser.add_argument("--kind", choices=KINDS, help="only weights that are kept as this")
    parser.add_argument("--scenario", choices=SCENARIOS, help="only this scenario")
    parser.add_argument("--family", help="only this family, in every scenario")
    parser.add_argument("--again", action="store_true", help="also ask what has evidence")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    name = find_installed()
    whole = not (options.scenario or options.family)
    evidence = {"set": name, "versions": versions(name), "seconds": {}, "unlike": {}, "rows": []}
    if whole and not options.again:
        evidence |= real_judge.load().get(name, {})
    wrong = False
    with quick() as variables:
        os.environ.update(variables)
        for part in Release(name, options, evidence).measure():
            for row in part.rows:
                print(line(row), *row.get("texts", {}).items(), flush=True)
                wrong |= bool(row["with"].get(WRONG))
            print(f"{name}, {part.key}: {part.seconds} s", flush=True)
            add(evidence, part)
            if whole:
                write(evidence)
    sys.exit(wrong)


class Part(NamedTuple):
    """The measurements of weights of one kind."""

    key: str
    rows: list[dict[str, Any]]
    unlike: dict[str, float]
    seconds: int


def add(evidence: dict[str, Any], part: Part) -> None:
    """Add a part to a release's evidence; its rows replace those of the same places."""
    places = {place_of(row) for row in part.rows}
    kept = [row for row in evidence["rows"] if place_of(row) not in places]
    evidence["rows"] = sorted(kept + part.rows, key=place_of)
    evidence["seconds"][part.key] = evidence["seconds"].get(part.key, 0) + part.seconds
    evidence["unlike"] |= part.unlike


def place_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    scenario = SCENARIOS.index(row["scenario"])
    return (row["weights"] != SMOLLM2.name, KINDS.index(row["kind"]), row["family"], scenario)


def versions(name: str) -> dict[str, str]:
    return {one: metadata.version(one) for one in ("mlx", name.split()[0])}


def find_installed() -> str:
    """The release in this environment, as release_sets.toml names it."""
    for name in ("mlx-vlm", "mlx-lm"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    sys.exit("neither mlx-lm nor mlx-vlm is installed: use make real")


@contextmanager
def quick() -> Iterator[dict[str, str]]:
    """Variables with which MLX on a CPU multiplies as fast as NumPy.

    On Linux MLX has the reference BLAS, which takes twenty times as long as the one of NumPy.
    """
    libraries = Path(sysconfig.get_paths()["purelib"]) / "numpy.libs"
    found = [*libraries.glob("libscipy_openblas64_*.so")]
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder) / "blas.so"
        source = Path(__file__).with_name("real_blas.c")
        command = ["cc", "-shared", "-fPIC", "-O1", str(source), *map(str, found)]
        command += [f"-Wl,-rpath,{libraries}", "-o", str(shim)]
        if found and not subprocess.run(command).returncode:
            yield {"LD_PRELOAD": str(shim), "OPENBLAS_NUM_THREADS": "1"}
        else:
            yield {}


@dataclass(frozen=True)
class Release:
    """The installed release, and the requested part."""

    name: str
    only: argparse.Namespace
    evidence: Mapping[str, Any]

    @property
    def distribution(self) -> str:
        return self.name.split()[0]

    def measure(self) -> Iterator[Part]:
        for weights in (SMOLLM2, GEMMA3):
            if self.only.weights and not weights.name.startswith(self.only.weights):
                continue
            folder = self.only.out / weights.base
            save(weights, folder, REMEDY)
            subject = Subject(self, weights, folder)
            found = subject.child({"do": "find"})
            first = next(name for name in FIRST if name in found)
            families = [first, *(name for name in found if name != first)]
            for kind in KINDS:
                if self.only.kind in (None, kind):
                    yield from self.parts(subject, families, kind)

    def parts(self, subject: Subject, families: Sequence[str], kind: str) -> Iterator[Part]:
        """The parts for weights of one kind, a few families at a time."""
        start, key = time.monotonic(), f"{subject.weights.name}, {kind}"
        some = [prompt for prompt in subject.prompts if prompt["some"]]
        few = subject.prompts if kind == FLOAT32 else some[:FEW]
        names = [self.only.family] if self.only.family else families
        todo = list(self.plan(names, kind, subject.weights, families[0]))
        if not todo:
            return
        task = {"kind": kind, "prompts": few, "family": families[0]}
        solo = subject.child({"do": "reference", **task})
        for own, scenarios in todo:
            asked_of = solo if families[0] in own else [one for one in solo if one["some"]]
            unlike: dict[str, float] = {}
            if scenarios == ["server"]:
                rows = subject.run_server([one for one in solo if one["some"]], families)
            else:
                task = {"do": "run_task", "kind": kind, "prompts": asked_of}
                rows = subject.rows({**task, "families": own, "scenarios": scenarios}, unlike)
            yield Part(key, rows, unlike, round(time.monotonic() - start))
            start = time.monotonic()

    def plan(
        self, families: Sequence[str], kind: str, weights: Weights, first: str
    ) -> Iterator[tuple[list[str], list[str]]]:
        """The families still to run, with their scenarios; the first family runs all."""
        key = (weights.name, kind)
        own = [row for row in self.evidence["rows"] if (row["weights"], row["kind"]) == key]
        done = {row["family"] for row in own if row["scenario"] != "server"}
        done |= {name.removeprefix(f"{weights.name} as ") for name in self.evidence["unlike"]}
        every = ["together", "penalty"]
        more = ["alone", "joining", *every, *(["window"] if weights is GEMMA3 else [])]
        serves = kind == FLOAT32 and (weights is SMOLLM2 or weights.base in families)
        if kind != FLOAT32:
            more, families = ["joining"], [first]
        if self.only.scenario:
            serves = serves and self.only.scenario == "server"
            every = more = [name for name in (self.only.scenario,) if name != "server"]
        if serves and not any(row["scenario"] == "server" for row in own):
            yield [], ["server"]
        left = [name for name in families if name not in done and name != first]
        if more and first in families and first not in done:
            yield [first], more
        for start in range(0, len(left) if every else 0, AT_ONCE):
            yield left[start : start + AT_ONCE], every


@dataclass(frozen=True)
class Subject:
    """Weights in a folder, for one release."""

    release: Release
    weights: Weights
    folder: Path

    @cached_property
    def tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        """The prompts as the release gets them.

        Some end early, before those with a penalty come.
        """
        chat = self.weights is SMOLLM2
        texts = QUESTIONS if chat else [*BEGINNINGS, *LONG]
        return [
            {
                "text": text,
                "ids": self.tokenizer.encode(TURN.format(text) if chat else f"<bos>{text}").ids,
                "count": TOKENS if index % 3 else TOKENS // 2,
                "penalty": index in PENALIZED,
                "some": index in SOME,
                "long": index >= len(BEGINNINGS),
            }
            for index, text in enumerate(texts)
        ]

    def rows(self, task: dict[str, Any], unlike: dict[str, float]) -> list[dict[str, Any]]:
        """The rows of evidence of a task, without the patches and with them."""
        with ThreadPoolExecutor(2) as pool:
            both = pool.map(lambda patched: self.run_all(task, patched), (False, True))
            without, with_ = ({(r["family"], r["scenario"]): r for r in one} for one in both)
        rows = []
        for (family, scenario), answers in with_.items():
            if scenario == "":
                if answers.get("apart", 0) > ANOTHER:
                    unlike[f"{self.weights.name} as {family}"] = round(answers["apart"], 3)
                continue
            row = {"weights": self.weights.name, "family": family, "kind": task["kind"]}
            row["scenario"] = scenario
            released = without.get((family, scenario), {"error": "its first logits differ"})
            for part, one in zip(PARTS, (released, answers), strict=True):
                row[part], sample = self.judge(one, task, scenario)
                if sample:
                    row.setdefault("texts", {})[part] = sample
            rows.append(row)
        return rows

    def judge(
        self, row: dict[str, Any], task: dict[str, Any], scenario: str
    ) -> tuple[dict[str, Any], list[str]]:
        """The counts of a scenario, and its first wrong answer: prompt, solo answer, answer."""
        prompts = [p for p in task["prompts"] if p["long"] is (scenario == "window")]
        if "n/a" in row:
            return {"n/a": row["n/a"]}, []
        if "error" in row:
            return {**real_judge.count([Verdict(WRONG)] * len(prompts)), "error": row["error"]}, []
        verdicts, sample = [], []
        for prompt, tokens in zip(prompts, row["tokens"], strict=True):
            penalized = scenario == "penalty" and prompt["penalty"]
            count = TOKENS if scenario == "together" else prompt["count"]
            solo = prompt["penalized" if penalized else "solo"][:count]
            verdicts.append(real_judge.judge(tokens, solo, LEADS[task["kind"]]))
            if verdicts[-1].word == WRONG and not sample:
                right = [step["top"][0][0] for step in solo]
                sample = [prompt["text"][-60:], *map(self.tokenizer.decode, (right, tokens))]
        return real_judge.count(verdicts), sample

    def run_server(
        self, solo: Sequence[dict[str, Any]], found: Sequence[str]
    ) -> list[dict[str, Any]]:
        """The row of the release's server.

        Each prompt is sent separately, then all are sent at once.
        """
        from tests.hosts import server

        server.START_SECONDS = server.ANSWER_SECONDS = server.LOAD_SECONDS = SECONDS
        folder, package = self.folder, self.release.distribution.replace("-", "_")
        family = self.weights.base if self.weights.base in found else SERVED
        row = {
            "weights": self.weights.name,
            "family": family,
            "kind": FLOAT32,
            "scenario": "server",
        }
        if family == SERVED:
            folder = self.folder.with_name(f"served-{self.release.name.replace(' ', '-')}")
            shutil.rmtree(folder, ignore_errors=True)
            (refusal,) = self.child({"do": "serve", "made": str(folder)})
            if refusal:
                return [row | {part: {"n/a": refusal} for part in PARTS}]
        command = f"{package}.server --model {{model}} --port {{port}}"
        end = self.tokenizer.token_to_id(self.weights.end)

        def answers(patched: bool) -> tuple[dict[str, Any], list[str]]:
            texts = [prompt["text"] for prompt in solo]
            with tempfile.TemporaryDirectory() as logs:
                case = {"command": command, "chat": True}
                with server.serving(case, folder, Path(logs) / "server.log", patched) as host:
                    ask = partial(host.answer, max_tokens=TOKENS)
                    replies = [ask(text) for text in texts]
                    with ThreadPoolExecutor(len(texts)) as pool:
                        replies += pool.map(ask, texts)
            verdicts, sample = [], []
            for prompt, text in zip([*solo, *solo], replies, strict=True):
                judged = real_judge.judge_text(
                    text, prompt["solo"], LEADS[FLOAT32], self.tokenizer.decode, end
                )
                verdicts.append(judged)
                if judged.word == WRONG and not sample:
                    right = [step["top"][0][0] for step in prompt["solo"]]
                    sample = [prompt["text"][-60:], self.tokenizer.decode(right), text]
            return real_judge.count(verdicts), sample

        with ThreadPoolExecutor(2) as pool:
            for part, (counts, sample) in zip(PARTS, pool.map(answers, (False, True)), strict=True):
                row[part] = counts
                if sample:
                    row.setdefault("texts", {})[part] = sample
        return [row]

    def run_all(self, task: dict[str, Any], patched: bool) -> list[dict[str, Any]]:
        """The answers to a task; a family that kills its process is skipped in the next."""
        answers: list[dict[str, Any]] = []
        left = list(task["families"])
        while left:
            part, died = self.run({**task, "families": left, "patched": patched})
            answers += part
            if died:
                family = part[-1]["family"] if part else left[0]
                done = {(a["family"], a["scenario"]) for a in answers}
                answers += [
                    {"family": family, "scenario": name, "error": died}
                    for name in ["", *task["scenarios"]]
                    if (family, name) not in done
                ]
            left = [name for name in left if name not in {a["family"] for a in answers}]
        return answers

    def child(self, task: dict[str, Any]) -> list[Any]:
        """The answers of one process to a task without the patches; exits if it fails."""
        answers, died = self.run({**task, "patched": False})
        if died:
            sys.exit(f"{self.release.name}: {task['do']}: {died}")
        return answers

    def run(self, task: dict[str, Any]) -> tuple[list[Any], str]:
        """The answers of a process to a task, and why it ended early, if it did."""
        base = {"distribution": self.release.distribution, "folder": str(self.folder)}
        task = {"kind": FLOAT32, "count": TOKENS, **base, **task}
        command = [sys.executable, str(Path(__file__).with_name("real_child.py"))]
        with kernel_folder() as kernels:
            done = subprocess.run(
                command,
                input=json.dumps(task),
                capture_output=True,
                text=True,
                env={**os.environ, "TMPDIR": str(kernels)},
                timeout=SECONDS,
            )
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        died = f"ended with {done.returncode}: {last}" if done.returncode else ""
        return [json.loads(text) for text in done.stdout.splitlines()], died


def line(row: Mapping[str, Any]) -> str:
    """A row of evidence as a line of text."""
    name = f"{row['weights']}, {row['family']}, {row['kind']}, {row['scenario']}"
    parts = [", ".join(f"{key} {value}" for key, value in row[part].items()) for part in PARTS]
    return f"{name}: {' | '.join(parts)}"


def write(evidence: Mapping[str, Any]) -> None:
    """Write a release's evidence as JSON, a line for each row."""
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in evidence["rows"])
    head = json.dumps({**evidence, "rows": []}, indent=1)
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    file = EVIDENCE / f"{evidence['set'].replace(' ', '-')}.json"
    file.write_text(f"{head[: head.rindex('[]')]}[\n{rows}\n]\n}}\n")


if __name__ == "__main__":
    main()
