"""Adapters that let a walk drive a release's batch engine, and their capabilities."""

import importlib
import inspect
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...core.arrays import mx
from ...evidence.results import NotApplicable
from .. import Generated, LabModel, engine
from ..engine import Image
from ..engine_scenarios import penalize, second_best
from ..generators import Request, Sampler, limit_caches, make_generator, samples_by_row
from .program import ANY

# A prefix cache that a walk can fill: at most six prefixes, of at least two tokens.
SMALL = {
    "APC_EXACT_MIN_TOKENS": "2",
    "APC_EXACT_PREFIX_GUARD_TOKENS": "1",
    "APC_EXACT_CACHE_ENTRIES": "6",
}
OVERRIDES = {"checkpoint_interval_tokens": 8, "checkpoint_entries": 6}
# Program options passed to the engine; ``grow`` applies to the cache classes instead.
SIZES = ("prefill_step_size", "prefill_batch_size", "completion_batch_size")
PASSED = (*SIZES, "max_kv_size", "kv_bits")


@dataclass
class Row:
    """A request of a walk, and its output so far.

    ``history`` is the text in ``cache``, from which the row continues; its first ``quantized``
    tokens were quantized. ``sampler`` takes the token of ``rank``, None for any.
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
    output: list[Generated] = field(default_factory=list)
    ended: bool = False

    @property
    def whole(self) -> list[int]:
        """The text before the first generated token."""
        return self.history + self.prompt

    @property
    def tokens(self) -> list[int]:
        return [one.token for one in self.output]

    @property
    def segments(self) -> list[list[int]]:
        size = self.segment or len(self.prompt)
        return [self.prompt[start : start + size] for start in range(0, len(self.prompt), size)]


class LmEngine:
    """mlx-lm's batch engine."""

    def __init__(self, model: LabModel, options: dict[str, Any]):
        options.pop("top_logprobs_k")
        self.generator = make_generator(model, 1, **options)
        self.release = self.generator.release
        if not hasattr(self.release, "insert_segments"):
            raise NotApplicable("the release's engine takes no segments and no caches of rows")

    def add(self, rows: Sequence[Row]) -> list[int]:
        own: dict[str, Any] = {}
        if any(row.processor for row in rows):
            own["logits_processors"] = [[penalize] if row.processor else [] for row in rows]
        if any(row.sampler for row in rows):
            own["samplers"] = [row.sampler for row in rows]
        if any(row.cache is not None for row in rows):
            own["caches"] = [row.cache for row in rows]
            own["all_tokens"] = [list(row.history) for row in rows]
        counts = [row.count for row in rows]
        return list(self.release.insert_segments([row.segments for row in rows], counts, **own))

    def copy(self, uid: int) -> tuple[Any, ...]:
        found: tuple[Any, ...] = tuple(self.release.extract_cache([uid])[uid])
        return found

    def remove(self, uid: int, keep: bool) -> tuple[Any, ...] | None:
        return tuple(self.release.remove([uid], return_prompt_caches=keep).get(uid, ()))


class VlmEngine:
    """mlx-vlm's batch engine."""

    def __init__(self, model: LabModel, options: dict[str, Any]):
        release = engine.generate_module(model).BatchGenerator
        taken = inspect.signature(release).parameters
        if "top_logprobs_k" not in taken:
            options.pop("top_logprobs_k")
        if "kv_bits" in options:
            options |= {"kv_group_size": engine.GROUP, "quantized_kv_start": 0}
        if missing := options.keys() - taken.keys():
            raise NotApplicable(f"the release's engine takes no {min(missing)}")
        if "prompt_kwargs" not in inspect.signature(release.insert).parameters:
            # The only caller of this engine prefills all prompts, with embeddings, in one batch.
            options |= {"prefill_batch_size": 8, "completion_batch_size": 24}
        self.generator = make_generator(model, 1, **options)
        self.release = self.generator.release
        # In the lab, an image is identified by its tokens.
        hashes = {"_apc_semantic_hash": 0, "_apc_image_hash": 0}
        self.arguments = hashes if "apc_manager" in options else {}

    def add(self, rows: Sequence[Row]) -> list[int]:
        requests = [
            Request(
                turn=0,
                prompt=row.prompt,
                count=row.count,
                processors=[penalize] if row.processor else None,
                sampler=row.sampler,
                image=row.image,
                arguments=self.arguments,
            )
            for row in rows
        ]
        return list(self.generator.insert_requests(requests))

    def remove(self, uid: int, keep: bool) -> tuple[Any, ...] | None:
        return () if self.release.remove(uid) else None


Engine = LmEngine | VlmEngine


def start(model: LabModel, options: Mapping[str, int], prefix: Any = None) -> Engine:
    """Start an engine with a program's options; ``prefix``: its prefix cache."""
    passed: dict[str, Any] = {name: options[name] for name in PASSED if name in options}
    passed["top_logprobs_k"] = model.vocabulary if "logprobs" in options else 0
    if prefix is not None:
        passed["apc_manager"] = prefix
    return (LmEngine if model.family.distribution == "mlx-lm" else VlmEngine)(model, passed)


def prefix_cache(small: bool) -> Any:
    """An mlx-vlm prefix cache, small enough for a walk to fill or with default settings."""
    for name in SMALL:
        os.environ.pop(name, None)
    try:
        make = importlib.import_module("mlx_vlm.apc").APCManager
    except ImportError as error:
        raise NotApplicable("this release has no prefix cache") from error
    if not small:
        return make()
    os.environ |= SMALL
    takes = "overrides" in inspect.signature(make).parameters
    return make(num_blocks=64, block_size=4, **({"overrides": OVERRIDES} if takes else {}))


def kinds(model: LabModel) -> list[frozenset[str]]:
    """The operations and settings supported here, one set per kind of walk."""
    release = start(model, {}).release
    insert = inspect.signature(release.insert).parameters
    rows = {"processor"} if "logits_processors" in insert else set()
    rows |= {"sampler"} if samples_by_row(model) else set()
    base = {"renew", "solo", "engines", *(["drop"] if hasattr(release, "remove") else [])}
    if model.family.distribution == "mlx-lm":
        base |= {"segment", "copy", "keep"}
        reuse = base | rows | {"reuse", "save", "quantize"}
        found = [base, base | rows, reuse, reuse]
        if _applies(limit_caches, model, 16):
            found.append(base | rows | {"max_kv_size"})
        return [frozenset(one) for one in found]
    taken = inspect.signature(type(release)).parameters
    found = [base, base | rows]
    quantizes = _applies(engine.quantize_caches, model, [0], 8)
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
    """Whether a call succeeds; scenarios report why it fails."""
    try:
        call(*arguments)
    except Exception:
        return False
    return True


@contextmanager
def small_steps(columns: int) -> Iterator[None]:
    """Let key buffers grow by ``columns``; 0 keeps the default of 256, longer than any walk."""
    names = ("mlx_lm.models.cache", "mlx_vlm.models.cache", "mlx_vlm.turboquant")
    places = [vars(sys.modules[name]).values() for name in names if name in sys.modules]
    kinds: set[Any] = {one for place in places for one in place if inspect.isclass(one)}
    own = {kind: kind.step for kind in kinds if isinstance(vars(kind).get("step"), int)}
    for kind in own:
        kind.step = columns or kind.step
    try:
        yield
    finally:
        for kind, step in own.items():
            kind.step = step


def sampler_of(model: LabModel, number: int, row: int) -> tuple[Sampler | None, int | None]:
    """A row's sampler by its number, and the rank of the token that it takes."""
    if number != ANY:
        return (second_best, 1) if number else (None, 0)
    chance = random.Random(row)
    return lambda logprobs: mx.array([chance.randrange(1, model.vocabulary)]), None
