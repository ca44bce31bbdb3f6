"""Uniform functions for batch caches, which the releases handle differently.

A cache here is the list that a model takes, one entry per layer. Each function follows the
installed release's engine, and raises NotApplicable if the release or the kind of cache does not
support it.
"""

import ast
import importlib
import inspect
import math
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import PurePath
from types import ModuleType
from typing import Any

from ..core.arrays import mx
from ..core.errors import is_refusal
from ..core.packages import MODELS
from ..evidence.results import BrokenEnvironment, NotApplicable, find_fault
from ..evidence.words import NOT_APPLICABLE, NOT_RUN, RED
from . import Cell, Family, LabModel

OWN = PurePath(__file__).parents[1]
# Config fields of special tokens: the image token, the token before an image, then the others.
MARKS = (
    *("image_token_id", "image_token_index", "vision_start_token_id", "image_start_token_id"),
    *("vision_end_token_id", "image_end_token_id", "video_token_id", "video_token_index"),
    *("video_start_token_id", "video_end_token_id", "audio_token_id", "audio_start_token_id"),
)
# The smallest quantization group of keys and values, and the head width of a tiny model.
GROUP = 32
# Model attributes with M-RoPE state that outlives a call.
REMEMBERED = ("_rope_deltas", "rope_deltas", "_position_ids")


@dataclass(frozen=True)
class Image:
    """A prompt with images: tokens, image grids, position ids and rope delta."""

    tokens: tuple[int, ...]
    grid: Any
    positions: Any
    delta: int

    def at(self, places: Sequence[int]) -> Any:
        """The position ids at these places; past the prompt, those of the last token."""
        last = len(self.tokens) - 1
        return self.positions[..., mx.array([min(place, last) for place in places])]


def batch_cache(model: LabModel, padding: Sequence[int]) -> list[Any]:
    """The caches of a left-padded batch.

    Engines that merge new rows right-pad them; hosts left-pad the same caches.
    """
    if not merges_new_rows(model):
        with unless_refused():
            return model.make_batch_cache(list(padding))
    cache = merge(model, [model.make_cache() for _ in padding])
    for layer in cache:
        _pad_left(layer, padding)
    return cache


def _pad_left(layer: Any, padding: Sequence[int]) -> None:
    if hasattr(layer, "caches"):
        for part in layer.caches:
            _pad_left(part, padding)
    elif hasattr(layer, "update_and_fetch"):
        _having(layer, "prepare").prepare(left_padding=list(padding))
    else:
        layer.left_padding = mx.array(list(padding))


def merge(model: LabModel, rows: Sequence[list[Any]]) -> list[Any]:
    merge_caches = getattr(generate_module(model), "_merge_caches", None)
    if merge_caches is not None:
        with unless_refused():
            return list(merge_caches(list(rows)))
    return [_having(layers[0], "merge").merge(list(layers)) for layers in zip(*rows, strict=True)]


def empty_batch(model: LabModel, count: int) -> list[Any]:
    """The caches of a batch of empty rows, to be fed right-padded."""
    if not merges_new_rows(model):
        raise NotApplicable("the release's engine right-pads only rows that have a history")
    return merge(model, [model.make_cache() for _ in range(count)])


def merges_new_rows(model: LabModel) -> bool:
    """Whether the release's engine starts a batch by merging empty row caches."""
    generate = generate_module(model)
    return hasattr(generate, "PromptProcessingBatch") and hasattr(generate, "_merge_caches")


def prepare(cache: list[Any], lengths: Sequence[int]) -> None:
    padding = [max(lengths) - length for length in lengths]
    for layer in cache:
        _having(layer, "prepare").prepare(lengths=list(lengths), right_padding=padding)


def evaluates_caches(model: LabModel) -> bool:
    generator = getattr(generate_module(model), "BatchGenerator", None)
    return generator is not None and "_cache_eval_interval" in inspect.getsource(generator)


def finalize(cache: list[Any]) -> None:
    """Convert right padding to left padding."""
    for layer in cache:
        _having(layer, "finalize").finalize()


def settles(model: LabModel) -> bool:
    """Whether the engine feeds the last prompt token in a separate call, after finalizing."""
    return model.family.distribution == "mlx-lm"


def settle(cache: list[Any]) -> None:
    """Finalize the caches that have ``finalize``, after a left-padded prompt."""
    for layer in cache:
        if _lacking(layer, "finalize") is None:
            layer.finalize()


def extend(cache: list[Any], other: list[Any]) -> list[Any]:
    """Append the rows of ``other`` to ``cache``; neither may be used afterwards."""
    for layer, more in zip(cache, other, strict=True):
        _having(layer, "extend").extend(more)
    return cache


def keep(cache: list[Any], rows: Sequence[int]) -> None:
    for layer in cache:
        _having(layer, "filter").filter(mx.array(list(rows), mx.int32))


def extract(cache: list[Any], row: int) -> list[Any]:
    return [_having(layer, "extract").extract(row) for layer in cache]


def trim(cache: list[Any], count: int) -> None:
    for layer in cache:
        if not _having(layer, "is_trimmable").is_trimmable():
            raise NotApplicable(f"{type(layer).__name__} is not trimmable")
    for layer in cache:
        layer.trim(count)


def restore_copies(cache: list[Any]) -> list[Any]:
    """New caches from copies of the state of ``cache``, like a restore from a file."""
    return [_restore_copy(layer) for layer in cache]


def quantize_caches(
    model: LabModel, padding: Sequence[int], bits: int
) -> tuple[list[Any], list[Callable[[], Any]]]:
    """The caches of a left-padded batch with quantized keys and values, and makers for a row.

    The makers, one per layer, create the cache of one row, quantized if the batch's layer is.
    """
    make = getattr(generate_module(model), "_make_cache", None)
    if make is None or "kv_bits" not in inspect.signature(make).parameters:
        raise NotApplicable("the release has no quantized batch cache")
    group = {"kv_bits": bits, "kv_group_size": GROUP}
    with unless_refused():
        batch = make(model.module, list(padding), **group)
    if not any(hasattr(layer, "bits") for layer in batch):
        raise NotApplicable("the release quantizes none of its layers")

    def plain_layer(index: int) -> Any:
        return model.make_cache()[index]

    makers: list[Callable[[], Any]] = []
    for index, (layer, plain) in enumerate(zip(batch, model.make_cache(), strict=True)):
        if hasattr(layer, "bits"):
            # The quantized counterpart of the row's plain cache.
            own = importlib.import_module(type(plain).__module__)
            common = model.family.part("models.cache")
            kind = getattr(own, "QuantizedKVCache", None) or common.QuantizedKVCache
            makers.append(partial(kind, group_size=GROUP, bits=bits))
        else:
            makers.append(partial(plain_layer, index))
    return batch, makers


def answer_window(model: LabModel) -> int | None:
    """How many answer tokens match a prefill of the same text; None: all of them.

    Unlimited OCR attends to the whole prompt but only to the newest tokens of its answer.
    """
    rings = [layer for layer in model.make_cache() if hasattr(layer, "prefill_length")]
    return min((layer.window_size - 1 for layer in rings), default=None)


def own_positions(model: LabModel) -> int:
    """The number of dimensions of the position ids that the engine passes for a text.

    0 if it passes none with a prompt: the model then keeps or computes them.
    """
    if not _hands_positions(model.family):
        return 0
    if model.family not in _dimensions:
        positions, *_ = model.module.get_rope_index(mx.array([[1, 2]]))
        _dimensions[model.family] = int(positions.ndim)
    return _dimensions[model.family]


_dimensions: dict[Family, int] = {}


@cache
def _hands_positions(family: Family) -> bool:
    nodes = ast.walk(_embedding(family))
    return any(isinstance(n, ast.keyword) and n.arg == "rope_deltas" for n in nodes)


@cache
def _list_remembered(family: Family) -> list[tuple[str, bool]]:
    """The model attributes that the embedding code sets, and whether it sets them to None."""
    return [
        (target.attr, getattr(node.value, "value", ...) is None)
        for node in ast.walk(_embedding(family))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr in REMEMBERED
    ]


def _embedding(family: Family) -> ast.Module:
    """The parsed source of a family's ``get_input_embeddings`` methods; empty if it has none.

    Checks every class of the family, since a model may delegate the embeddings to a submodule.
    """
    whole = family.module()
    modules = [whole, *(value for value in vars(whole).values() if inspect.ismodule(value))]
    kinds = [kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)]
    own = [kind for kind in kinds if kind.__module__.startswith(whole.__name__)]
    methods = {getattr(kind, "get_input_embeddings", None) for kind in own}
    sources = [textwrap.dedent(inspect.getsource(method)) for method in methods if method]
    return ast.parse("".join(sources))


def with_image(model: LabModel, text: Sequence[int], *patches: tuple[int, int]) -> Image:
    """A prompt with images of (height, width) merged patches in place of some of its text.

    The model computes the position ids, because the shift after an image depends on the family.
    """
    if not any(hasattr(model.module, name) for name in REMEMBERED[:2]):
        raise NotApplicable("the model keeps no rope deltas")
    if not hasattr(model.module, "get_rope_index"):
        raise NotApplicable("the model has no get_rope_index")
    if not own_positions(model) and all(dropped for _, dropped in _list_remembered(model.family)):
        raise NotApplicable("the embeddings of a prompt come without its positions")
    _mark(model)
    merged = int(_setting(model, "spatial_merge_size"))
    image = int(_setting(model, *MARKS[:2]))
    start = int(_setting(model, *MARKS[2:4]))
    # An image spans only as many positions as patches on its longer side; later tokens move back.
    marked = [one for sides in patches for one in (start, *[image] * math.prod(sides))]
    ids = [1 + token % (model.vocabulary - len(MARKS) - 1) for token in text]
    ids[2 : 2 + len(marked)] = marked
    grid = mx.array([[1, *(side * merged for side in sides)] for sides in patches])
    positions, deltas = model.module.get_rope_index(mx.array([ids]), grid)
    delta = int(mx.array(deltas).reshape(-1)[0].item())
    if delta == 0:
        raise NotApplicable("an image shifts no positions")
    return Image(tuple(ids), grid, positions, delta)


def position_kwargs(
    model: LabModel,
    deltas: Sequence[int],
    places: Sequence[Sequence[int]] | None,
    new: bool = False,
    images: Sequence[Image | None] = (),
) -> dict[str, Any]:
    """The position arguments of an M-RoPE call; may set attributes on the model.

    Args:
        model: the model; the result is empty without M-RoPE.
        deltas: the rope delta of each row.
        places: per row, the text positions of its prompt tokens; None for a decode step.
        new: whether the call feeds the start of the prompts.
        images: per row, its prompt with an image, or None.
    """
    if not hasattr(model.module, "get_rope_index"):
        return {}
    column = mx.array(list(deltas), mx.int32)[:, None]
    dimensions = own_positions(model)
    if dimensions:
        if places is None:
            return {"rope_deltas": column}
        flat = dimensions == 2 and all(image is None for image in images)
        rows = [mx.array([list(line)]) for line in places]
        if not flat:
            rows = [mx.stack([row] * 3) for row in rows]
            rows = [
                row if image is None else image.at(line)
                for row, image, line in zip(rows, images, places, strict=True)
            ]
        ids = mx.concatenate(rows, axis=0 if flat else 1)
        return {"rope_deltas": column, "position_ids": ids}
    if places is None:
        captures = _capture(model) is not None and hasattr(model.module, "_rope_deltas")
        return {"rope_deltas": column} if captures else {}
    # The engine embeds each request separately, then feeds one batch.
    for image in images if new else ():
        embed(model, image)
    return {}


def embed(model: LabModel, image: Image | None) -> None:
    """Set the attributes that the embedding code sets; ``image`` None: a text prompt."""
    if image is None:
        for name, dropped in _list_remembered(model.family):
            if dropped:
                setattr(model.module, name, None)
        return
    positions, deltas = model.module.get_rope_index(mx.array([image.tokens]), image.grid)
    model.module._position_ids = positions
    model.module._rope_deltas = mx.array(deltas).reshape(-1, 1)


def capture_deltas(model: LabModel, deltas: Sequence[int]) -> list[int]:
    """The rope deltas that the engine uses to decode rows after their prompts."""
    capture = _capture(model)
    if capture is None or not hasattr(model.module, "get_rope_index") or own_positions(model):
        return list(deltas)
    found = capture(model.module, len(deltas))
    return list(deltas) if found is None else [int(x) for x in found.reshape(-1).tolist()]


def _capture(model: LabModel) -> Callable[..., Any] | None:
    batch = getattr(generate_module(model), "PromptProcessingBatch", None)
    found: Callable[..., Any] | None = getattr(batch, "_capture_rope_deltas", None)
    return found


_marked: list[tuple[Any, str, Any]] = []


def _mark(model: LabModel) -> None:
    """Map special tokens into the small vocabulary, which lacks their real ids."""
    for config in _configs(model):
        for index, name in enumerate(MARKS, 1):
            if hasattr(config, name):
                _marked.append((config, name, getattr(config, name)))
                setattr(config, name, model.vocabulary - index)


def unmark() -> None:
    """Restore the real ids of special tokens, since a text may contain the mapped ones."""
    while _marked:
        setattr(*_marked.pop())


def _configs(model: LabModel) -> list[Any]:
    return [getattr(model.module, top, None) for top in ("config", "args", "config_for_vision")]


def _setting(model: LabModel, *names: str) -> Any:
    """The first of these settings found in the model's config or vision config."""
    tops = _configs(model)
    for place in [*tops, *(getattr(top, "vision_config", None) for top in tops)]:
        for name in names:
            found = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
            if found is not None:
                return found
    raise NotApplicable(f"its configuration has no {names[0]}")


def forget(model: LabModel) -> None:
    """Reset the model state left by earlier calls."""
    for name in REMEMBERED:
        if getattr(model.module, name, None) is not None:
            setattr(model.module, name, None)


def judge_error(error: Exception) -> Cell:
    if fault := find_fault(error):
        return Cell(NOT_RUN, fault)
    if isinstance(error, NotApplicable) or is_refusal(error):
        return Cell(NOT_APPLICABLE, str(error))
    return Cell(RED, where(error))


def where(error: BaseException) -> str:
    """Format an exception with its innermost line in an installed package or a patch.

    Raises:
        BrokenEnvironment: the environment is at fault, so it is no detail of a result.
    """
    if fault := find_fault(error):
        raise BrokenEnvironment(fault) from error
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if _package_file(frame.filename)]
    frame = (inside or frames)[-1]
    file = _package_file(frame.filename) or "/".join(PurePath(frame.filename).parts[-2:])
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} ({file}:{frame.lineno})"


def _package_file(path: str) -> str | None:
    """The path of a release or patch file, from its package on; None for other files."""
    file = PurePath(path)
    if file.is_relative_to(OWN):
        inside = file.relative_to(OWN)
        return f"{OWN.name}/{inside}" if inside.parts[0] == "patches" else None
    starts = [index for index, part in enumerate(file.parts) if part in MODELS]
    return "/".join(file.parts[starts[-1] :]) if starts else None


def generate_module(model: LabModel) -> ModuleType:
    return model.family.part("generate")


@contextmanager
def unless_refused() -> Iterator[None]:
    """Raise NotApplicable if the release refuses a kind of cache."""
    try:
        yield
    except Exception as error:
        refusal = _find_refusal(error)
        if refusal is None:
            raise
        raise NotApplicable(str(refusal)) from error


def _find_refusal(error: BaseException | None) -> BaseException | None:
    """The exception by which a release refuses a kind of cache; None if there is none.

    It may be the context of another exception: mlx-lm's ``stats`` divides by the time of the
    refused batch, which is 0.
    """
    while error is not None:
        if isinstance(error, NotImplementedError):
            return error
        # Phrases from the engines' messages.
        words = ("does not yet support", "is not supported")
        if isinstance(error, ValueError) and any(one in str(error) for one in words):
            return error
        error = error.__context__
    return None


def _having(layer: Any, method: str) -> Any:
    lacking = _lacking(layer, method)
    if lacking is not None:
        raise NotApplicable(f"{type(lacking).__name__} has no {method}")
    return layer


def _lacking(layer: Any, method: str) -> Any:
    """The cache, or nested cache, that lacks the method; None if all have it."""
    parts = getattr(layer, "caches", None)
    inside = parts if isinstance(parts, (list, tuple)) else ()
    # Looked up on the class: a property that raises still counts.
    return next((one for one in (layer, *inside) if not hasattr(type(one), method)), None)


def _restore_copy(layer: Any) -> Any:
    from mlx.utils import tree_map

    kind: Any = type(layer)
    state = tree_map(_copy, _having(layer, "state").state)
    meta = [layer.meta_state] if hasattr(layer, "meta_state") else []
    if hasattr(kind, "from_state"):
        return kind.from_state(state, *meta)
    if isinstance(kind.state, property) and kind.state.fset is None:
        raise NotApplicable(f"{kind.__name__} cannot be given a state")
    fresh = kind.__new__(kind)
    fresh.state = state
    if meta:
        fresh.meta_state = meta[0]
    return fresh


def _copy(value: Any) -> Any:
    if not isinstance(value, mx.array):
        return value
    copied = mx.array(value)
    mx.eval(copied)
    return copied
