"""vllm-mlx ignores seed, XTC, frequency_penalty and context sizes; completions ignore logit_bias.

Why: The server reads only the fields that it knows, and passes to its engines what all of them
    take: ``seed``, ``xtc_probability``, ``frequency_penalty`` and the penalties' context sizes have
    no effect. ``/v1/completions`` drops ``logit_bias``, ``/v1/messages`` drops ``top_k``. Up to
    0.4.1 the simple engine returns an image model's processor as its tokenizer: the server cannot
    find the thinking tokens, and ignores ``thinking_budget``.
How: A request with one of these fields gets logits processors for its bias and all its penalties,
    which every engine applies to its row. With a seed or XTC, a last processor samples the token
    and excludes all others, so the engine's own sampler has no choice. The fields are those of the
    body that ``host-request-parameters`` has read. Other requests are unchanged. The tokenizer is
    that of the processor.
Upstream: Not fixed in vllm-mlx 0.6.0, except for the tokenizer.
Retire when: The server passes these fields to its engines.
"""

from collections.abc import Callable, Iterable
from typing import Any

from ....core.verbs import Patch, mx, result, wrap
from ..._shared.refusals import client_error
from ..._shared.request_fields import FIELDS, read_number
from ..._shared.seeded import Seeded
from .outputs import BATCHED, SIMPLE, name_arguments

_XTC = ("xtc_probability", "xtc_threshold")
_SIZES = tuple(f"{one}_context_size" for one in ("repetition", "presence", "frequency"))
_NUMBERS = ("seed", "xtc_probability", "frequency_penalty", *_SIZES)


class Added(list[Any]):
    """Processors with those of this patch, for an engine's method that calls another."""


class Sampled:
    """A processor that samples the token: it excludes all others."""

    def __init__(self, sampler: Callable[[Any], Any]):
        self.sampler = sampler

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Logits that leave no choice."""
        chosen = self.sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        others = mx.arange(logits.shape[-1]) != chosen[..., None]
        return mx.where(others, mx.array(-mx.inf, logits.dtype), mx.zeros_like(logits))


def has_fields() -> bool:
    """Whether a request has a field that vllm-mlx drops."""
    fields = FIELDS.get({})
    return any(name in fields for name in (*_NUMBERS, "top_k", "logit_bias"))


def pass_fields(released: Callable[..., Any], engine: Any, *args: Any, **sent: Any) -> Any:
    """Call an engine with the fields that the server drops."""
    sent = name_arguments(released, args, sent)
    given = sent.get("logits_processors")
    if isinstance(given, Added):
        return released(engine, **sent)
    if not sent.get("top_k"):
        sent["top_k"] = read_number("top_k") or 0
    bias = read_bias()
    if bias or any(read_number(name) is not None for name in _NUMBERS):
        added = Added([*make_penalties(sent, bias), *(given or ()), *make_samplers(engine, sent)])
        sent |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "logits_processors": added}
    return released(engine, **sent)


def read_bias() -> dict[int, float]:
    """The biases of a request for a completion; the server reads those of a chat request.

    Raises:
        ValueError: a token is no number; the server answers with status 400.
    """
    fields = FIELDS.get({})
    bias = fields.get("logit_bias") if "prompt" in fields else None
    try:
        return {int(token): float(value) for token, value in (bias or {}).items()}
    except (TypeError, ValueError, AttributeError):
        raise client_error("logit_bias: expected a number for each token id") from None


def make_penalties(sent: dict[str, Any], bias: dict[int, float]) -> list[Any]:
    """The processors of a request's bias and penalties."""
    from mlx_lm.sample_utils import make_logits_processors as make

    numbers = {name: read_number(name) for name in ("frequency_penalty", *_SIZES)}
    numbers["presence_penalty"] = sent.get("presence_penalty")
    if sent.get("repetition_penalty") != 1.0:
        numbers["repetition_penalty"] = sent.get("repetition_penalty")
    return list(make(bias or None, **{name: n for name, n in numbers.items() if n}))


def make_samplers(engine: Any, sent: dict[str, Any]) -> Iterable[Sampled]:
    """The processor that samples with a seed or XTC, if a request has one and is not greedy."""
    from mlx_lm.sample_utils import make_sampler

    seed, xtc = read_number("seed"), {name: read_number(name) or 0.0 for name in _XTC}
    if not sent.get("temperature") or not (isinstance(seed, int) or xtc["xtc_probability"]):
        return
    ends = getattr(engine.tokenizer, "eos_token_ids", None) or [engine.tokenizer.eos_token_id]
    sampler = make_sampler(
        sent["temperature"],
        *(sent.get(name) or 0 for name in ("top_p", "min_p")),
        top_k=sent["top_k"],
        **xtc,
        xtc_special_tokens=[one for one in ends if one is not None],
    )
    yield Sampled(Seeded(sampler, seed) if isinstance(seed, int) else sampler)


def find_tokenizer(processor: Any) -> Any:
    """The tokenizer of a processor; others are returned."""
    return getattr(processor, "tokenizer", processor)


PATCH = Patch(
    id="vllm-request-fields",
    severity="feature",
    probe=".probe_fields:probe",
    targets=(
        *wrap(
            (f"{BATCHED}.stream_generate", f"{SIMPLE}.stream_generate"),
            pass_fields,
            when=has_fields,
        ),
        *wrap(
            (f"{BATCHED}.generate", f"{SIMPLE}.stream_chat", f"{SIMPLE}.chat"),
            pass_fields,
            when=has_fields,
            supports=True,
        ),
        *result(f"{SIMPLE}.tokenizer", find_tokenizer),
    ),
)
