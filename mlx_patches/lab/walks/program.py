"""A walk as one line of text: the operations of clients and a host on a batch engine, in order.

    mlx-lm:llama prefill_step_size=8; add row=1 length=20 tokens=6; step count=3; drop row=1 keep=1

The first part names the family and the engine's options. Every value is an integer and defaults to
0. Any operation can be removed: an operation whose row or cache is missing does nothing.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...core.errors import MlxPatchesError
from ...core.files import quote

# The settings of each operation; ``!`` marks required ones.
VERBS = {
    # Insert a row; consecutive ones share one call. The prompt is the start of text number
    # ``text``, in segments of length ``segment``. It continues from the cache of row ``after``,
    # once that row has ended. A trimmable cache loses its last ``trim`` tokens, which become the
    # whole prompt if ``again`` is 1.
    "add": "row! text length! tokens! engine processor sampler segment images after trim again",
    "step": "count!",  # step all engines in turn
    "drop": "row! keep",  # remove a row; ``keep``: keep its cache
    "copy": "row!",  # copy the row's cache out of the batch
    "save": "row!",  # save the row's kept cache to a file and load it again
    "quantize": "row!",  # quantize the row's kept cache
    "solo": "text length!",  # call the model outside the engine
    "renew": "engine",  # drain an engine, then start a new one
}
OPTIONS = {
    "prefill_step_size",
    "prefill_batch_size",
    "completion_batch_size",
    "max_kv_size",
    "kv_bits",
    "grow",  # growth of key buffers in columns; default 256
    "prefix",  # 1: a small prefix cache; 2: the release's default settings
    "logprobs",  # return the log-probabilities of all tokens
}
# A row's sampler: 0 is the engine's default, 1 takes the second likeliest token, ANY is random.
ANY = 2
LARGEST = 4096
# Text numbers of first prompts, which share their first tokens, and of later prompts.
FIRST, LATER = range(3), range(3, 9)
TOKENS = (1, 1, 2, 3, 5, 8, 12)


@dataclass(frozen=True)
class Operation:
    """An operation; missing settings are 0."""

    verb: str
    settings: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.settings.get(name, 0)

    def __str__(self) -> str:
        return " ".join([self.verb, *_pairs(self.settings)])


@dataclass(frozen=True)
class Program:
    """A walk: a family, engine options and operations."""

    family: str
    options: Mapping[str, int]
    operations: Sequence[Operation]

    @property
    def sequences(self) -> int:
        return sum(operation.verb == "add" for operation in self.operations)

    def __str__(self) -> str:
        head = " ".join([self.family, *_pairs(self.options)])
        return "; ".join([head, *map(str, self.operations)])


def parse(line: str) -> Program:
    """Parse a line; the error names its first wrong part."""
    head, *rest = (part.split() for part in line.split(";"))
    if not head or not re.fullmatch(r"[a-z-]+:\w+", head[0]):
        raise _wrong(line.partition(";")[0], "it starts with no family such as mlx-lm:llama")
    options = dict(_settings(head, OPTIONS))
    operations = []
    for words in filter(None, rest):
        words[:1] = ["solo" if words[0] == "alone" else words[0]]  # its former name
        if words[0] not in VERBS:
            raise _wrong(words[0], f"no operation; there are: {', '.join(VERBS)}")
        known = VERBS[words[0]].split()
        settings = dict(_settings(words, {name.rstrip("!") for name in known}))
        for name in known:
            if name.endswith("!") and not settings.get(name[:-1]):
                raise _wrong(" ".join(words), f"it needs {name[:-1]}, 1 or more")
        operations.append(Operation(words[0], settings))
    if not operations:
        raise _wrong(line, "it has no operation")
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
    return MlxPatchesError(f"not a walk that can be replayed: '{quote(part)}': {why}")


def _pairs(settings: Mapping[str, int]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items() if value]


def draw(family: str, seed: int, kinds: Sequence[frozenset[str]], window: int) -> Program:
    """Draw a random program; successive seeds cycle through the kinds of ``engines.kinds``.

    Prompts near the length of ``window``, the smallest one of the model, are likely.
    """
    return _Drawing(random.Random(seed), kinds[seed % len(kinds)], window).program(family)


class _Drawing:
    """The state of drawing a program."""

    def __init__(self, chance: random.Random, may: frozenset[str], window: int):
        self.chance, self.may = chance, may
        self.window = min(window, 64)  # longer windows are too slow
        self.rows = 0
        self.chunk = chance.choice([2, 3, 4, 5, 8, 16, 2048])
        self.engines = 2 if "engines" in may and chance.random() < 0.2 else 1

    def program(self, family: str) -> Program:
        operations = [self.add() for _ in range(self.chance.choice([1, 2, 3]))]
        weights = {"step": 42, "add": 22, "drop": 10, "copy": 8, "save": 4, "quantize": 2}
        weights |= {"solo": 2, "renew": 3}
        drawn = {name: n for name, n in weights.items() if name in {"step", "add", *self.may}}
        for verb in self.chance.choices([*drawn], [*drawn.values()], k=self.chance.randint(8, 24)):
            operations += self.several() if verb == "add" else [self.other(verb)]
            if verb in ("save", "quantize"):
                operations.append(self.add(after=operations[-1]["row"]))
        return Program(family, self.options(), tuple(operations))

    def options(self) -> dict[str, int]:
        chance, rows = self.chance, self.chance.choice([1, 2, 3, 8])
        options = {"prefill_step_size": self.chunk, "prefill_batch_size": rows}
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
        elif verb == "solo":
            settings |= {"text": chance.choice(LATER), "length": chance.randint(1, 9)}
        elif verb == "renew":
            settings["engine"] = chance.randrange(self.engines)
        else:
            settings["row"] = self.recent()
            if verb == "drop" and "keep" in self.may:
                settings["keep"] = chance.choice([0, 1])
        return Operation(verb, {name: value for name, value in settings.items() if value})

    def recent(self) -> int:
        return self.chance.randint(max(1, self.rows - 5), self.rows)

    def length(self) -> int:
        """A prompt length, mostly near the window or a chunk boundary."""
        chance, kind = self.chance, self.chance.random()
        near = chance.choice([-1, 0, 1, 2])
        if kind < 0.3:
            return chance.choice([1, 1, 2, 3])
        if kind < 0.5:
            return max(1, self.window + near)
        if kind < 0.7 and self.chunk < 100:
            return max(1, self.chunk * chance.choice([1, 2, 3]) + near)
        return chance.randint(1, 14) if kind < 0.9 else chance.randint(15, 40)
