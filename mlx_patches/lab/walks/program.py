"""A walk as one line of text: what clients and a host do to a release's batch engine, in order.

    mlx-lm:llama prefill_step_size=8; add row=1 length=20 tokens=6; step count=3; drop row=1 keep=1

The first part names the family and the engine's options. Every value is a whole number, and what
is left out is 0. Any operation can be left out: one whose row or cache is not there does nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...core.errors import MlxPatchesError
from ...core.files import quoted

# Operation to its settings; ``!`` marks those that it needs.
VERBS = {
    # A new row. Rows added one after the other come in one call. Prompts are the start of text
    # number ``text``; ``segment``: the prompt comes in segments of this length; ``after``: it goes
    # on from the cache that this row left, once it has ended. If such a cache can be trimmed, it
    # loses its last ``trim`` tokens, which are also the whole prompt if ``again`` is 1.
    "add": "row! text length! tokens! engine processor sampler segment images after trim again",
    "step": "count!",  # steps of every engine, in turns
    "drop": "row! keep",  # a client leaves; ``keep``: its row's cache is kept
    "copy": "row!",  # the row's cache is copied out of the batch
    "save": "row!",  # the cache that the row left is saved in a file and loaded again
    "quantize": "row!",  # the cache that the row left is quantized
    "alone": "text length!",  # the model is used by itself
    "renew": "engine",  # an engine ends when its rows have, and a new one starts
}
OPTIONS = {
    "prefill_step_size",
    "prefill_batch_size",
    "completion_batch_size",
    "max_kv_size",
    "kv_bits",
    "grow",  # buffers of keys grow by this many columns, in place of 256
    "prefix",  # 1: a small prefix cache, as tests need it; 2: the release's own settings
    "logprobs",  # the engine returns the log-probabilities of all tokens
}
# A row's sampler: 0 is the engine's own, 1 takes the second likeliest token, and this one any.
ANY = 2
LARGEST = 4096
# Texts of first prompts, which share their first tokens, and of later ones.
FIRST, LATER = range(3), range(3, 9)
TOKENS = (1, 1, 2, 3, 5, 8, 12)


@dataclass(frozen=True)
class Operation:
    """One operation; a setting that it does not have is 0."""

    verb: str
    settings: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.settings.get(name, 0)

    def __str__(self) -> str:
        return " ".join([self.verb, *_pairs(self.settings)])


@dataclass(frozen=True)
class Program:
    """A walk: a family, the options of the engine, and operations."""

    family: str
    options: Mapping[str, int]
    operations: Sequence[Operation]

    @property
    def sequences(self) -> int:
        """How many rows it adds."""
        return sum(operation.verb == "add" for operation in self.operations)

    def __str__(self) -> str:
        head = " ".join([self.family, *_pairs(self.options)])
        return "; ".join([head, *map(str, self.operations)])


def parse(line: str) -> Program:
    """The program that a line says.

    Raises:
        MlxPatchesError: it is not a program; the message names the first part that is wrong.
    """
    head, *rest = (part.split() for part in line.split(";"))
    if not head or not re.fullmatch(r"[a-z-]+:\w+", head[0]):
        raise _wrong(line.partition(";")[0], "it starts with no family such as mlx-lm:llama")
    options = dict(_settings(head, OPTIONS))
    operations = []
    for words in filter(None, rest):
        if words[0] not in VERBS:
            raise _wrong(words[0], f"no operation; there are: {', '.join(VERBS)}")
        known = VERBS[words[0]].split()
        settings = dict(_settings(words, {name.rstrip("!") for name in known}))
        for name in known:
            if name.endswith("!") and not settings.get(name[:-1]):
                raise _wrong(" ".join(words), f"it needs {name[:-1]}, 1 or more")
        operations.append(Operation(words[0], settings))
    return Program(head[0], options, tuple(operations))


def _settings(words: Sequence[str], known: set[str]) -> Iterator[tuple[str, int]]:
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name not in known:
            raise _wrong(word, f"no setting of {words[0]}; there are: {', '.join(sorted(known))}")
        if not re.fullmatch(r"[0-9]{1,4}", value) or int(value) > LARGEST:
            raise _wrong(word, f"not a whole number from 0 to {LARGEST}")
        yield name, int(value)


def _wrong(part: str, why: str) -> MlxPatchesError:
    return MlxPatchesError(f"not a walk that can be replayed: '{quoted(part)}': {why}")


def _pairs(settings: Mapping[str, int]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items() if value]


def draw(family: str, seed: int, kinds: Sequence[frozenset[str]], window: int) -> Program:
    """A random program of one of these kinds, each in turn.

    Args:
        family: the family's name in the line.
        seed: the same seed gives the same program.
        kinds: what the operations of a program may be and have; see ``engines.kinds``.
        window: the smallest sliding window of the model; prompts as long as it are likely.
    """
    return _Drawing(random.Random(seed), kinds[seed % len(kinds)], window).program(family)


class _Drawing:
    """A program that is being drawn."""

    def __init__(self, chance: random.Random, may: frozenset[str], window: int):
        self.chance, self.may = chance, may
        self.window = min(window, 64)  # a longer one takes too long
        self.rows = 0
        self.piece = chance.choice([2, 3, 4, 5, 8, 16, 2048])
        self.engines = 2 if "engines" in may and chance.random() < 0.2 else 1

    def program(self, family: str) -> Program:
        operations = [self.add() for _ in range(self.chance.choice([1, 2, 3]))]
        weights = {"step": 42, "add": 22, "drop": 10, "copy": 8, "save": 4, "quantize": 2}
        weights |= {"alone": 2, "renew": 3}
        drawn = {name: n for name, n in weights.items() if name in {"step", "add", *self.may}}
        for verb in self.chance.choices([*drawn], [*drawn.values()], k=self.chance.randint(8, 24)):
            operations += self.several() if verb == "add" else [self.other(verb)]
            if verb in ("save", "quantize"):
                operations.append(self.add(after=operations[-1]["row"]))
        return Program(family, self.options(), tuple(operations))

    def options(self) -> dict[str, int]:
        chance, rows = self.chance, self.chance.choice([1, 2, 3, 8])
        options = {"prefill_step_size": self.piece, "prefill_batch_size": rows}
        options["completion_batch_size"] = max(rows, chance.choice([2, 3, 4, 8]))
        options["grow"] = chance.choice([0, 0, 1, 2, 3, 5])
        options["logprobs"] = chance.choice([0, 1, 1])
        if "max_kv_size" in self.may:
            options["max_kv_size"] = chance.choice([8, 12, 16])
        options |= {name: n for name, n in (("kv_bits", 8), ("prefix", 1)) if name in self.may}
        return {name: value for name, value in options.items() if value}

    def several(self) -> list[Operation]:
        chance = self.chance
        if "reuse" in self.may and chance.random() < 0.6:
            return [self.add(self.recent()), *([self.add()] if chance.random() < 0.3 else [])]
        return [self.add() for _ in range(chance.choice([1, 1, 2, 3, 4]))]

    def add(self, after: int = 0) -> Operation:
        chance, may = self.chance, self.may
        settings = {"text": chance.choice(LATER if after else FIRST), "length": self.length()}
        settings |= {"tokens": chance.choice(TOKENS), "engine": chance.randrange(self.engines)}
        if "processor" in may and chance.random() < 0.3:
            settings["processor"] = 1
        if "sampler" in may and chance.random() < 0.3:
            settings["sampler"] = chance.choice([1, ANY])
        if "segment" in may and chance.random() < 0.2:
            settings["segment"] = chance.randint(1, 20)
        if "images" in may and chance.random() < 0.6:
            settings["images"] = chance.choice([1, 2])
            settings["length"] = max(settings["length"], 16)
        if after:
            settings["after"] = after
            settings["trim"] = chance.choice([0, 0, 1, 1, 2, 3, 5, 9])
            settings["again"] = int(bool(settings["trim"]) and chance.random() < 0.4)
        self.rows += 1
        return Operation("add", {"row": self.rows} | {n: v for n, v in settings.items() if v})

    def other(self, verb: str) -> Operation:
        chance, settings = self.chance, {}
        if verb == "step":
            settings["count"] = chance.choice([1, 1, 1, 2, 2, 3, 5])
        elif verb == "alone":
            settings |= {"text": chance.choice(LATER), "length": chance.randint(1, 9)}
        elif verb == "renew":
            settings["engine"] = chance.randrange(self.engines)
        else:
            settings["row"] = self.recent()
            if verb == "drop" and "keep" in self.may:
                settings["keep"] = chance.choice([0, 1])
        return Operation(verb, {name: value for name, value in settings.items() if value})

    def recent(self) -> int:
        """One of the rows that were added last."""
        return self.chance.randint(max(1, self.rows - 5), self.rows)

    def length(self) -> int:
        """The length of a prompt: mostly near the window, or near where a piece ends."""
        chance, kind = self.chance, self.chance.random()
        near = chance.choice([-1, 0, 1, 2])
        if kind < 0.3:
            return chance.choice([1, 1, 2, 3])
        if kind < 0.5:
            return max(1, self.window + near)
        if kind < 0.7 and self.piece < 100:
            return max(1, self.piece * chance.choice([1, 2, 3]) + near)
        return chance.randint(1, 14) if kind < 0.9 else chance.randint(15, 40)
