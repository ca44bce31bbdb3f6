"""The scripted model: a language of a few hundred tokens whose next-token logits are known.

The logits are a table indexed by the last token, so an answer is known on paper:

- ring words: each has eight successors with logits 8.0, 7.75, ... 6.25. A text is a list of ranks.
- loop words: the best successor of each is itself, so penalties and biases change the path.
- scripts: fixed sequences, among them tool calls and a thinking section, up to the end of turn.
- context words: one attention head over them adds to the logits, so that every token of the context
  and its position count. ``logits`` computes this head in plain Python.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

EOS, USER, PAD = "<|im_end|>", "<|user|>", "<|pad|>"
IMAGE, VIDEO, START, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
SPECIAL = (EOS, USER, PAD, IMAGE, VIDEO, START, END)
# Tokens outside the byte-level vocabulary that are not special.
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]")
CALL = '{"name": "f", "arguments": {"x": 1}}'
BROKEN = '{"name": "f", "arguments": {"x": }}'
ARGUMENTS = '{"x": 1}'
_SYLLABLES = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
RING = [f" {one}" for one in _SYLLABLES[:61]]
LOOP = [f" {one}" for one in _SYLLABLES[61:69]]
STORY = [f" {one}" for one in _SYLLABLES[69:76]]
THOUGHT = [f" {one}" for one in _SYLLABLES[76:88]]
CONTEXT = [f" {one.title()}" for one in _SYLLABLES[:32]]
# Every conversation begins so: prompts of a few tokens crash mlx_lm.server 0.31.3.
PREAMBLE = "".join(THOUGHT[:11])
# The prompt words that begin a script.
TELL, USE, BREAK, PONDER, WRITE = " tell", " call", " break", " ponder", " write"
THUS = " thus"
WORDS = (*RING, *LOOP, *STORY, *THOUGHT, *CONTEXT, TELL, USE, BREAK, PONDER, WRITE, THUS)
JSON = (CALL, BROKEN, ARGUMENTS)
TOKENS = (*SPECIAL, *MARKERS, *(chr(byte) for byte in range(256)), *WORDS, *JSON)
# The token ids: bytes are between the markers and the words.
FIRST_BYTE = len(SPECIAL) + len(MARKERS)

SIZE, VOCABULARY, HEAD = 512, 448, 64
# The dimensions of the head in use: those of the vectors, half of them turned by the others, and
# one for the mark.
WIDTH = 16
# How far each ring word's successors are from it, best first, and the logits of all.
STRIDES = (1, 4, 9, 15, 22, 30, 39, 49)
TOP, GAP = 8.0, 0.25
LADDER = [TOP - GAP * rank for rank in range(len(STRIDES))]
STEP = 0.5
NEVER, BYTE, IMPOSSIBLE, CERTAIN = -60.0, -55.0, -3000.0, 30.0
# The mark that a broken call's prompt carries, and the weight of what the head writes.
MARK = 8.0
WRITTEN = 8.0
THETA = 10000.0
_NOTHING = [0.0] * (WIDTH + 1)
# The least distance of two logits that rounding cannot swap.
MARGIN = 0.01

Logits = list[float]
# Changes logits, given the prompt and the tokens after it.
Processor = Callable[[Logits, Sequence[int], Sequence[int]], Logits]


class Language:
    """One scripted model. ``other``: another step along the ring, and Mistral's tool calls.

    ``adapted``: with the adapter, which negates the head's output.
    """

    def __init__(self, other: bool = False, adapted: bool = False):
        self.other = other
        self.strides = tuple(2 * one % len(RING) for one in STRIDES) if other else STRIDES
        self.ids = {token: number for number, token in enumerate(TOKENS)}
        # Characters above 127 stand for single bytes, and are never encoded by name.
        draw = random.Random(7)
        self.vectors: dict[int, list[float]] = {}
        for word in CONTEXT:
            self.vectors[self.ids[word]] = [draw.choice((-2.0, 2.0)) for _ in range(WIDTH)] + [0.0]
        # The last dimension tells a broken call from a good one.
        self.vectors[self.ids[BREAK]] = [0.0] * WIDTH + [MARK]
        # The mark has no part in the head's scores.
        self.query, self.key = (
            [[draw.gauss(0, 0.25) for _ in range(WIDTH)] + [0.0] for _ in range(WIDTH)]
            for _ in range(2)
        )
        self.heads: dict[int, list[float]] = {
            self.ids[word]: [draw.gauss(0, 0.3) for _ in range(WIDTH)] + [0.0] for word in CONTEXT
        }
        self.heads[self.ids[BROKEN]] = [0.0] * WIDTH + [40.0]
        self.written = -WRITTEN if adapted else WRITTEN

    @cached_property
    def table(self) -> list[Logits]:
        """The logits of every token after each token, without the head's part."""
        rows = [self._plain() for _ in range(VOCABULARY)]
        for number, word in enumerate(RING):
            for logit, stride in zip(LADDER, self.strides, strict=True):
                rows[self.ids[word]][self.ids[RING[(number + stride) % len(RING)]]] = logit
        for number, word in enumerate(LOOP):
            for rank in range(len(LOOP)):
                follower = LOOP[(number + rank) % len(LOOP)]
                rows[self.ids[word]][self.ids[follower]] = TOP - STEP * rank
        call = ("[TOOL_CALLS]", "f", "[ARGS]", ARGUMENTS) if self.other else ("<tool_call>", CALL)
        for script in (
            (TELL, *STORY, EOS),
            (WRITE, *STORY, EOS),
            (USE, *call, *(() if self.other else ("</tool_call>",)), EOS),
            (BREAK, "<tool_call>"),
            (PONDER, "<think>", *THOUGHT, "</think>", THUS, EOS),
        ):
            for token, follower in pairwise(script):
                rows[self.ids[token]][self.ids[follower]] = CERTAIN
        rows[self.ids["<tool_call>"]][self.ids[BROKEN]] = 0.0
        rows[self.ids[BROKEN]][self.ids["</tool_call>"]] = CERTAIN
        # A context word's successors are those within half a turn: no text repeats one word.
        for number, word in enumerate(CONTEXT):
            for step in range(1, len(CONTEXT) // 2):
                follower = CONTEXT[(number + step) % len(CONTEXT)]
                rows[self.ids[word]][self.ids[follower]] = 0.0
        return rows

    def _plain(self) -> Logits:
        row = [NEVER] * VOCABULARY
        for token in JSON:
            row[self.ids[token]] = IMPOSSIBLE
        # A grammar that allows any white space must not prefer it, and an object ends at once.
        for letter in '{"ba':
            row[self.ids[letter]] = BYTE
        row[self.ids["}"]] = BYTE + 1
        return row

    # Text and tokens.

    def encode(self, text: str) -> list[int]:
        """The tokens of a text: names, or bytes for what has none."""
        return list(_encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        kept = (TOKENS[token] for token in tokens if token >= len(SPECIAL))
        return "".join(kept)

    def chat(self, messages: Sequence[dict[str, str]], thinking: bool = True) -> list[int]:
        """The prompt of a conversation: what the folder's chat template writes."""
        text = PREAMBLE
        for one in messages:
            if one["role"] == "assistant":
                text += f" {one['content'].strip()}{EOS}"
            else:
                text += f"{USER} {one['content'].strip()}"
        off = not thinking and text.endswith(PONDER)
        return self.encode(text + ("<think></think>" if off else ""))

    # The model.

    def logits(self, tokens: Sequence[int]) -> Logits:
        read = self._read(tuple(tokens))
        own = self.vectors.get(tokens[-1], _NOTHING)
        if not any(read):
            return self.table[tokens[-1]]
        state = [one + self.written * two for one, two in zip(own, read, strict=True)]
        share = sum(one * one for one in own)
        # The embedding's square is SIZE, so only what the head writes changes the norm.
        scale = math.sqrt(SIZE / (SIZE - share + sum(one * one for one in state)))
        row = [logit * scale for logit in self.table[tokens[-1]]]
        for token, head in self.heads.items():
            row[token] += scale * sum(a * b for a, b in zip(head, state, strict=True))
        return row

    def _read(self, tokens: tuple[int, ...]) -> list[float]:
        """What the attention head reads: the mean of the context words' vectors, weighted."""
        if not any(token in self.vectors for token in tokens):
            return _NOTHING
        query = self._rotate(tokens[-1], len(tokens) - 1, True)
        scores = [
            sum(a * b for a, b in zip(query, self._rotate(token, place, False), strict=False))
            / math.sqrt(HEAD)
            if token in self.vectors and any(query)
            else 0.0
            for place, token in enumerate(tokens)
        ]
        high = max(scores)
        weights = [math.exp(score - high) for score in scores]
        total, read = sum(weights), [0.0] * (WIDTH + 1)
        for weight, token in zip(weights, tokens, strict=True):
            for place, value in enumerate(self.vectors.get(token, ())):
                read[place] += weight / total * value
        return read

    @lru_cache(maxsize=4096)  # noqa: B019 - there are two languages in a process
    def _rotate(self, token: int, place: int, query: bool) -> list[float]:
        vector = self.vectors.get(token)
        if vector is None:
            return _NOTHING
        matrix = self.query if query else self.key
        flat = [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]
        half, turned = WIDTH // 2, [0.0] * WIDTH
        for i in range(half):
            angle = place * THETA ** (-2 * i / HEAD)
            cosine, sine = math.cos(angle), math.sin(angle)
            turned[i] = flat[i] * cosine - flat[i + half] * sine
            turned[i + half] = flat[i] * sine + flat[i + half] * cosine
        return turned

    def greedy(
        self, prompt: Sequence[int], count: int, processor: Processor | None = None
    ) -> tuple[list[int], bool]:
        """The greedy answer, and whether it is cut where rounding may decide the next token."""
        answer: list[int] = []
        while len(answer) < count:
            row = self.logits([*prompt, *answer])
            row = processor(list(row), prompt, answer) if processor else row
            first = max(row)
            best = row.index(first)
            second = max(
                max(row[:best], default=-math.inf), max(row[best + 1 :], default=-math.inf)
            )
            if first - second < MARGIN:
                return answer, True
            answer.append(best)
            if TOKENS[answer[-1]] == EOS:
                break
        return answer, False

    def ranks(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """The rank of each token of a ring text among its candidates; -1 if it is none."""
        places = {self.ids[word]: number for number, word in enumerate(RING)}
        found, last = [], prompt[-1]
        for token in answer:
            step = (places.get(token, 0) - places.get(last, 0)) % len(RING)
            known = token in places and last in places and step in self.strides
            found.append(self.strides.index(step) if known else -1)
            last = token
        return found


def log_softmax(row: Logits) -> Logits:
    high = max(row)
    total = math.log(sum(math.exp(one - high) for one in row)) + high
    return [one - total for one in row]


@lru_cache(maxsize=4096)
def _encode(text: str) -> tuple[int, ...]:
    """Greedy by longest name: the pre-tokenizer's pattern splits a text in the same way."""
    ids, found, at = _by_length(), [], 0
    while at < len(text):
        for length, names in ids:
            if (number := names.get(text[at : at + length])) is not None:
                found.append(number)
                at += length
                break
        else:
            found += [FIRST_BYTE + byte for byte in text[at].encode()]
            at += 1
    return tuple(found)


@lru_cache(maxsize=1)
def _by_length() -> list[tuple[int, dict[str, int]]]:
    named = [(t, n) for n, t in enumerate(TOKENS) if not FIRST_BYTE <= n < FIRST_BYTE + 256]
    lengths = sorted({len(token) for token, _ in named}, reverse=True)
    return [(one, {t: n for t, n in named if len(t) == one}) for one in lengths]


# What the penalties of OpenAI-compatible servers see.
WINDOW, EVERYTHING, ANSWER = "the last 20 tokens", "all tokens", "the answer's tokens"
RECENT = "the answer's last 20 tokens"
SIGHTS = (WINDOW, EVERYTHING, ANSWER, RECENT)


def penalize(kind: str, amount: float, sight: str, size: int = 20) -> Processor:
    """A penalty: repetition, presence or frequency, over the tokens in ``sight``."""

    def process(row: Logits, prompt: Sequence[int], answer: Sequence[int]) -> Logits:
        tokens = [*answer] if sight in (ANSWER, RECENT) else [*prompt, *answer]
        tokens = tokens[-size:] if sight in (WINDOW, RECENT) else tokens
        for token, count in Counter(tokens).items():
            if kind == "repetition":
                row[token] = row[token] * amount if row[token] < 0 else row[token] / amount
            else:
                row[token] -= amount * (count if kind == "frequency" else 1)
        return row

    return process
