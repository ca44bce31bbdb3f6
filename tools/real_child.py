"""Runs real weights in the installed release: one task of tools/real.py, in its own process.

The task is JSON on standard input; answers are JSON lines on standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from real_judge import ANOTHER, FLOAT32, Step

sys.path.insert(0, str(Path(__file__).parents[1]))

from mlx_patches.lab import Family, LabModel, NotBuilt, generators, offline
from mlx_patches.lab import engine as engines
from mlx_patches.lab.build import build_undrawn, lab_model
from mlx_patches.lab.families import families
from mlx_patches.lab.rows import generate_solo as solo_steps
from mlx_patches.lab.weights import TOLERANCES
from mlx_patches.lab.whole import with_vision_tower
from mlx_patches.probes import NotApplicable

# How many of the likeliest tokens each step of a solo answer keeps.
KEPT = 8
PENALTY, CONTEXT = 1.3, 20
# The family that mlx-vlm's server loads, and its names of SmolLM2's control tokens, ids 3 to 6.
SERVED = "qwen2_5_vl"
MARKS = {
    "<repo_name>": "<|vision_start|>",
    "<reponame>": "<|image_pad|>",
    "<file_sep>": "<|vision_end|>",
    "<filename>": "<|video_pad|>",
}
# The pairs of rotated dimensions of a head of 64 that follow time, height and width.
AXES = (8, 12, 12)
BITS = {"8 bits": 8, "4 bits": 4}
Prompt = dict[str, Any]


def main() -> None:
    task = json.load(sys.stdin)
    out = sys.stdout
    # What packages print goes to stderr.
    with contextlib.redirect_stdout(sys.stderr):
        if task["patched"]:
            import mlx_patches

            mlx_patches.apply()
        for answer in globals()[task["do"]](task):
            print(json.dumps(answer), file=out, flush=True)


def find(task: dict[str, Any]) -> Iterator[Any]:
    """The families that hold the weights, by the names and shapes of their parameters."""
    import mlx.core as mx

    held = mx.load(f"{task['folder']}/model.safetensors")
    shapes = {short(name): value.shape for name, value in held.items()}
    for family in families(task["distribution"]):
        try:
            module, _ = build_undrawn(family, sizes=config_of(task))
        except NotBuilt:
            continue
        if holds(parameters(module), shapes):
            yield family.name


def reference(task: dict[str, Any]) -> Iterator[Any]:
    """The solo steps of each prompt, by a loop over the model without the release's engine."""
    model = model_of(task, task["family"])
    for prompt in task["prompts"]:
        yield {
            **prompt,
            "solo": keep_steps(solo_steps(model, prompt["ids"], task["count"])),
            "penalized": keep_steps(solo_steps(model, prompt["ids"], task["count"], [penalize]))
            if prompt["penalty"]
            else [],
        }


def run_task(task: dict[str, Any]) -> Iterator[Any]:
    """For each family and scenario the tokens of each prompt, or why there are none."""
    for name in task["families"]:
        row = {"family": name}
        try:
            model = model_of(task, name)
        except Exception as error:
            yield {**row, "scenario": "", "error": engines.where(error)}
            continue
        first = task["prompts"][0]
        off = measure_distance(solo_steps(model, first["ids"], 1), first)
        yield {**row, "scenario": "", "apart": off}
        if off > ANOTHER:
            continue
        for scenario in task["scenarios"]:
            prompts = [p for p in task["prompts"] if p["long"] is (scenario == "window")]
            try:
                result: dict[str, Any] = {"tokens": HOW[scenario](model, prompts)}
            except NotApplicable as reason:
                result = {"n/a": str(reason)}
            except Exception as error:
                result = {"error": engines.where(error)}
            yield {**row, "scenario": scenario, **result}
        del model


def measure_distance(steps: Sequence[Any], prompt: Prompt) -> float:
    """How far the first token's logits are from those of the reference, by their scale."""
    step = prompt["solo"][0]
    return float(max(abs(steps[0][t].item() - logit) for t, logit in step["top"]) / step["scale"])


def serve(task: dict[str, Any]) -> Iterator[Any]:
    """Write a folder for mlx-vlm's server: the weights as Qwen2.5-VL's language model.

    Yields why the release does not load it, or an empty text.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from tests.hosts.model import WHOLE

    source, made = Path(task["folder"]), Path(task["made"])
    made.mkdir(parents=True)
    named = (source / "tokenizer.json").read_text()
    for old, new in MARKS.items():
        named = named.replace(json.dumps(old), json.dumps(new))
    (made / "tokenizer.json").write_text(named)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, made)
    (made / "preprocessor_config.json").write_text(json.dumps({"patch_size": 14, "merge_size": 2}))
    text = config_of(task)
    sections = {"type": "mrope", "mrope_section": [one * text["head_dim"] // 64 for one in AXES]}
    own = {**text, "rope_scaling": sections, "image_token_id": 4, "video_token_id": 6}
    config = {**WHOLE[SERVED], **own, "vision_start_token_id": 3}
    config["text_config"] = {**WHOLE[SERVED]["text_config"], **own}
    config["vision_config"] |= {"out_hidden_size": text["hidden_size"]}
    (made / "config.json").write_text(json.dumps(config))
    model = with_vision_tower(config)
    fill(model.language_model, task)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(made / "model.safetensors"), weights, {"format": "mlx"})
    yield load_refusal(made)


def load_refusal(made: Path) -> str:
    """Why the release does not load a folder, if it lacks PyTorch; another failure is raised.

    mlx-vlm swallows the error that names PyTorch, and raises another one later.
    """
    from mlx_vlm import load
    from transformers import AutoImageProcessor

    try:
        load(str(made))
    except Exception:
        try:
            AutoImageProcessor.from_pretrained(str(made))
        except ImportError as reason:
            if "PyTorch" in str(reason):
                return "the release needs PyTorch to load the image processor of its server's model"
        raise
    return ""


def run_one_by_one(model: LabModel, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Each prompt solo in the release's batch generator."""
    return [requests(model, [(0, prompt, None)])[0] for prompt in prompts]


def run_together(model: LabModel, prompts: Sequence[Prompt]) -> list[list[int]]:
    """All prompts in one call of the release's public batch_generate."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]["ids"]))
    count = max(prompt["count"] for prompt in prompts)
    generated = offline.batch_generate(model, [prompts[index]["ids"] for index in order], count)
    rows = dict(zip(order, generated, strict=True))
    return [[one.token for one in rows[index]] for index in range(len(prompts))]


def run_joining(model: LabModel, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Prompts that join a batch which is decoding, one at each step."""
    return requests(model, [(turn, prompt, None) for turn, prompt in enumerate(prompts)])


def run_with_penalty(model: LabModel, prompts: Sequence[Prompt]) -> list[list[int]]:
    """As joining, with the release's own repetition penalty on some rows."""
    name = model.family.package
    place = importlib.import_module(f"{name}.sample_utils")
    if not hasattr(place, "make_logits_processors"):
        place = importlib.import_module("mlx_lm.sample_utils")
    own = place.make_logits_processors(repetition_penalty=PENALTY, repetition_context_size=CONTEXT)
    rows = [(turn, p, own if p["penalty"] else ()) for turn, p in enumerate(prompts)]
    return requests(model, rows)


HOW: dict[str, Callable[[LabModel, Sequence[Prompt]], list[list[int]]]] = {
    "alone": run_one_by_one,
    "together": run_together,
    "joining": run_joining,
    "penalty": run_with_penalty,
    "window": run_joining,
}


def requests(model: LabModel, rows: Sequence[tuple[int, Prompt, Any]]) -> Any:
    """The tokens of rows (turn, prompt, logits processors) in the release's batch generator."""
    sent = [generators.Request(turn, p["ids"], p["count"], own) for turn, p, own in rows]
    return [[one.token for one in row] for row in generators.run_requests(model, sent)]


def penalize(tokens: Any, logits: Any) -> Any:
    """The logits (1, vocabulary) after a repetition penalty, as its paper defines it."""
    import mlx.core as mx

    seen = mx.zeros(logits.shape[-1]).at[mx.array(tokens[-CONTEXT:])].add(1) > 0
    lower = mx.where(logits < 0, logits * PENALTY, logits / PENALTY)
    return mx.where(seen, lower, logits)


def keep_steps(steps: Sequence[Any]) -> list[Step]:
    """Steps of logits (vocabulary,) in the form of the evidence."""
    import mlx.core as mx

    found = []
    for logits in steps:
        order = mx.argsort(-logits)[:KEPT]
        top = [list(pair) for pair in zip(order.tolist(), logits[order].tolist(), strict=True)]
        found.append({"top": top, "scale": mx.abs(logits).max().item()})
    return found


def model_of(task: dict[str, Any], name: str) -> LabModel:
    """A family with the weights, in the task's kind."""
    import mlx.core as mx
    import mlx.nn as nn

    family, kind = Family(task["distribution"], name), task["kind"]
    module, config = build_undrawn(family, sizes=config_of(task))
    fill(module, task)
    if kind in BITS:
        nn.quantize(module, group_size=64, bits=BITS[kind])
    elif kind != FLOAT32:
        module.set_dtype(getattr(mx, kind))
    module.eval()
    mx.eval(module.parameters())
    return lab_model(family, module, config, TOLERANCES[FLOAT32])


def fill(module: Any, task: dict[str, Any]) -> None:
    """Load the weights into a language model."""
    import mlx.core as mx

    held = mx.load(f"{task['folder']}/model.safetensors")
    weights = {short(own): value for own, value in held.items()}
    filled = [(own, find_value(own, shape, weights)) for own, shape in parameters(module).items()]
    module.load_weights(filled)


def find_value(name: str, shape: Sequence[int], weights: dict[str, Any]) -> Any:
    """A parameter's value: its weight, the tied embedding, or zeros for a bias."""
    import mlx.core as mx

    tied = short(name).replace("lm_head", "embed_tokens")
    found = weights.get(short(name), weights.get(tied))
    return mx.zeros(shape) if found is None else found


def holds(own: dict[str, Sequence[int]], weights: dict[str, Sequence[int]]) -> bool:
    """Whether parameters are these weights, except for biases and a tied output."""
    named = {short(name): tuple(shape) for name, shape in own.items()}
    more = {name for name in named.keys() - weights.keys() if not name.endswith(".bias")}
    same = all(named.get(name) == tuple(shape) for name, shape in weights.items())
    return same and more <= {"lm_head.weight"}


def parameters(module: Any) -> dict[str, Sequence[int]]:
    from mlx.utils import tree_flatten

    return {name: value.shape for name, value in tree_flatten(module.parameters())}


def short(name: str) -> str:
    """A parameter's name without the prefixes of a nested text model."""
    while name.startswith(("language_model.", "model.")):
        name = name.partition(".")[2]
    return name


def config_of(task: dict[str, Any]) -> dict[str, Any]:
    config = json.loads(Path(task["folder"], "config.json").read_text())
    return {name: value for name, value in config.items() if name != "model_type"}


if __name__ == "__main__":
    main()
