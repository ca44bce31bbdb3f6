"""Scenarios of a single request: the release must agree with itself.

They run only if named: ``mlx-patches lab --scenario own-prefill``.
"""

import itertools
import operator
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.arrays import mx
from ..evidence.outside import PREFILL
from ..evidence.results import NotApplicable
from ..evidence.words import GREEN, RED
from . import Cell, LabModel, engine
from .build import build
from .compare import differences
from .generators import force_tokens
from .offline import WholeModel
from .reference import DATA, TOKENS
from .registry import NAMED, scenario
from .rows import LENGTHS, Row, decode, prefill, prefill_solo, rows_of, solo, steps
from .variants import has_variant, vary
from .whole import embed_prompt

# Prompt length and chunk size; 0: no chunks.
PROMPTS = ((min(LENGTHS), 0), (max(LENGTHS), 0), (max(LENGTHS), 6))
WHOLE = 2048
# Name parts of the config fields for training, sizes and tokens.
UNREAD = (*DATA["no-setting"], "_id", "vocab", "max_position", "num_hidden_layers")
# Per rope type: the fields that a text beyond the original length does not use.
_TYPE = {"type", "rope_type"}
NO_SETTINGS = dict.fromkeys(("linear", "llama3", "yarn"), _TYPE)
NO_SETTINGS["longrope"] = _TYPE | {"factor", "short_factor"}


# A label, then the actual and the expected logits by position.
Compared = tuple[str, Mapping[int, Any], Mapping[int, Any]]


@scenario(PREFILL, NAMED)
def own_prefill(model: LabModel) -> Cell:
    """Compare each step of ``generate_step``, with and without chunked prefill, with one prefill.

    The sampler ignores the logits and takes the next token of a fixed text.
    """

    def compare_prompts() -> Iterator[Compared]:
        for name, text, image in texts(model):
            engine.forget(model)
            expected = dict(enumerate(run_prefill(model, text, image)))
            for length, chunk in PROMPTS if image is None else PROMPTS[1:]:
                engine.forget(model)
                logits = run_steps(model, text, length, chunk or WHOLE, image)
                end = length + (engine.answer_window(model) or WHOLE)
                found = {at: one for at, one in logits.items() if at < end}
                chunks = f" in chunks of {chunk}" if chunk else ""
                yield f"{name} after a prompt of {length}{chunks}", found, expected

    return worst(model, compare_prompts())


@scenario("saved", NAMED)
def run_saved(model: LabModel) -> Cell:
    """Saving and loading the cache of a row or a batch does not change its output."""
    caches = model.family.part("models.cache")
    if not hasattr(caches, "save_prompt_cache"):
        raise NotApplicable("the release has no save_prompt_cache")

    with tempfile.TemporaryDirectory() as folder:
        files = (f"{folder}/{number}.safetensors" for number in itertools.count())

        def through_a_file(cache: list[Any]) -> list[Any]:
            file = next(files)
            caches.save_prompt_cache(file, cache)
            return list(caches.load_prompt_cache(file))

        return worst(model, _run_copies(model, through_a_file))


def _run_copies(
    model: LabModel, through_a_file: Callable[[list[Any]], list[Any]]
) -> Iterator[Compared]:
    def goes_on(rows: list[Row], cache: list[Any], save: bool = True) -> None:
        """Decode; save before the window is full, shortly after, and well past it."""
        for count in (3, steps(model), 2):
            cache = through_a_file(cache) if save else cache
            decode(model, rows, cache, count)

    for length in LENGTHS:
        row = rows_of(model, [length])[0]
        goes_on([row], prefill_solo(model, row))
        yield "a row", row.logits, solo(model, row)
    with suppress(NotApplicable):
        row = rows_of(model, [min(LENGTHS)])[0]
        cache = prefill_solo(model, row)
        decode(model, [Row(tuple(reversed(row.text)), row.chunks)], cache, 2)
        cache = through_a_file(cache)
        engine.trim(cache, 2)
        decode(model, [row], cache, 4)
        yield "a trimmed row", row.logits, solo(model, row)
    with suppress(NotApplicable):
        unsaved, rows = rows_of(model, LENGTHS), rows_of(model, LENGTHS)
        try:
            goes_on(unsaved, prefill(model, unsaved), save=False)
        except NotApplicable:
            raise
        except Exception as error:
            raise NotApplicable(f"not even unsaved: {engine.where(error)}") from error
        goes_on(rows, prefill(model, rows))
        for row, other in zip(rows, unsaved, strict=True):
            yield "a batch", row.logits, other.logits


@scenario("config-fields", NAMED)
def config_fields(model: LabModel) -> Cell:
    """Every rope type, rope setting and scalar of the config changes the logits.

    Red if a rope type is ignored; the detail also lists other fields without effect. A family whose
    rope base has no effect has no RoPE, or reads its config elsewhere.
    """
    plain = run_edited(model, dict)
    if plain is None:
        raise NotApplicable("the release does not read its small config")
    ignored, still = [], []
    for kind in NO_SETTINGS if has_variant(model.family, "yarn") else ():
        change = partial(vary, variant=kind)
        varied = run_edited(model, change)
        if same(plain, varied):
            ignored.append(kind)
        elif varied is not None:
            settings = change({})["rope_scaling"].keys() - NO_SETTINGS[kind]
            for name in sorted(settings):
                if same(varied, run_edited(model, partial(change_field, name=name, change=change))):
                    still.append(f"{name} of {kind}")
    fill = partial(operator.or_, scalars(model))
    whole = run_edited(model, fill)
    for name in scalars(model) if whole is not None else ():
        if same(whole, run_edited(model, partial(change_field, name=name, change=fill))):
            still.append(name)
    if ignored and "rope_theta" in still:
        raise NotApplicable("nothing is rotated by rope_theta: the rope types can move nothing")
    detail = f"ignores the rope types {', '.join(ignored)}; " if ignored else ""
    moved = f"these move nothing: {', '.join(still)}" if still else "each field moves the logits"
    return Cell(RED if ignored else GREEN, detail + moved, float(len(ignored) + len(still)))


def run_edited(model: LabModel, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The logits of a text with an edited config; None if the release refuses it."""
    text = [list(rows_of(model, [1])[0].text[:TOKENS])]
    try:
        changed = build(model.family, edit=edit)
        return changed.call(text, changed.make_cache())
    except Exception:
        return None


def same(logits: Any, others: Any) -> bool:
    """Whether a changed config was accepted and left the logits unchanged."""
    return others is not None and bool(mx.array_equal(logits, others).item())


def scalars(model: LabModel) -> dict[str, Any]:
    """The numeric and boolean settings of a model that should change the logits."""
    own = getattr(model.module, "args", None) or getattr(model.module, "config", None) or {}
    settings = own if isinstance(own, dict) else vars(own)
    return {
        name: value
        for name, value in {**settings, **(model.config.get("text_config") or {})}.items()
        if isinstance(value, (bool, int, float)) and not any(one in name for one in UNREAD)
    }


def change_field(
    config: dict[str, Any], name: str, change: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> dict[str, Any]:
    """The config after ``change``, with a different value for a field at any depth."""

    def other(value: Any) -> Any:
        if isinstance(value, list):
            return [2 * one for one in value]
        return not value if isinstance(value, bool) else 2 * value + isinstance(value, int)

    return {
        key: other(value)
        if key == name
        else change_field(value, name)
        if isinstance(value, dict)
        else value
        for key, value in change(config).items()
    }


def worst(model: LabModel, compared: Iterable[Compared]) -> Cell:
    """The first red comparison, else the one with the largest difference."""
    result = Cell(GREEN)
    for name, found, expected in compared:
        cell = differences([found], [expected], model.tolerance)
        if cell.verdict == RED:
            return replace(cell, detail=f"{name}: {cell.detail.removeprefix('row 0, ')}")
        result = max(cell, result, key=lambda one: one.figure or 0.0)
    return result


def texts(model: LabModel) -> Iterator[tuple[str, list[int], engine.Image | None]]:
    """Name, tokens and image of a plain text and, if the lab can make it, of one with an image."""
    # Any image token in the text would be treated as an image.
    most = model.vocabulary - len(engine.MARKS) - 1
    drawn = rows_of(model, [1])[0].text[: max(LENGTHS) + steps(model)]
    text = [1 + token % most for token in drawn]
    yield "a text", text, None
    if model.family.distribution != "mlx-lm":
        with suppress(NotApplicable):
            image = engine.with_image(model, text[: max(LENGTHS)], (2, 2))
            yield "an image", [*image.tokens, *text[max(LENGTHS) :]], image


def run_prefill(model: LabModel, text: Sequence[int], image: engine.Image | None) -> Any:
    """The log-probabilities (length, vocabulary) of a text from a single call."""
    ids, cache = mx.array([list(text)]), model.make_cache()
    if model.family.distribution == "mlx-lm":
        out = model.module(ids, cache=cache)
    else:
        whole, inputs = whole_model(model, image), inputs_of(ids, image)
        own = embed_prompt(whole, text, inputs)
        inputs = {name: value for name, value in inputs.items() if name not in READ}
        out = whole.language_model(ids, cache=cache, **inputs, **own)
    logits = getattr(out, "logits", out)[0].astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def run_steps(
    model: LabModel,
    text: Sequence[int],
    length: int,
    chunk: int,
    image: engine.Image | None,
    cache: list[Any] | None = None,
    start: int = 0,
) -> dict[int, Any]:
    """The log-probabilities by position that ``generate_step`` passes to its sampler.

    The first ``length`` tokens are the prompt, of which ``cache`` holds those before ``start``.
    """
    options = {
        "prefill_step_size": chunk,
        "prompt_cache": model.make_cache() if cache is None else cache,
    }
    prompt, rest = mx.array(list(text[start:length])), text[length:]
    if model.family.distribution == "mlx-lm":
        output = force_tokens(model, rest, prompt, model.module, **options)
    else:
        inputs = {**inputs_of(prompt[None], image), **options}
        output = force_tokens(model, rest, prompt[None], whole_model(model, image), **inputs)
    return dict(enumerate(output[: len(rest) + 1], length - 1))


def whole_model(model: LabModel, image: engine.Image | None) -> WholeModel:
    whole = WholeModel(model, image is not None)
    kind = model.family.module().Model
    whole.no_chunked_prefill = getattr(kind, "no_chunked_prefill", False)
    return whole


# Arguments that only the embedding step uses.
READ = ("pixel_values", "mask")


def inputs_of(ids: Any, image: engine.Image | None) -> dict[str, Any]:
    """The arguments of ``generate_step`` for a prompt; an image has its grid and zero pixels."""
    mask = mx.ones_like(ids)
    if image is None:
        return {"pixel_values": None, "mask": mask}
    return {"pixel_values": mx.zeros((1, 1)), "mask": mask, "image_grid_thw": image.grid}
