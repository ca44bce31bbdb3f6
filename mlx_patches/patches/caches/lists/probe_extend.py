"""Adds a prompt to the release's batch generator while another row decodes."""

from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx, tiny

_PROMPTS = ([5, 9, 2, 7], [8, 6, 10])
_TOKENS = 12


def probe(target: Target) -> Result:
    """Red if the generator raises, or a row's output differs from its solo run."""
    return _probe_layers(target) if target.name == "_extend_cache" else _probe_prompts(target)


def _probe_layers(target: Target) -> Result:
    extend: Any = getattr(module_of(target), target.name)
    caches = import_module("mlx_vlm.models.cache")
    if not hasattr(caches, "CacheList"):
        caches = import_module("mlx_lm.models.cache")
    lists = [caches.CacheList(caches.BatchKVCache(padding)) for padding in ([2, 0], [1, 0])]
    feed(lists[0][0], [0, 1], 4)
    feed(lists[1][0], [10, 11], 3)
    joined = extend([lists[0]], [lists[1]])[0][0]
    rows = [(0, 2), (1, 4), (10, 2), (11, 3)]
    if wrong := find_wrong_row(joined, rows):
        return Result(True, f"in a list of caches, {wrong}")
    batch, chunks = caches.BatchKVCache([0, 0]), caches.ChunkedKVCache(8)
    feed(batch, [0, 1], 2)
    feed(chunks, [2], 3)
    try:
        joined = extend([batch], [chunks])[0]
    except ValueError as refusal:
        return Result(False, f"lists join; a chunked cache is refused: {refusal}")
    wrong = find_wrong_row(joined, [(0, 2), (1, 2), (2, 3)])
    return Result(bool(wrong), wrong or "every row holds its own tokens")


def feed(cache: Any, rows: list[int], tokens: int) -> None:
    numbers = mx.array(rows, mx.float32)[:, None, None, None]
    fed = mx.broadcast_to(numbers, (len(rows), 1, tokens, 2))
    cache.update_and_fetch(fed, fed)


def find_wrong_row(cache: Any, rows: list[tuple[int, int]]) -> str:
    """Name the first row that does not hold its number ``length`` times; empty if all do."""
    for row, (number, length) in enumerate(rows):
        held = cache.extract(row)
        if held.offset != length or held.keys[0, 0, :length, 0].tolist() != [number] * length:
            return f"row {row} holds wrong tokens"
    return ""


def _probe_prompts(target: Target) -> Result:
    """Join a prompt while one other row decodes."""
    from ....lab import EXACT, generators
    from ....lab.compare import compare_generated
    from ....lab.rows import generate_solo

    model = tiny(target.distribution, "paligemma")  # right in a batch in every release
    first, late = _PROMPTS
    generated = generators.generate(model, [first], late, _TOKENS)
    cell = compare_generated(
        generated, [generate_solo(model, prompt, _TOKENS) for prompt in _PROMPTS], EXACT
    )
    return Result(cell.verdict == "red", cell.detail, cell.figure)
