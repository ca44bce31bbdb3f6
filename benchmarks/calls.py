"""Python frames and microseconds of one call of each attribute that several patches change.

    python benchmarks/calls.py [--all] [--rounds 7] [--json FILE] [--before FILE]

Every attribute is called without patches and with every patch that the release needs. ``frames``
counts the frames of mlx_patches between the caller and the release's own function. ``run`` counts
all calls of mlx_patches functions within the call, nested ones included. ``us`` is the best
round's median. ``--before`` prints the figures of another run beside these: to compare with
another commit, run this file on its checkout (``PYTHONPATH=CHECKOUT``) with ``--json``. Run it in
an environment with a release and mlx-patches.

The last line compares a declared ``argument`` with a wrapper written by hand around the same
function: it may cost 0.3 us more.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import mlx_patches

PACKAGE = Path(mlx_patches.__file__).parent
# Parts of the package that never run in a host.
TOOLS = tuple(f"{PACKAGE / part}/" for part in ("lab", "probes"))
# Calls a round; each gets a new cache, because many calls change it.
CALLS = 60
HEADS, TOKENS, WIDTH = 2, 4, 64
PROMPT = [1, 2, 3, 4]
Call = Callable[[], Any]


class Figures(NamedTuple):
    """The cost of one call; ``frames`` is None where the release's function did not run."""

    us: float
    frames: int | None = 0
    run: int = 0


class Site:
    """An attribute, by its path ``module:Qualified.name``, and the patches that change it."""

    def __init__(self, path: str, patches: list[str]):
        self.path, self.patches = path, patches
        self.unpatched: Figures | None = None
        self.now: Figures | None = None
        self.problem = ""

    def live(self) -> tuple[Any, Any]:
        """The class or module that has the attribute, and the attribute."""
        module, _, name = self.path.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, attribute = name.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, vars(owner).get(attribute)

    def as_dict(self) -> dict[str, Any]:
        """The site's row in the JSON file."""
        figures = {"unpatched": self.unpatched, "now": self.now}
        row = {name: one._asdict() for name, one in figures.items() if one}
        return {"site": self.path, "patches": self.patches, "problem": self.problem, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--all", action="store_true", help="also print attributes that one patch changes"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures")
    parser.add_argument(
        "--before", metavar="FILE", type=Path, help="print another run's figures, too"
    )
    options = parser.parse_args()
    sites = measure(options.rounds)
    rows = {site.path: site.as_dict() for site in sites}
    if options.json:
        options.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    before = json.loads(options.before.read_text()) if options.before else []
    print_table(rows, {row["site"]: row for row in before}, options.all)
    declared, plain = verb_cost(options.rounds)
    print(f"argument(): {declared:.2f} us, a wrapper by hand {plain:.2f} us")


def measure(rounds: int) -> list[Site]:
    """Measure every attribute that the patches change in this release."""
    ids = {outcome.patch for outcome in mlx_patches.audit().outcomes}
    sites = [site for site in find_sites(ids) if callable_here(site)]
    originals = {site.path: codes(site.live()[1]) for site in sites}
    for _ in range(rounds):
        for site in sites:
            best(site, "unpatched", originals[site.path])
        mlx_patches.apply(patches=ids)
        changed = find_changed()
        for site in sites:
            site.patches = changed.get(site.path, [])
            if site.patches:
                best(site, "now", originals[site.path])
        mlx_patches.restore()
    return [site for site in sites if site.patches]


def find_sites(ids: set[str]) -> list[Site]:
    """Every attribute that a patch changes in this release, sorted by path."""
    mlx_patches.apply(patches=ids)
    changed = find_changed()
    mlx_patches.restore()
    return [Site(path, patches) for path, patches in sorted(changed.items())]


def find_changed() -> dict[str, list[str]]:
    """Attribute path to the patches that change it, or will once its module is imported."""
    changed: dict[str, list[str]] = {}
    for outcome in mlx_patches.status():
        if str(outcome.status) in ("pending", "applied", "late"):
            changed.setdefault(outcome.target, []).append(outcome.patch)
    return changed


def callable_here(site: Site) -> bool:
    """Whether the release has the attribute. Imports its module.

    Returns False for a model's call that only one patch changes, without importing the model.
    """
    module, _, name = site.path.partition(":")
    if ".models." in module and name.endswith("__call__") and len(site.patches) < 2:
        return False
    try:
        site.live()
    except (ImportError, AttributeError):
        return False
    return True


def best(site: Site, field: str, own: set[CodeType]) -> None:
    """Measure one round, and keep it if it is faster than those before."""
    found: Figures | None = getattr(site, field)
    try:
        prepare = preparation(site)
        if found is None:
            frames, run = count_frames(prepare(), own)
            found = Figures(float("inf"), frames, run)
        us = min(found.us, statistics.median(times(prepare)))
        setattr(site, field, found._replace(us=us))
    except NotCalledError as error:
        site.problem = f"not called: {error}"
    except Exception as error:
        if field == "now":
            site.problem = f"{type(error).__name__}: {error}"


def times(prepare: Callable[[], Call]) -> Iterator[float]:
    """Microseconds of ``CALLS`` calls."""
    for _ in range(CALLS):
        call = prepare()
        start = time.perf_counter_ns()
        call()
        yield (time.perf_counter_ns() - start) / 1e3


def verb_cost(rounds: int) -> tuple[float, float]:
    """Microseconds of a call of a function with a declared argument, and with a plain wrapper."""
    from mlx_patches.core.verbs import argument

    def call_plain(instance: Any, x: Any, mask: Any = None, cache: Any = None) -> Any:
        return mask

    def change(mask: Any) -> Any:
        return mask

    def plain(instance: Any, x: Any, mask: Any = None, cache: Any = None) -> Any:
        return call_plain(instance, x, change(mask), cache)

    (target,) = argument("mlx_lm.models.any:Model.__call__", "mask", change)
    declared = target.factory(call_plain)
    best = [float("inf"), float("inf")]
    for _ in range(10 * rounds):
        for index, function in enumerate((declared, plain)):
            start = time.perf_counter_ns()
            for _ in range(1000):
                function(1, 2, mask=3)
            best[index] = min(best[index], (time.perf_counter_ns() - start) / 1e6)
    return best[0], best[1]


# -- frames ----------------------------------------------------------------------------


def codes(attribute: Any) -> set[CodeType]:
    """The code objects of the release's own functions behind an attribute."""
    functions = [getattr(attribute, name, None) for name in ("fget", "__func__")]
    below = [inspect.unwrap(f) for f in (attribute, *functions) if callable(f)]
    return {f.__code__ for f in below if hasattr(f, "__code__")}


def count_frames(call: Call, own: set[CodeType]) -> tuple[int | None, int]:
    """mlx_patches frames above the first call of the release's function, and its calls in all."""
    above: int | None = None
    run = 0

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal above, run
        if event != "call":
            return
        run += is_ours(frame)
        if above is None and frame.f_code in own:
            above, caller = 0, frame.f_back
            while caller is not None and caller.f_code is not count_frames.__code__:
                above += is_ours(caller)
                caller = caller.f_back

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return above, run


def is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of mlx_patches, its lab and probes excepted."""
    file = frame.f_code.co_filename
    return file.startswith(f"{PACKAGE}/") and not file.startswith(TOOLS)


# -- how each attribute is called ------------------------------------------------------


class NotCalledError(Exception):
    """This file cannot call the attribute; the message has the reason."""


def preparation(site: Site) -> Callable[[], Call]:
    """Return a function that prepares a call, so that only the call itself is timed."""
    owner, attribute = site.live()
    name = site.path.rpartition(":")[2].rpartition(".")[2]
    if not isinstance(owner, type):
        return function(owner, name)
    if owner.__name__ == "LRUPromptCache":
        return lambda: prompt_cache(owner)
    if name == "__call__" and ".models." in owner.__module__:
        return model_call(owner)
    if owner.__name__ not in CACHES:
        raise NotCalledError(f"no way to make a {owner.__name__}")
    if isinstance(attribute, classmethod) or name == "merge":
        return lambda: merge_rows(owner)
    if isinstance(attribute, property) or name not in METHODS:
        return lambda: read(fill_cache(owner), name)
    return lambda: METHODS[name](fill_cache(owner))


def array(*shape: int) -> Any:
    """An evaluated array of ones."""
    import mlx.core as mx

    ones = mx.ones(shape)
    mx.eval(ones)
    return ones


CACHES: dict[str, Callable[[type], Any]] = {
    "KVCache": lambda cls: cls(),
    "RotatingKVCache": lambda cls: cls(8),
    "ChunkedKVCache": lambda cls: cls(8),
    "QuantizedKVCache": lambda cls: cls(WIDTH, 4),
    "TurboQuantKVCache": lambda cls: cls(4),
    "ArraysCache": lambda cls: cls(2, [0, 1]),
    "BatchKVCache": lambda cls: cls([0, 1]),
    "BatchRotatingKVCache": lambda cls: cls(8, [0, 1]),
    "BatchQuantizedKVCache": lambda cls: cls([0, 1], WIDTH, 4),
    "BatchTurboQuantKVCache": lambda cls: cls([0, 1], 4),
}
# Batch class to the solo class of its rows.
ROWS_OF = {
    "BatchKVCache": "KVCache",
    "BatchRotatingKVCache": "RotatingKVCache",
    "BatchQuantizedKVCache": "QuantizedKVCache",
    "BatchTurboQuantKVCache": "TurboQuantKVCache",
}


def fill_cache(cls: type) -> Any:
    """Make a cache with a few tokens: of two rows if it is a batch cache, else of one."""
    import mlx.core as mx

    cache = CACHES[cls.__name__](cls)
    rows = 2 if cls.__name__.startswith(("Batch", "Arrays")) else 1
    if hasattr(cache, "update_and_fetch"):
        mx.eval(cache.update_and_fetch(*keys_and_values(rows, TOKENS)))
    else:
        cache[0], cache[1] = array(rows, TOKENS, WIDTH), array(rows, HEADS, WIDTH)
    return cache


def keys_and_values(rows: int, tokens: int) -> tuple[Any, Any]:
    """Keys and values (rows, heads, tokens, width)."""
    return array(rows, HEADS, tokens, WIDTH), array(rows, HEADS, tokens, WIDTH)


def rows_in(cache: Any) -> int:
    """How many rows a cache has."""
    return 2 if type(cache).__name__.startswith(("Batch", "Arrays")) else 1


def read(cache: Any, name: str) -> Call:
    """Read an attribute, or call it if it is a method; the call passes no arguments."""
    found = inspect.getattr_static(type(cache), name, None)
    if inspect.isfunction(found):
        return getattr(cache, name)
    return lambda: getattr(cache, name)


def update(cache: Any, name: str = "update_and_fetch", tokens: int = 1) -> Call:
    """Feed the keys and values of ``tokens`` tokens."""
    keys, values = keys_and_values(rows_in(cache), tokens)
    method = getattr(cache, name)
    return lambda: method(keys, values)


def keep_one(cache: Any) -> Call:
    """Keep the first row."""
    import mlx.core as mx

    rows = mx.array([0])
    return lambda: cache.filter(rows)


def add_rows(cache: Any) -> Call:
    """Add another batch's rows."""
    other = fill_cache(type(cache))
    return lambda: cache.extend(other)


def end_prompt(cache: Any) -> Call:
    """Finalize a prompt with right padding."""
    if rows_in(cache) == 2 and hasattr(cache, "prepare"):
        cache.prepare(lengths=[TOKENS, TOKENS - 1], right_padding=[0, 1])
        if hasattr(cache, "update_and_fetch"):
            update(cache, tokens=TOKENS)()
    return cache.finalize


METHODS: dict[str, Callable[[Any], Call]] = {
    "update_and_fetch": update,
    "_update_in_place": lambda cache: update(cache, "_update_in_place"),
    "_update_concat": lambda cache: update(cache, "_update_concat", TOKENS),
    "filter": keep_one,
    "extend": add_rows,
    "extract": lambda cache: lambda: cache.extract(0),
    "trim": lambda cache: lambda: cache.trim(1),
    "make_mask": lambda cache: lambda: cache.make_mask(1),
    "prepare": lambda cache: lambda: cache.prepare(lengths=[1, 1], right_padding=[0, 0]),
    "finalize": end_prompt,
    "advance": lambda cache: lambda: cache.advance(1),
}


def merge_rows(cls: type) -> Call:
    """Merge two rows."""
    one = getattr(importlib.import_module(cls.__module__), ROWS_OF.get(cls.__name__, cls.__name__))
    rows = [fill_cache(one), fill_cache(one)]
    if cls.__name__ == "ArraysCache":
        rows = [row.extract(0) for row in rows]
    merge = cls.merge  # type: ignore[attr-defined]
    return lambda: merge(rows)


def prompt_cache(cls: type) -> Call:
    """Look up a prompt whose beginning is cached."""
    kept = cls()
    cache = importlib.import_module("mlx_lm.models.cache").KVCache
    kept.insert_cache("model", PROMPT, [fill_cache(cache)])
    return lambda: kept.fetch_nearest_cache("model", [*PROMPT, 5])


def function(module: Any, name: str) -> Callable[[], Call]:
    """Prepare a call of a module's function."""
    import mlx.core as mx

    if name == "create_attention_mask":
        cls = importlib.import_module(f"{module.__name__.rpartition('.')[0]}.cache").BatchKVCache

        def mask() -> Call:
            cache, hidden, make = fill_cache(cls), array(2, 1, WIDTH), getattr(module, name)
            return lambda: make(hidden, cache)

        return mask
    if (
        name in ("generate_step", "speculative_generate_step")
        and module.__name__ == "mlx_lm.generate"
    ):
        model = lab_model("mlx-lm", "llama").module
        models = [model] * (2 if name.startswith("speculative") else 1)
        prompt = mx.array(PROMPT)
        return lambda: lambda: next(getattr(module, name)(prompt, *models, max_tokens=1))
    raise NotCalledError("this file has no arguments for this function")


def model_call(cls: type) -> Callable[[], Call]:
    """A decode step of a batch of two unequal rows."""
    package, _, family = cls.__module__.partition(".models.")
    if cls.__name__ not in ("Model", "LanguageModel"):
        raise NotCalledError("only whole models are called")
    model = lab_model(package.replace("_", "-"), family.partition(".")[0])

    def step() -> Call:
        import mlx.core as mx

        cache = model.make_batch_cache([0, 1])
        mx.eval(model.call([PROMPT, [0, *PROMPT[1:]]], cache))
        return lambda: model.call([[1], [2]], cache)

    return step


_models: dict[tuple[str, str], Any] = {}


def lab_model(distribution: str, family: str) -> Any:
    """Build a tiny model with the lab, once."""
    if (distribution, family) not in _models:
        lab = importlib.import_module("mlx_patches.lab")
        build = importlib.import_module("mlx_patches.lab.build").build
        try:
            _models[distribution, family] = build(lab.Family(distribution, family))
        except lab.NotBuilt as error:
            raise NotCalledError(f"no tiny {family}: {error}") from error
    return _models[distribution, family]


# -- the table -------------------------------------------------------------------------


def print_table(rows: dict[str, Any], before: dict[str, Any], every: bool) -> None:
    """Print the sites that several patches change, or with ``every`` all sites."""
    heads = ("frames", "run", "us")
    earlier = [f"{head} before" for head in heads] if before else []
    print("  ".join(f"{head:>{max(7, len(head))}}" for head in ("us bare", *earlier, *heads)))
    missing = []
    for path in sorted({*rows, *before}):
        row, old = rows.get(path, {}), before.get(path, {})
        patches = max(row.get("patches", []), old.get("patches", []), key=len)
        if len(patches) < 2 and not every:
            continue
        name = f"{path} ({', '.join(patches)})"
        if "now" not in row:
            missing.append(f"{name}: {row.get('problem') or 'not changed now'}")
            continue
        cells = [cell(row, "unpatched", "us", 7)]
        cells += [cell(old, "now", head, len(f"{head} before")) for head in heads if before]
        cells += [cell(row, "now", head, 7) for head in heads]
        print("  ".join(cells), f" {name}")
    for line in missing:
        print(line)


def cell(row: dict[str, Any], state: str, head: str, width: int) -> str:
    """A figure padded to its column's width; a dash where there is none."""
    figure = row.get(state, {}).get(head)
    text = "-" if figure is None else f"{figure:.1f}" if head == "us" else str(figure)
    return f"{text:>{max(7, width)}}"


if __name__ == "__main__":
    main()
