import importlib
import random
from importlib.metadata import version

import mlx.core as mx
import pytest
from packaging.version import Version

from mlx_patches.patches import catalogue
from mlx_patches.patches.caches.rotating import patch as rotating

from ..releases.conftest import is_installed, run_probe

if not is_installed("mlx-lm"):
    pytest.skip("no mlx-lm, whose class this is", allow_module_level=True)
caches = importlib.import_module("mlx_lm.models.cache")
if not hasattr(getattr(caches, "BatchRotatingKVCache", None), "extract"):
    pytest.skip("this mlx-lm extracts no rotating rows (before 0.28.4)", allow_module_level=True)

PATCH = catalogue.builtin().get("batch-rotating-extract")
TARGET = PATCH.targets[0]
RELEASE = Version(version("mlx-lm"))
KEEPS_UNUSED_SLOTS = Version("0.30.4") > RELEASE
SLICES_BELOW_ZERO = Version("0.30.4") <= RELEASE < Version("0.31.2")
WINDOWS = (4, 8, 16)
PADDINGS = ((0,), (3, 0), (0, 5, 1), (11, 0))


def feed(cache, rows):
    """Feed tokens: a token's key is its number, its value the negated number; all are unique."""
    keys = mx.array(rows, dtype=mx.float32)[:, None, :, None]
    return cache.update_and_fetch(keys, -keys)


def list_attended(cache, tokens):
    """The tokens that each of these tokens attends to in a solo cache, by the cache's own mask."""
    count = len(tokens)
    mask = cache.make_mask(count, window_size=cache.max_size, return_array=count > 1)
    keys, values = feed(cache, [tokens])
    assert mx.array_equal(keys, -values)
    numbers = [int(number) for number in keys[0, 0, :, 0].tolist()]
    if mask is None:
        return [sorted(numbers)]
    assert mask.shape[-1] == len(numbers)
    return [
        sorted(number for number, seen in zip(numbers, row, strict=True) if seen)
        for row in mask.tolist()
    ]


class Rows:
    """A rotating batch, and the chunks of each row."""

    def __init__(self, window, lengths, chunks=(), right=False, first=1000):
        total = max(lengths)
        padding = [total - length for length in lengths]
        starts = [first * (row + 1) for row in range(len(lengths))]
        real = [[*range(s, s + n)] for s, n in zip(starts, lengths, strict=True)]
        pads = [[-1] * pad for pad in padding]
        rows = [r + p if right else p + r for r, p in zip(real, pads, strict=True)]
        self.window = window
        self.history = [[] for _ in rows]
        self.batch = caches.BatchRotatingKVCache(window, [0] * len(rows) if right else padding)
        if right:
            self.batch.prepare(lengths=lengths, right_padding=padding)
        for size in chunks or [total]:
            self._feed([row[:size] for row in rows])
            rows = [row[size:] for row in rows]
        assert not any(rows)
        if right:
            self.batch.finalize()

    def _feed(self, rows):
        feed(self.batch, rows)
        for history, row in zip(self.history, rows, strict=True):
            if tokens := [token for token in row if token > 0]:
                history.append(tokens)

    def next(self, count=1, steps=1):
        for _ in range(steps):
            lasts = [history[-1][-1] for history in self.history]
            self._feed([[*range(last + 1, last + 1 + count)] for last in lasts])

    def join(self, other):
        self.batch.extend(other.batch)
        self.history += other.history

    def keep(self, rows):
        self.batch.filter(mx.array(rows))
        self.history = [self.history[row] for row in rows]

    def solo(self, row):
        cache = caches.RotatingKVCache(self.window)
        for tokens in self.history[row]:
            feed(cache, [tokens])
        return cache

    def check(self):
        """Every extracted row continues rightly: in decode past another wrap, and in chunks."""
        window = self.window
        for row, history in enumerate(self.history):
            for counts in ([1] * (window + 2) + [3, 1], [3, 1, 1, 2], [2 * window, 1]):
                extracted, solo = self.batch.extract(row), self.solo(row)
                assert type(extracted) is type(solo)
                assert (extracted.offset, extracted.max_size) == (solo.offset, solo.max_size)
                token = history[-1][-1] + 1
                for count in counts:
                    tokens = [*range(token, token + count)]
                    assert list_attended(extracted, tokens) == list_attended(solo, tokens)
                    token += count


@pytest.fixture
def patched(ungated):
    ungated("batch-rotating-extract")


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("window", WINDOWS)
def test_any_number_of_steps(window, padding, patched):
    rows = Rows(window, [12 - pad for pad in padding])
    for step in range(2 * window + 3):
        rows.check()
        for row, history in enumerate(rows.history if step > 1 else ()):
            tokens = [token for chunk in history for token in chunk]
            extracted = rows.batch.extract(row)
            held = [int(n) for n in extracted.keys[0, 0, :, 0].tolist()]
            assert held == tokens[-min(window, len(tokens)) :]
            assert extracted._idx == len(held)
        rows.next()


@pytest.mark.parametrize("seed", range(60))
def test_any_program(seed, patched):
    """Decode steps and chunks, while rows join and leave; prompts with either padding."""
    choose = random.Random(seed)
    window = choose.choice(WINDOWS)

    def some_rows(first):
        lengths = [choose.randint(1, 2 * window + 3) for _ in range(choose.randint(1, 3))]
        # A row may end several chunks before the longest row.
        left, chunks = max(lengths), []
        while left:  # in chunks of at least two tokens: one is a decode step
            size = choose.randint(2, 20)
            chunks.append(size if left - size > 1 else left)
            left -= chunks[-1]
        return Rows(window, lengths, chunks, right=choose.random() < 0.5, first=first)

    rows = some_rows(1000)
    for step in range(8):
        kind = choose.choice(("decode", "decode", "chunk", "join", "filter"))
        if kind == "decode":
            rows.next(steps=choose.randint(1, 25))
        elif kind == "chunk":
            rows.next(choose.randint(2, window + 2))
        elif kind == "join":
            rows.join(some_rows(10_000 * (step + 1)))
        else:
            count = len(rows.history)
            rows.keep(choose.sample(range(count), choose.randint(1, count)))
        rows.check()


def test_batch_is_not_changed(patched):
    rows = Rows(8, [6, 3])
    rows.next(steps=9)
    before = dict(vars(rows.batch))
    values = {name: value.tolist() for name, value in before.items() if hasattr(value, "tolist")}
    row = rows.batch.extract(0)
    feed(row, [[1, 2, 3]])
    feed(row, [[4]])
    after = vars(rows.batch)
    assert after.keys() == before.keys()
    assert all(after[name] is value for name, value in before.items())
    assert {name: after[name].tolist() for name in values} == values


def test_right_row_is_bit_identical(ungated):
    """Before the window wraps and with no unused slots, every release extracts rightly."""
    batches = []
    for window in (16, 64):
        for padding in PADDINGS:
            batch = caches.BatchRotatingKVCache(window, list(padding))
            for count in (8, 5):
                states = mx.random.normal((len(padding), 2, count, 4))
                batch.update_and_fetch(states, states + 1)
            assert not batch.rotated
            assert batch._idx == batch.keys.shape[2] == 13
            batches.append(batch)
    plain = [[batch.extract(row) for row in range(batch.keys.shape[0])] for batch in batches]
    ungated("batch-rotating-extract")
    for batch, rows in zip(batches, plain, strict=True):
        for row, wanted in enumerate(rows):
            same(batch.extract(row), wanted)


@pytest.mark.skipif(
    KEEPS_UNUSED_SLOTS or SLICES_BELOW_ZERO, reason="before 0.31.2 extract is wrong by itself"
)
def test_sound_release_is_bit_identical(ungated):
    rows = Rows(8, [6, 3])
    for _ in range(20):
        plain = [rows.batch.extract(row) for row in range(2)]
        manager = ungated("batch-rotating-extract")
        patched = [rows.batch.extract(row) for row in range(2)]
        manager.restore()
        for got, wanted in zip(patched, plain, strict=True):
            same(got, wanted)
        rows.next()


def same(got, wanted):
    assert vars(got).keys() == vars(wanted).keys()
    for name, value in vars(wanted).items():
        if isinstance(value, mx.array):
            assert value.dtype == vars(got)[name].dtype
            assert mx.array_equal(value, vars(got)[name])
        else:
            assert vars(got)[name] == value


def spoil(**fields):
    """A mutant of ``view_tokens`` whose view also has these fields."""

    def view(cache, view_tokens=rotating.view_tokens):
        spoilt = view_tokens(cache)
        for name, change in fields.items():
            setattr(spoilt, name, change(getattr(cache, name)))
        return spoilt

    return view


def same_array(value):
    return value


@pytest.mark.parametrize(
    ("mutant", "red"),
    [
        (same_array, KEEPS_UNUSED_SLOTS or SLICES_BELOW_ZERO),
        (spoil(left_padding=same_array), SLICES_BELOW_ZERO),
        (spoil(keys=same_array, values=same_array), KEEPS_UNUSED_SLOTS),
        (spoil(values=same_array), KEEPS_UNUSED_SLOTS),
        (spoil(left_padding=mx.zeros_like), True),
    ],
)
def test_mutant_turns_probe_red(mutant, red, ungated, monkeypatch):
    """A mutant of one part is red only in releases that have the defect of that part."""
    ungated("batch-rotating-extract")
    assert not run_probe(PATCH, TARGET).red
    monkeypatch.setattr(rotating, "view_tokens", mutant)
    assert run_probe(PATCH, TARGET).red is red
