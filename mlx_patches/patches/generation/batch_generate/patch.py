"""The padding of prompts in mlx-vlm's public ``batch_generate``."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Patch, mx, wrap
from ..._shared.targets import vlm_generators

# A row's prompt within its padding, as (first token, one past the last).
Span = tuple[int, int]
# The masks with which the embeddings of the running ``batch_generate`` were made.
_masks: ContextVar[list[Any] | None] = ContextVar("mlx_patches_prompt_masks", default=None)


def in_batch_generate() -> bool:
    """Whether ``batch_generate`` is running; prompts of other callers are not padded."""
    return _masks.get() is not None


def generate_unpadded(generate: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    masks: list[Any] = []
    token = _masks.set(masks)
    try:
        return generate(record_masks(model, masks), *args, **kwargs)
    finally:
        _masks.reset(token)


def record_masks(model: Any, masks: list[Any]) -> Any:
    """A shallow copy of the model that appends each mask of ``get_input_embeddings`` to a list."""

    def get_input_embeddings(*args: Any, mask: Any = None, **kwargs: Any) -> Any:
        masks.append(mask)
        return model.get_input_embeddings(*args, mask=mask, **kwargs)

    view = copy.copy(model)  # the model itself keeps nothing of a request
    view.get_input_embeddings = get_input_embeddings
    return view


def insert_unpadded(
    insert: Callable[..., Any],
    generator: Any,
    prompts: Sequence[Sequence[int]],
    *args: Any,
    prompt_kwargs: Any = None,
    **kwargs: Any,
) -> Any:
    """Insert prompts without padding, which the generator adds itself."""
    own = {} if prompt_kwargs is None else {"prompt_kwargs": prompt_kwargs}
    # Before 0.5 the first step gets the arguments; from 0.7 on the mask is passed.
    spans = find_padded_spans(prompts) if own and "attention_mask" not in kwargs else None
    if spans is None:
        return insert(generator, prompts, *args, **own, **kwargs)
    aligned = inspect.unwrap(insert).__globals__["_is_sequence_aligned_prompt_kwarg"]
    rows = [
        cut_arguments(row, span, len(prompt), aligned)
        for prompt, row, span in zip(prompts, prompt_kwargs, spans, strict=True)
    ]
    texts = [prompt[slice(*span)] for prompt, span in zip(prompts, spans, strict=True)]
    if getattr(generator, "_existing_left_padding", None):
        generator._existing_left_padding = None  # it counts the padding that was removed above
    return insert(generator, texts, *args, prompt_kwargs=rows, **kwargs)


def process_unpadded(
    process: Callable[..., Any], generator: Any, prompts: Sequence[Any], **kwargs: Any
) -> Any:
    """Process prompts without padding, for releases that embed them as one padded array.

    The generator left-pads, so right-padded embeddings are shifted.
    """
    texts = [ids for _, ids, *_ in prompts]
    masks = _masks.get()
    if masks is not None and all(mask is None for mask in masks):
        # Below 0.4 text is not embedded here, and images are embedded without a mask.
        spans = find_spans_by_token(texts, getattr(generator.tokenizer, "pad_token_id", None))
    else:
        spans = find_padded_spans(texts)
    if spans is None:
        return process(generator, prompts, **kwargs)
    length = len(prompts[0][1])
    own = [
        (uid, ids[slice(*span)], *rest)
        for (uid, ids, *rest), span in zip(prompts, spans, strict=True)
    ]
    if any(stop < length for _, stop in spans):
        shape = (len(spans), length)
        kwargs = {
            name: align_left(value, spans) if getattr(value, "shape", ())[:2] == shape else value
            for name, value in kwargs.items()
        }
    return process(generator, own, **kwargs)


def find_padded_spans(prompts: Sequence[Sequence[int]]) -> list[Span] | None:
    """Each prompt's span within its padding, by the recorded mask.

    None if no prompt is padded, or if the span of any prompt is unknown.
    """
    masks = _masks.get()
    mask = masks[-1] if masks else None
    if mask is None or len({len(prompt) for prompt in prompts}) != 1:
        return None
    if tuple(mask.shape) != (len(prompts), len(prompts[0])):
        return None
    spans = find_spans(mask.tolist())
    return None if spans is None or set(spans) == {(0, len(prompts[0]))} else spans


def find_spans_by_token(prompts: Sequence[Sequence[int]], padding: int | None) -> list[Span] | None:
    """Each prompt's span by the id of the pad token, for releases that pass no mask.

    The longest prompt is not padded. If it begins or ends with pad tokens, they are from its chat
    template, and all other prompts have them too.
    """
    spans = find_spans([[token != padding for token in prompt] for prompt in prompts], gaps=True)
    if padding is None or spans is None:
        return None
    length = len(prompts[0])
    first, last = min(start for start, _ in spans), max(stop for _, stop in spans)
    own = [(start - first, stop + length - last) for start, stop in spans]
    return None if set(own) == {(0, length)} else own


def find_spans(masks: Sequence[Sequence[int]], gaps: bool = False) -> list[Span] | None:
    """The span of each row's prompt; None if one is empty, or has gaps without ``gaps``."""
    spans = []
    for mask in masks:
        kept = [place for place, keep in enumerate(mask) if keep]
        if not kept or (not gaps and kept[-1] - kept[0] + 1 != len(kept)):
            return None
        spans.append((kept[0], kept[-1] + 1))
    return spans


def cut_arguments(
    row: Mapping[str, Any], span: Span, length: int, aligned: Callable[..., bool]
) -> dict[str, Any]:
    """A prompt's arguments, arrays of one row each, without the entries of pad tokens."""
    own = dict(row)
    if span == (0, length):
        return own
    for name, value in row.items():
        if not hasattr(value, "ndim") or value.ndim < 2:
            continue
        if name == "inputs_embeds" or aligned(name, value, length):
            # M-RoPE positions have a leading dimension: (3, 1, length).
            axis = 1 if value.shape[1] == length else 2
            own[name] = value[(slice(None),) * axis + (slice(*span),)]
    return recompute_delta(own)


def align_left(value: Any, spans: Sequence[Span]) -> Any:
    """Shift the padding of an array (prompts, length, ...) to the left."""
    length = value.shape[1]
    rows = [
        mx.roll(row, length - stop, axis=0) for row, (_, stop) in zip(value, spans, strict=True)
    ]
    return mx.stack(rows)


def has_mask(attention_mask: Any) -> bool:
    return attention_mask is not None


def unpad_deltas(unpad: Callable[..., Any], prompts: Any, mask: Any, rows: Sequence[Any]) -> Any:
    """Remove padding from prompts, arguments and rope deltas."""
    padded = [row.get("position_ids") for row in rows]
    texts, own = unpad(prompts, mask, rows)
    return texts, [
        row if row.get("position_ids") is before else recompute_delta(row)
        for row, before in zip(own, padded, strict=True)
    ]


def recompute_delta(row: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt's arguments, with the rope delta recomputed from its positions.

    The delta is the position after the last token minus the number of tokens. Releases count pad
    tokens as well.
    """
    positions, deltas = row.get("position_ids"), row.get("rope_deltas")
    if positions is None or deltas is None:
        return dict(row)
    delta = positions.max() + 1 - positions.shape[-1]
    return {**row, "rope_deltas": delta.astype(deltas.dtype).reshape(deltas.shape)}


_BODY = ("_generate_batch",)
PADDED_PROMPTS = Patch(
    id="padded-prompts",
    targets=(
        *wrap(vlm_generators("_generate_batch"), generate_unpadded),
        *wrap(
            vlm_generators("BatchGenerator.insert"),
            insert_unpadded,
            fingerprint_of=_BODY,
            when=in_batch_generate,
        ),
        *wrap(
            vlm_generators("BatchGenerator._process_prompts"),
            process_unpadded,
            fingerprint_of=_BODY,
            when=in_batch_generate,
        ),
    ),
    doc="""mlx_vlm.batch_generate: wrong output for shorter prompts, which attend to padding.

    Why: The tokenizer pads the prompts to one length. The batch generator receives the padded
        prompts without the mask, so pad tokens count as text and take positions.
    How: The generator receives each prompt and its arguments without padding, and pads them itself,
        as it does for every other caller. The mask is recorded when the prompts are embedded, by a
        copy of the model that shares all its parts and exists only for the call.
    Upstream: mlx-vlm 0.6.17 passes the amount of padding to the generator, but counts it in rope
        deltas, and assumes left padding; 0.7.0 passes the mask.
    Retire when: No supported release is older than mlx-vlm 0.7.0.
    """,
)

PADDED_DELTAS = Patch(
    id="padded-deltas",
    targets=wrap("mlx_vlm.generate.ar:_unpad_batch_prompts", unpad_deltas, when=has_mask),
    probe=".probe:probe_deltas",
    doc="""mlx_vlm.batch_generate: wrong positions for shorter prompts with images.

    Why: An M-RoPE model counts pad tokens in the rope delta of each row. The generator removes the
        padding from the prompts and their positions, but not from the delta: the answer to a
        shorter prompt starts at positions of the prompt's own tokens.
    How: For a row whose padding was removed, the delta is recomputed from the remaining positions.
    Upstream: Not fixed in mlx-vlm 0.7.10.
    Retire when: ``_unpad_batch_prompts`` sets the delta of a single request.
    """,
)
