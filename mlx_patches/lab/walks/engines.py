"""A release's batch engine as a walk drives it, and what it can do."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...probes import NotApplicable
from .. import Generated, LabModel, engine
from ..engine import Image
from ..engine_scenarios import penalized, second_best
from ..generators import (
    Request,
    Sampler,
    generated,
    limited_caches,
    make_generator,
    samples_by_row,
)
from .program import SECOND

# A prefix cache that a walk fills: it keeps prefixes of two tokens and more, and six at most.
SMALL = {
    "APC_EXACT_MIN_TOKENS": "2",
    "APC_EXACT_PREFIX_GUARD_TOKENS": "1",
    "APC_EXACT_CACHE_ENTRIES": "6",
}
OVERRIDES = {"checkpoint_interval_tokens": 8, "checkpoint_entries": 6}
# What the engine takes of a program's options; ``grow`` is of the caches' classes.
PASSED = (
    "prefill_step_size",
    "prefill_batch_size",
    "completion_batch_size",
    "max_kv_size",
    "kv_bits",
)


@dataclass
class Row:
    """A request of a walk, and what the engine has said of it.

    ``history`` is the text in the ``cache`` that the row goes on from, of which the first
    ``quantized`` tokens were quantized. ``sampler`` takes the token of ``rank``, None for any.
    """

    number: int
    prompt: list[int]
    count: int
    engine: int = 0
    processor: bool = False
    sampler: Sampler | None = None
    rank: int | None = 0
    segment: int = 0
    image: Image | None = None
    history: list[int] = field(default_factory=list)
    cache: list[Any] | None = None
    quantized: int = 0
    uid: int = -1
    said: list[Generated] = field(default_factory=list)
    ended: bool = False

    @property
    def whole(self) -> list[int]:
        """The text before the row's first own token."""
        return self.history + self.prompt

    @property
    def tokens(self) -> list[int]:
        """The row's own tokens."""
        return [one.token for one in self.said]

    @property
    def segments(self) -> list[list[int]]:
        """The prompt in its segments."""
        size = self.segment or len(self.prompt)
        return [self.prompt[start : start + size] for start in range(0, len(self.prompt), size)]


@dataclass(frozen=True)
class Said:
    """A token of a row; with the last one the engine may return the row's cache and its text."""

    uid: int
    token: Generated
    last: bool
    cache: list[Any] | None = None
    text: Sequence[int] = ()


class LmEngine:
    """mlx-lm's batch engine."""

    def __init__(self, model: LabModel, options: dict[str, Any], prefix: Any = None):
        options.pop("top_logprobs_k", None)
        self.release = make_generator(model, 1, **options).release
        if not hasattr(self.release, "insert_segments"):
            raise NotApplicable("the release's engine takes no segments and no caches of rows")

    def add(self, rows: Sequence[Row]) -> list[int]:
        """Insert rows in one call; returns their uids."""
        own: dict[str, Any] = {}
        if any(row.processor for row in rows):
            own["logits_processors"] = [[penalized] if row.processor else [] for row in rows]
        if any(row.sampler for row in rows):
            own["samplers"] = [row.sampler for row in rows]
        if any(row.cache is not None for row in rows):
            own["caches"] = [row.cache for row in rows]
            own["all_tokens"] = [list(row.history) for row in rows]
        counts = [row.count for row in rows]
        return list(self.release.insert_segments([row.segments for row in rows], counts, **own))

    def step(self) -> list[Said]:
        """Take a step."""
        answers = self.release.next()
        return [
            Said(one.uid, generated(one), bool(one.finish_reason), one.prompt_cache, one.all_tokens)
            for one in (answers[1] if isinstance(answers, tuple) else answers)
        ]

    def copy(self, uid: int) -> tuple[list[Any], list[int]]:
        """A row's cache and its text."""
        cache, text = self.release.extract_cache([uid])[uid]
        return cache, list(text)

    def remove(self, uid: int, keep: bool) -> tuple[Any, ...] | None:
        """Remove a row; returns its cache and its text if they are to be kept."""
        cache, text = self.release.remove([uid], return_prompt_caches=keep).get(uid, (None, ()))
        return (cache, list(text)) if keep else ()

    def close(self) -> None:
        """Give back what the engine holds."""
        self.release.close()


class VlmEngine:
    """mlx-vlm's batch engine."""

    def __init__(self, model: LabModel, options: dict[str, Any], prefix: Any = None):
        taken = inspect.signature(engine.generate_module(model).BatchGenerator).parameters
        if "top_logprobs_k" not in taken:
            options.pop("top_logprobs_k", None)
        if "kv_bits" in options:
            options |= {"kv_group_size": engine.GROUP, "quantized_kv_start": 0}
        if prefix is not None:
            options["apc_manager"] = prefix
        self.model = model
        self.generator = make_generator(model, 1, **options)
        if not self.generator.by_row:
            # Its only caller reads all prompts in one batch, with their embeddings.
            options |= {"prefill_batch_size": 8, "completion_batch_size": 24}
            self.generator = make_generator(model, 1, **options)
        self.release = self.generator.release
        self.prefix = prefix

    def add(self, rows: Sequence[Row]) -> list[int]:
        """Insert rows; returns their uids."""
        requests = [
            Request(
                turn=0,
                prompt=row.prompt,
                count=row.count,
                processors=[penalized] if row.processor else None,
                sampler=row.sampler,
                image=row.image,
                # In the lab the tokens alone say which image they are.
                arguments={"_apc_semantic_hash": 0, "_apc_image_hash": 0} if self.prefix else {},
            )
            for row in rows
        ]
        return list(self.generator.insert_requests(requests))

    def step(self) -> list[Said]:
        """Take a step."""
        return [
            Said(one.uid, self._generated(one), bool(one.finish_reason))
            for one in self.generator.answers()
        ]

    def _generated(self, answer: Any) -> Generated:
        import mlx.core as mx

        token, top = generated(answer), getattr(answer, "top_logprobs", None)
        if token.every is not None or not top or len(top) < self.model.vocabulary:
            return token
        return Generated(token.token, every=mx.array([value for _, value in sorted(top)]))

    def remove(self, uid: int, keep: bool) -> tuple[Any, ...] | None:
        """Remove a row; returns None if the release says that it did not: the row goes on."""
        return () if self.release.remove(uid) else None

    def close(self) -> None:
        """Give back what the engine holds."""
        if hasattr(self.release, "close"):
            self.release.close()


Engine = LmEngine | VlmEngine


def start(model: LabModel, options: dict[str, int], prefix: Any = None) -> Engine:
    """A new engine for a program's options; ``prefix``: its prefix cache."""
    passed: dict[str, Any] = {name: options[name] for name in PASSED if name in options}
    passed["top_logprobs_k"] = model.vocabulary if options.get("logprobs") else 0
    kind = LmEngine if model.family.distribution == "mlx-lm" else VlmEngine
    return kind(model, passed, prefix)


def prefix_cache(small: bool) -> Any:
    """A prefix cache of mlx-vlm, small enough for a walk to fill or with its own settings."""
    make = importlib.import_module("mlx_vlm.apc").APCManager
    if not small:
        return make()
    takes = "overrides" in inspect.signature(make).parameters
    return make(num_blocks=64, block_size=4, **({"overrides": OVERRIDES} if takes else {}))


def kinds(model: LabModel) -> list[frozenset[str]]:
    """What the operations of a walk may be and have here, for each kind of walk.

    Raises:
        NotApplicable: the release has no batch engine that walks can drive.
    """
    release = start(model, {}).release
    insert = inspect.signature(release.insert).parameters
    rows = {name for name in ("processor",) if "logits_processors" in insert}
    rows |= {"sampler"} if samples_by_row(model) else set()
    base = {"renew", "alone", "engines", *(["drop"] if hasattr(release, "remove") else [])}
    if model.family.distribution == "mlx-lm":
        base |= {"segment", "copy", "keep"}
        reuse = base | rows | {"reuse", "save", "quantize"}
        found = [base, base | rows, reuse, reuse]
        if _applies(limited_caches, model, 16):
            found.append(base | rows | {"max_kv_size"})
        return [frozenset(one) for one in found]
    taken = inspect.signature(type(release)).parameters
    found = [base, base | rows]
    quantizes = _applies(engine.quantized, model, [0], 8)
    found += [base | {"kv_bits"}] if quantizes else []
    shows = "prompt_kwargs" in insert and _applies(engine.with_image, model, range(1, 17), (2, 2))
    engine.unmark()
    found += [base | {"images"}] if shows else []
    if "apc_manager" in taken:
        found += [base | {"prefix"}, base | rows | {"prefix"}]
        found += [base | {"prefix", "images"}] if shows else []
        found += [base | {"prefix", "kv_bits"}] if quantizes else []
    return [frozenset(one) for one in found]


def _applies(call: Any, *arguments: Any) -> bool:
    try:
        call(*arguments)
    except NotApplicable:
        return False
    return True


@contextmanager
def small_steps(columns: int) -> Iterator[None]:
    """Let buffers of keys grow by so many columns; 0: as the release does.

    A release's buffers grow by 256, which no walk reaches. Prefix caches made meanwhile keep short
    prefixes too.
    """
    own = {kind: kind.step for kind in _growing()}
    before = {name: os.environ.get(name) for name in SMALL}
    os.environ |= SMALL
    for kind in own:
        kind.step = columns or kind.step
    try:
        yield
    finally:
        for kind, step in own.items():
            kind.step = step
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _growing() -> set[Any]:
    """The cache classes whose buffers grow by a step of their own."""
    names = ("mlx_lm.models.cache", "mlx_vlm.models.cache", "mlx_vlm.turboquant")
    found = set()
    for name in names:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        classes = (one for one in vars(module).values() if inspect.isclass(one))
        found |= {one for one in classes if isinstance(vars(one).get("step"), int)}
    return found


def forced(vocabulary: int, seed: int) -> Sampler:
    """A sampler that takes tokens of its own, the same in each run."""
    import random

    chance = random.Random(seed)

    def sample(logprobs: Any) -> Any:
        import mlx.core as mx

        return mx.array([chance.randrange(1, vocabulary)])

    return sample


def sampler_of(model: LabModel, number: int, row: int) -> tuple[Sampler | None, int | None]:
    """The sampler of this number, and the rank of the token that it takes."""
    if not number:
        return None, 0
    return (second_best, 1) if number == SECOND else (forced(model.vocabulary, row), None)
