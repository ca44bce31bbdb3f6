"""Compares the stages of a release with those of transformers, cell by cell.

Processor faults and model faults are distinguished: ``pixels``, ``ids`` and ``grids`` compare the
inputs, ``model`` computes with the inputs of transformers, and ``request`` with the release's own.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import SequenceMatcher
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

from ...activation.children import child_environment, module_command
from ...evidence.words import GREEN, NOT_APPLICABLE, RED
from .. import Cell, Family, engine
from . import heard, pictures, published, rules, videos, watched
from .judge import (
    EQUAL,
    ROUNDED,
    argmax,
    describe_off,
    difference,
    is_alike,
    put_in_line,
    verdict,
)
from .release import WITHOUT, NeedsTorch

NAME = "reference-images"
# The largest difference of equal pixels: they are rounded to bytes before they are normalized.
EQUAL_PIXELS = 1e-3
# The same where transformers has no PIL backend: a rounded pixel may differ by one of 255 levels.
ROUNDED_PIXELS = 0.032
# A folder to keep transformers' results in, for several processes that compare with them.
KEEP = "MLX_PATCHES_LAB_IMAGES"
SECONDS = 400
# Set to an entry's name in a process that has torch, because the entry's processor needs it.
TORCH = "MLX_PATCHES_LAB_IMAGES_TORCH"
# The longest chunk of a prompt that cuts an image.
CHUNK = 16
# The parts of a model whose features are compared if its logits differ, in order.
FEATURES = {
    "audio": "audio tower",
    "tower": "vision tower",
    "projector": "projector",
    "merged": "merged embeddings",
}
_BACKEND = ", some to transformers' torchvision backend"

Arrays = Mapping[str, Any]


def is_compared(family: Family) -> bool:
    return family.distribution == "mlx-vlm" and bool(published.entries(family.name))


def cells(family: Family) -> Iterator[tuple[str, Cell]]:
    """The cells of a family's entries in the table, then one for all of them."""
    only = os.environ.get(TORCH)
    for package in () if only else WITHOUT:  # the release runs as users have it
        sys.modules[package] = None  # type: ignore[assignment]
    os.environ["HF_HUB_OFFLINE"] = "1"
    found = []
    outside = "transformers"
    for name in [only] if only else published.entries(family.name):
        try:
            with compute_expected(name) as want, set_constants(published.entry(name)):
                outside = want.outside
                for stage, cell in entry_cells(name, want):
                    found.append(cell)
                    yield f"{NAME}:{name} {stage}", cell
        except Unmade as reason:
            yield f"{NAME}:{name}", Cell(NOT_APPLICABLE, f"transformers cannot make it: {reason}")
    yield NAME, summary(found, outside)


def summary(found: Sequence[Cell], outside: str) -> Cell:
    from ..reference import summary

    if not found:
        return Cell(NOT_APPLICABLE, f"not compared with {outside}")
    return summary(found, outside)


class Unmade(Exception):
    """Transformers cannot make or run a model of an entry; the message is one line."""


class Expected:
    """What transformers computed in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.facts = json.loads((folder / "stages.json").read_text())
        self.outside = f"transformers {self.facts['transformers']}"

    @cached_property
    def arrays(self) -> Any:
        import numpy as np

        return np.load(self.folder / "stages.npz")

    def get(self, case: str, name: str) -> Any:
        key = f"{case}/{name}"
        return self.arrays[key] if key in self.arrays.files else None

    def inputs(self, case: str) -> dict[str, Any]:
        start = f"{case}/in/"
        names = [key for key in self.arrays.files if key.startswith(start)]
        return {key.removeprefix(start): self.arrays[key] for key in names}

    def runs(self, case: str) -> bool:
        return f"{case}/decode" in self.arrays.files

    def is_refused(self, case: str) -> bool:
        return "refused" in self.facts["cases"][case]


@contextmanager
def compute_expected(name: str) -> Iterator[Expected]:
    """What transformers computes for an entry, in a process that has torch."""
    keep = os.environ.get(KEEP)
    if keep:
        Path(keep).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=keep) as temporary:
        made = Path(temporary) / name.replace(" ", "-")
        kept = Path(keep) / made.name if keep else made
        if not (kept / "stages.json").exists():
            command = module_command(f"{__package__}.authors", temporary, name)
            done = subprocess.run(
                command, capture_output=True, text=True, env=child_environment(), timeout=SECONDS
            )
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["no message"]
                raise Unmade(lines[-1][:300])
            # A process that measures the same family with other patches may be faster.
            with suppress(OSError):
                made.rename(kept)
        want = Expected(made if made.exists() else kept)
        if why := want.facts.get("unmade"):
            raise Unmade(why)
        yield want


@contextmanager
def set_constants(one: published.Json) -> Iterator[None]:
    """Give the release's classes an entry's token ids and sizes while it is compared."""
    with ExitStack() as stack:
        for place, values in one.get("constants", {}).items():
            module, _, kind = place.partition(":")
            owner = importlib.import_module(module)
            owner = getattr(owner, kind) if kind else owner
            stack.enter_context(mock.patch.multiple(owner, **values))
        for place, values in one.get("sizes", {}).items():
            module, _, kind = place.partition(":")
            home = importlib.import_module(module)
            make = partial(make_small, getattr(home, kind), values)
            stack.enter_context(mock.patch.object(home, kind, make))
        yield


def make_small(kind: Callable[..., Any], sizes: Mapping[str, Any], *args: Any, **given: Any) -> Any:
    """Make an object of a class with these sizes instead of those that the release gives."""
    import mlx.core as mx

    shapes = {name: size for name, size in sizes.items() if "." in name}
    made = kind(*args, **{**given, **{n: size for n, size in sizes.items() if n not in shapes}})
    for name, shape in shapes.items():
        part, _, weight = name.partition(".")
        made.update({part: {weight: mx.zeros(shape)}})
    return made


def entry_cells(name: str, want: Expected) -> Iterator[tuple[str, Cell]]:
    """The cells of one entry: its published folder, then the folder that transformers saves."""
    from .release import Loaded

    one = published.entry(name)
    only_model = one.get("only-model", "")
    if "auto_map" in one.get("published", {}):
        os.environ |= {
            "HF_MODULES_CACHE": str(want.folder / "modules"),
            "MLX_TRUST_REMOTE_CODE": "true",
        }
    try:
        loaded = Loaded(want.folder / "published", bool(only_model))
    except NeedsTorch:
        yield from repeat_with_torch(name, want)
        return
    except Exception as error:
        # Unless transformers writes the published folder, the lab's copy may be at fault.
        written = is_written(one)
        reason = f"{'it' if written else 'the copy of the lab'} does not load: {put_in_line(error)}"
        yield "load", Cell(RED if written else NOT_APPLICABLE, reason)
        return
    if only_model:
        yield "load", Cell(NOT_APPLICABLE, only_model)
    else:
        yield "load", Cell(GREEN, f"loads{', with torchvision' if os.environ.get(TORCH) else ''}")
    compared = Compared(one, want, loaded)
    yield from compared.cells()
    if compared.differs_without_image or not one.get("saved", True):
        return
    if published.is_respelled(read_config(want, "saved"), read_config(want, "published")):
        try:
            loaded = Loaded(want.folder / "saved", bool(only_model))
        except Exception as error:
            reason = f"does not load as transformers saves it: {put_in_line(error)}"
            unknown = one.get("saved") == "known" and lacks_type(error)
            yield "saved", Cell(NOT_APPLICABLE if unknown else RED, reason)
        else:
            yield "saved", Compared(one, want, loaded).model(("square", "two", "text"))


def repeat_with_torch(name: str, want: Expected) -> Iterator[tuple[str, Cell]]:
    """The entry's cells from a repetition of this process in which torch is not hidden."""
    command = module_command("mlx_patches.lab.child", *sys.argv[1:])
    environment = {**child_environment(), TORCH: name, KEEP: str(want.folder.parent)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    found = 0
    for row in map(json.loads, done.stdout.splitlines()):
        _, is_own, stage = row["scenario"].partition(f"{NAME}:{name} ")
        if is_own:
            found += 1
            yield stage, Cell(row["verdict"], row["detail"], row["figure"])
    if not found:
        yield "load", Cell(NOT_APPLICABLE, f"its processor needs {WITHOUT[0]}")


def read_config(want: Expected, spelling: str) -> Any:
    return json.loads((want.folder / spelling / "config.json").read_text())


def lacks_type(error: BaseException) -> bool:
    """Whether a folder does not load because the release has no model of its type."""
    return bool(re.match(r"Model type \S+ not supported", str(error)))


def is_written(one: published.Json) -> bool:
    """Whether a converter of transformers writes an entry's folder, so that it is as published."""
    return bool(one["source"].startswith("convert_"))


class Compared:
    """The stages of one loaded folder against what transformers computed."""

    def __init__(self, one: published.Json, want: Expected, loaded: Any):
        self.one, self.want, self.loaded = one, want, loaded
        self.own: dict[str, Any] = {}
        # By case, what `model` found: a share of the scale, or a sentence.
        self.found: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        # Whether some pixels are those of transformers' torchvision backend.
        self.has_default_pixels = False
        for case in pictures.CASES:
            if want.is_refused(case) or not loaded.processor:
                continue
            try:
                self.own[case] = loaded.inputs(self.prompt(case), self.images(case))
            except Exception as error:
                self.failed[case] = put_in_line(error)

    def prompt(self, case: str) -> str:
        found = pictures.find(case)
        prompt = published.prompt(self.one, len(found.images), len(found.sounds))
        is_added = self.one.get("bos") == "added" and found.images
        return prompt.removeprefix("<bos>") if is_added else prompt

    def images(self, case: str) -> list[str]:
        return pictures.save(self.want.folder, case)

    def cells(self) -> Iterator[tuple[str, Cell]]:
        """Each stage's cell, after that of loading; without a processor only the model's."""
        if self.loaded.processor:
            equal = EQUAL_PIXELS if self.has_pil else ROUNDED_PIXELS
            yield "ids", self.inputs(lambda name: name == "input_ids")
            yield "pixels", self.inputs(lambda name: name.startswith("pixel_values"), equal)
            yield (
                "grids",
                self.inputs(lambda name: "size" in name or "grid" in name or "mask" in name),
            )
        model = self.model([case for case in pictures.CASES if self.want.runs(case)])
        if self.differs_without_image:
            yield "model", Cell(NOT_APPLICABLE, f"a text differs too: {model.detail}")
            return  # the tiny config may be at fault
        yield "model", model
        if not self.loaded.processor:
            return
        yield "request", self.requests()
        if videos.list_cases(self.one):
            yield "video", watched.compare(self)
        yield "fields", self.fields()
        yield "chat", self.chat()
        if self.one.get("audio"):
            yield "audio", heard.compare(self)
        if model.verdict == RED:
            return  # the rest would repeat it
        for stage, call in (
            ("chunks", self.chunks),
            ("generate", lambda: self.generate(self.loaded.generate)),
            ("stream", lambda: self.generate(self.loaded.stream)),
            ("batch", self.batch),
            ("server", self.server),
        ):
            try:
                yield stage, call()
            except Exception as error:
                yield stage, Cell(RED, engine.where(error))

    @property
    def has_pil(self) -> bool:
        """Whether transformers has the PIL backend for this model."""
        return bool(self.want.facts.get("pil", True))

    @property
    def equal(self) -> float:
        """The largest difference of equal results that start from the release's own pixels."""
        return ROUNDED if self.has_default_pixels or not self.has_pil else EQUAL

    def judge(self, off: Mapping[Any, Any]) -> Cell:
        """The cell of stages that start from the release's own pixels."""
        return verdict(off, self.equal)

    @property
    def differs_without_image(self) -> bool:
        """Whether the logits of a text differ, perhaps by a fault of the lab's copy of a folder."""
        off = self.found.get("text", 0.0)
        return not isinstance(off, str) and off > EQUAL and not is_written(self.one)

    def inputs(self, has: Callable[[str], bool], equal: float = 0.0) -> Cell:
        """Compare the inputs of these names, in every case that both have."""
        from .release import array

        off: dict[str, Any] = {case: why for case, why in self.failed.items() if has("input_ids")}
        seen, worst, backend = 0, 0.0, 0
        for case in self.own:
            own = self.name_inputs(case)
            for name, want in self.want.inputs(case).items():
                if not has(name) or name not in own or name == "attention_mask":
                    continue
                try:
                    found = difference(array(own[name]), want)
                except ValueError:  # a list of images of other sizes
                    continue
                if isinstance(found, str):
                    if has("input_ids"):
                        off.setdefault(case, found)
                    continue  # another layout; `request` tells whether it matters
                seen += 1
                default = self.want.get(case, f"default/{name}")
                if default is not None and found > equal:
                    other = difference(array(own[name]), nearest(array(own[name]), want, default))
                    if not isinstance(other, str) and other <= equal:
                        backend += 1
                        continue
                if found > equal:
                    off.setdefault(case, found)
                worst = max(worst, found)
        if not seen and not off:
            return Cell(NOT_APPLICABLE, "in another layout, or none")
        if off:
            return Cell(RED, describe_off(off), worst)
        self.has_default_pixels |= backend > 0
        return Cell(GREEN, f"equal{_BACKEND if backend else ''}", worst)

    def name_inputs(self, case: str) -> dict[str, Any]:
        """The release's own inputs, and the arrays of its list of pixels by transformers' names."""
        own, names = self.own[case], self.one.get("pixels", ())
        return {**own, **dict(zip(names, own.get("pixel_values", ()), strict=False))}

    def model(self, cases: Sequence[str]) -> Cell:
        """Compare the logits with transformers' inputs, and name the first stage that is off."""
        off: dict[str, Any] = {}
        for case in filter(self.want.runs, cases):
            try:
                rows = self.loaded.run(self.adapt_inputs(case), self.sampler(case))
                share = self.rows_off(case, rows)
                self.found[case] = share
                if share > EQUAL:
                    off[case] = f"{share:.2g}{self.where(case)}"
            except Exception as error:
                off[case] = self.found[case] = put_in_line(error)
        worst = max((one for one in self.found.values() if not isinstance(one, str)), default=None)
        if not cases:
            return Cell(NOT_APPLICABLE, "transformers ran no prompt")
        moved = self.want.facts.get("moved", 0.0)
        if not off and moved < 10 * EQUAL and "square" in cases:
            return Cell(NOT_APPLICABLE, f"the image hardly moves the logits: {moved:.2g}")
        return Cell(RED, describe_off(off), worst) if off else Cell(GREEN, "equal", worst)

    def adapt_inputs(self, case: str) -> dict[str, Any]:
        """Transformers' inputs, in the release's layout, and those that it lacks.

        The release's own if the layouts of the pixels differ.
        """
        import mlx.core as mx
        import numpy as np

        own, wanted, inputs = self.own.get(case, {}), self.want.inputs(case), {}
        parts = [wanted.pop(name, None) for name in self.one.get("pixels", ())]
        if parts and parts[-1] is not None:
            inputs["pixel_values"] = [None if one is None else mx.array(one) for one in parts]
        elif has_other_layout(own.get("pixel_values"), wanted.get("pixel_values")):
            return dict(own)
        for name, value in wanted.items():
            if name == "pixel_values" and self.one.get("channels-last"):
                value = np.moveaxis(value, -3, -1)
            shape = getattr(own.get(name), "shape", value.shape)
            inputs[name] = mx.array(value.reshape(shape) if is_alike(shape, value) else value)
        return {**own, **inputs}

    def where(self, case: str) -> str:
        """The first stage whose features differ; parts with other shapes are not compared."""
        from .release import array

        for stage, words in FEATURES.items():
            wants = [self.want.get(case, name) for name in (stage, f"{stage} pooled")]
            seen = [array(one) for one in self.loaded.seen.get(stage, [])]
            if stage == "merged" and seen:  # the last token may come in a chunk of its own
                want = wants[0][0]
                own = seen[0].reshape(-1, want.shape[-1])
                if not 0 <= len(want) - len(own) <= 1:
                    return f", in the merged embeddings: {len(own)} for {len(want)} tokens"
                wants, seen = [want[: len(own)]], [own]
            pairs = [(o, w) for o in seen for w in wants if w is not None and o.size == w.size]
            if pairs and min(itertools.starmap(share, pairs)) > EQUAL:
                return f", from the {words} on"
        return ", in the language model"

    def requests(self) -> Cell:
        """Compare the logits with the release's own inputs."""
        found: dict[str, Any] = {}
        for case in filter(self.want.runs, pictures.CASES):
            if case in self.failed:
                found[case] = self.failed[case]
            elif self.has_same_inputs(case):
                found[case] = self.found[case]
            else:
                try:
                    found[case] = self.rows_off(case, self.run(case))
                except Exception as error:
                    found[case] = put_in_line(error)
        return self.judge(found)

    def has_same_inputs(self, case: str) -> bool:
        """Whether the release's own inputs of a case are those of transformers."""
        from .release import array

        def same(name: str, want: Any) -> bool:
            one: Any = own.get(name)
            return hasattr(one, "shape") and one.shape == want.shape and (array(one) == want).all()

        own, inputs = self.name_inputs(case), self.want.inputs(case)
        return all(same(name, want) for name, want in inputs.items() if name in own)

    def run(self, case: str, **options: Any) -> list[Any]:
        """The log-probabilities with the release's own inputs."""
        return list(self.loaded.run(self.own[case], self.sampler(case), **options))

    def chunks(self) -> Cell:
        """Compare the logits of a prefill whose chunks cut images."""
        cases = [c for c in ("square", "two") if self.want.runs(c) and c in self.own]
        off = {c: self.rows_off(c, self.run(c, step=CHUNK)) for c in cases}
        return self.judge(off)

    def generate(self, call: Callable[..., str]) -> Cell:
        """Compare the logits in a public function."""
        off = {}
        for case in ("square", "two", "text"):
            if self.want.runs(case) and case in self.own:
                sampler = self.sampler(case)
                call(self.prompt(case), self.images(case), sampler)
                off[case] = max(sampler.off)
        return self.judge(off)

    def batch(self) -> Cell:
        """Compare two rows of the public ``batch_generate``, and the order of their texts."""
        cases = [c for c in ("square", "wide") if self.want.runs(c) and c in self.own]
        if len(cases) < 2:
            return Cell(NOT_APPLICABLE, "transformers ran no two prompts")
        sampler = self.sampler(*cases)
        images = [self.images(case)[0] for case in cases]
        texts = self.loaded.batch(list(map(self.prompt, cases)), images, sampler)
        cell = self.judge({"rows": max(sampler.off)})
        tokenizer = getattr(self.loaded.processor, "tokenizer", self.loaded.processor)
        wanted = [tokenizer.decode(self.want.get(c, "tokens").tolist()) for c in cases]
        # Incomplete characters are decoded differently in a stream.
        first, *wanted = (text.replace("\ufffd", "") for text in (texts[0], *wanted))
        own, other = (SequenceMatcher(None, first, text).ratio() for text in wanted)
        if cell.verdict == GREEN and own < other:
            return Cell(RED, "the rows are swapped")
        return cell

    def server(self) -> Cell:
        """Compare a chat through the release's server with the public ``generate``."""
        from .served import TOKENS, chat

        if not self.one.get("chat", True):
            return Cell(NOT_APPLICABLE, "published folders have no chat template")
        home, off, seen = self.want.folder / "published", {}, set[str]()
        for case in filter(self.own.__contains__, ("square", "text")):
            images = self.images(case)
            texts = [chat(home, images, published.QUESTION)]
            for prompt in self.conversation({"type": "image"}, len(images)):
                texts.append(self.loaded.generate(prompt, images, argmax, TOKENS))
            # Incomplete characters are decoded differently, and a server may strip spaces.
            got, *want = (text.replace("\ufffd", "").strip() for text in texts)
            if got not in want:
                off[case] = f"{got!r} for {want[0]!r}"[:160]
            elif not got or got in seen:
                return Cell(NOT_APPLICABLE, "the image does not change the answer")
            seen.update(want)
        if not self.own:
            return Cell(NOT_APPLICABLE, "no case")
        return Cell(RED, describe_off(off)) if off else Cell(GREEN, "equal")

    def chat(self) -> Cell:
        """Compare the prompt of a conversation with transformers' own template."""
        if not self.one.get("chat", True):
            return Cell(NOT_APPLICABLE, "published folders have no chat template")
        off = {}
        for images in range(3):
            want = self.conversation({"type": "image"}, images)
            try:
                got = self.loaded.chat(images, published.QUESTION)
            except Exception as error:
                got = put_in_line(error)
            if got not in want:
                off[f"{images} images"] = f"{got!r} for {want[0]!r}"[:160]
        return Cell(RED, describe_off(off)) if off else Cell(GREEN, "equal")

    def conversation(self, part: Mapping[str, str], count: int) -> list[str]:
        """Transformers' prompt of a message with parts before the text, and with them after it."""
        tokenizer = getattr(self.loaded.processor, "tokenizer", self.loaded.processor)
        parts = [part] * count + [{"type": "text", "text": published.QUESTION}]
        return [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            for content in (parts, parts[::-1])
        ]

    def fields(self) -> Cell:
        """Compare with the model whose config names each field that it leaves to a default."""
        from .release import Loaded

        home, case = self.want.folder / "published", "square"
        config = json.loads((home / "config.json").read_text())
        found = rules.defaults(self.loaded.model.config, config)
        if not found or case not in self.own:
            return Cell(GREEN, "no field depends on a default")
        own = self.run(case)
        off = {}
        for name, (default, value) in found.items():
            with rules.with_fields(home, {name: value}) as folder:
                try:
                    rows = Loaded(folder).run(self.own[case], self.sampler(case))
                except Exception:
                    continue  # the field means something else at the top
            share = max(row_off(one, other) for one, other in zip(rows, own, strict=True))
            if share > EQUAL:
                off[f"{name} is {default} by default, {value} in the text model"] = share
        return verdict(off) if off else Cell(GREEN, "equal")

    def sampler(self, *cases: str) -> Sampler:
        return Sampler([(self.logprobs(c), self.want.get(c, "tokens")) for c in cases])

    def logprobs(self, case: str) -> Any:
        """Transformers' log-probabilities of each generated token."""
        import numpy as np

        logits = self.want.get(case, "decode").astype(np.float64)
        return logits - np.logaddexp.reduce(logits, -1, keepdims=True)

    def rows_off(self, case: str, rows: Sequence[Any]) -> float:
        """The largest difference of these log-probabilities, as a share of their scale."""
        want = self.logprobs(case)
        if len(rows) != len(want):
            return float("inf")
        return max(row_off(row, one) for row, one in zip(rows, want, strict=True))


class Sampler:
    """Samples the reference's token after the nearest of its rows, whatever the release's order.

    ``off``: how far the nearest call was from each row of the reference.
    """

    def __init__(self, answers: Sequence[tuple[Any, Any]]):
        self.rows = [row for rows, _ in answers for row in rows]
        self.tokens = [int(token) for _, tokens in answers for token in tokens]
        self.off = [float("inf")] * len(self.rows)

    def __call__(self, logprobs: Any) -> Any:
        """The tokens after these rows."""
        import mlx.core as mx

        from .release import array

        chosen = []
        for row in array(logprobs).reshape(-1, logprobs.shape[-1]):
            off = [row_off(row, one) for one in self.rows]
            self.off = list(map(min, self.off, off))
            chosen.append(self.tokens[off.index(min(off))])
        return mx.array(chosen, dtype=mx.uint32).reshape(logprobs.shape[:-1])


def row_off(row: Any, want: Any) -> float:
    """The largest difference of log-probabilities, as a share of their spread."""
    import numpy as np

    own = row[: len(want)].astype(np.float64)
    if len(own) < len(want) or not np.isfinite(own).all():
        return float("inf")
    own = own - np.logaddexp.reduce(own)
    return float(np.abs(own - want).max() / np.abs(want - want.mean()).max())


def has_other_layout(own: Any, want: Any) -> bool:
    """Whether a release's pixels are a list of arrays, or have other dimensions."""
    if own is None or want is None or isinstance(own, list):
        return isinstance(own, list)
    return bool(own.ndim != want.ndim) and not is_alike(own.shape, want)


def nearest(own: Any, want: Any, default: Any) -> Any:
    """Of each value, that of the backend which is nearer to the release's."""
    import numpy as np

    if not own.shape == want.shape == default.shape:
        return default
    return np.where(np.abs(own - want) < np.abs(own - default), want, default)


def share(own: Any, want: Any) -> float:
    """The largest difference of two arrays of one size, as a share of the scale."""
    import numpy as np

    scale = max(float(np.abs(want).max()), 1e-9)
    return float(np.abs(own.reshape(want.shape).astype(np.float64) - want).max()) / scale
