"""Merges Mamba caches with a history, checks masks, and decodes rows extracted from a batch."""

from typing import Any

from ....probes.kit import Result, Target, module_of, mx, require_names, tiny
from ....probes.model_batch import measure_rows

_SLOTS = 2
_LENGTHS = [1, 3]
_PROMPTS = [[5, 9, 2], [7, 3, 8]]
# Two steps: a row whose state is never updated is still right in the first.
_NEXT = [4, 6]
_TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red if merge or extract loses a row's state."""
    kind = getattr(module_of(target), "MambaCache", None)
    operation = target.name.rpartition(".")[2]
    require_names(kind, operation)
    problem = merge_rows(kind) if operation == "merge" else decode_extracted()
    return Result(bool(problem), problem or "every row keeps its state")


def merge_rows(kind: Any) -> str:
    """Merge rows with a history; describe a wrong state or mask, empty if all are right."""
    rows = [kind() for _ in _LENGTHS]
    for number, row in enumerate(rows):
        for slot in range(_SLOTS):
            row[slot] = mx.full((1, 1), number)
    batch = kind.merge(rows)
    held = [state.reshape(-1).tolist() for state in batch.cache]
    if held != [list(range(len(_LENGTHS)))] * _SLOTS:
        return f"the batch holds {held}"
    longest = max(_LENGTHS)
    if batch.make_mask(longest) is not None:
        return "rows without padding are masked"
    batch.prepare(lengths=_LENGTHS)
    mask = batch.make_mask(longest).tolist()
    wanted = [[i < length for i in range(longest)] for length in _LENGTHS]
    return "" if mask == wanted else f"mask of right padding {mask}, not {wanted}"


def decode_extracted() -> str:
    """Decode rows extracted from a tiny Mamba's batch; describe the first that is wrong."""
    model: Any = tiny("mlx-lm", "mamba").module
    rows = [model.make_cache() for _ in _PROMPTS]
    for cache, prompt in zip(rows, _PROMPTS, strict=True):
        decode(model, cache, prompt)
    batch = [layers[0].merge(list(layers)) for layers in zip(*rows, strict=True)]
    for idx, solo in enumerate(rows):
        row = [layer.extract(idx) for layer in batch]
        if any(layer.make_mask(1) is not None for layer in row):
            return f"row {idx} is masked"
        for step, token in enumerate(_NEXT):
            seen, wanted = (decode(model, cache, [token]) for cache in (row, solo))
            if not measure_rows([seen], [wanted]) <= _TOLERANCE:
                return f"row {idx} differs from a solo run, {step} tokens after extract"
    return ""


def decode(model: Any, cache: Any, tokens: list[int]) -> Any:
    return model(mx.array([tokens]), cache=cache)[0, -1]
