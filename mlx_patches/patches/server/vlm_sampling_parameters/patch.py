"""mlx_vlm.server ignores min_p and XTC, and before mlx-vlm 0.7 top_k.

Why: The server's own sampler knows temperature, top_p and seed, and top_k from mlx-vlm 0.7 on. It
    ignores ``min_p``, ``xtc_probability`` and, in earlier releases, ``top_k``. Of ``top_n_sigma``,
    ``p_less`` and ``typical_p`` only the first one counts, and a request with one of them ignores
    its seed. With a draft model, penalties and ``logit_bias`` change only the first token.
How: For a request that the server's sampler does not cover, mlx-vlm's own ``make_sampler`` gets all
    of its parameters; its draws depend on the seed and the token's position. Numbers out of range,
    an invalid ``logit_bias`` or ``response_format``, ``top_logprobs`` without ``logprobs`` and
    parameters that the release lacks, or ignores with a draft model, are refused with status 400.
Upstream: Not fixed in mlx-vlm 0.7.10. The server of mlx-vlm 0.5, which also ignores seeds and
    penalties, refuses these parameters; those of mlx-vlm 0.6.0 to 0.6.3 are not repaired.
Retire when: The server passes all parameters of a request to its sampler.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from ....core.verbs import Patch, mx, result, wrap
from ..._shared.refusals import client_error
from ..._shared.request_fields import TOP_LOGPROBS, find_bias_fault
from ..._shared.seeded import draw

_GENERATION = "mlx_vlm.server.generation"
# The parameters of ``make_sampler`` beside the temperature: the value that has no effect, and the
# largest one.
_LIMITS: Mapping[str, tuple[float, float]] = {
    "top_p": (1.0, 1.0),
    "top_k": (0, math.inf),
    "min_p": (0.0, 1.0),
    "top_n_sigma": (0.0, math.inf),
    "p_less": (False, 1),
    "typical_p": (1.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 0.5),
}
_NOT_NEGATIVE = ("temperature", "repetition_penalty")
# What speculative decoding ignores after the first token, and the values that change nothing.
_WITHOUT_DRAFT: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (0, 1),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
}
# Parameters that the server of mlx-vlm 0.5 ignores, with the values that change nothing. Falsy
# values change nothing either.
_UNREAD: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("top_k", "min_p", "xtc_probability", "seed", "logit_bias"), ()),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), ()),
    "typical_p": (1,),
    "repetition_penalty": (1,),
}


class PositionedSampler:
    """A sampler whose draw for a token depends on the seed, the row id and its position."""

    def __init__(self, sampler: Any, seed: int):
        self.sampler, self.seed = sampler, seed

    def __call__(self, logprobs: Any) -> Any:
        """Sample a token for each row, without the seed."""
        return self.sampler(logprobs)

    def sample_target(self, logprobs: Any, *, row_ids: Any, positions: Any) -> Any:
        rows = [
            draw(self.sampler, logprobs[row : row + 1], self.seed + id_, position)
            for row, (id_, position) in enumerate(zip(row_ids, positions, strict=True))
        ]
        return rows[0] if len(rows) == 1 else mx.concatenate(rows)


def complete_sampler(sampler: Any, generator: Any, /, args: Any) -> Any:
    """The sampler of a request, with all of its parameters."""
    wanted = read_parameters(args)
    if sampler is None or covers(sampler, wanted):
        return sampler
    module = importlib.import_module(_GENERATION)
    if "xtc_probability" in wanted:  # a token that ends the answer is never excluded
        wanted["xtc_special_tokens"] = sorted(generator.stop_tokens)
    made = module.make_sampler(temp=args.temperature, **wanted)
    return made if args.seed is None else PositionedSampler(made, args.seed)


def read_parameters(args: Any) -> dict[str, Any]:
    """The parameters of a request that have an effect."""
    read = {name: getattr(args, name, None) for name in _LIMITS}
    found = {
        name: value
        for name, value in read.items()
        if value is not None and value != _LIMITS[name][0] and not (name == "top_p" and value <= 0)
    }
    if "xtc_probability" not in found:
        found.pop("xtc_threshold", None)
    return found


def covers(sampler: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether the release's sampler has all of the parameters; one without a seed does not."""
    known = {"top_p", "top_k"} if hasattr(sampler, "top_k") else {"top_p"}
    return hasattr(sampler, "sample_target") and set(wanted) <= known


def add_parameters(build: Callable[..., Any], request: Any, *more: Any, **options: Any) -> Any:
    """The arguments of a request, with the parameters that the release leaves out."""
    if fault := find_bias_fault(getattr(request, "logit_bias", None)):
        raise client_error(fault)
    args = build_or_refuse(build, request, *more, **options)
    for name in _LIMITS:
        if not hasattr(args, name):
            vars(args)[name] = getattr(request, name, None)
    args.min_p = args.min_p or 0.0
    check_parameters(args, request)
    return args


def build_or_refuse(build: Callable[..., Any], request: Any, *more: Any, **options: Any) -> Any:
    """The arguments of a request; a ``response_format`` that cannot be followed is refused."""
    if isinstance(getattr(request, "response_format", None), (str, int, float, list)):
        raise client_error("response_format: not an object")
    try:
        return build(request, *more, **options)
    except ValueError as error:  # the server would answer it with status 500
        raise client_error(str(error)) from error


def check_parameters(args: Any, request: Any) -> None:
    """Refuse numbers out of range, and parameters that the release does not have.

    Raises:
        ValueError: the server answers it with status 400.
    """
    top = getattr(request, "top_logprobs", None)
    sent = [(name, getattr(args, name, None), most) for name, (_, most) in _LIMITS.items()]
    sent += [(name, getattr(args, name, None), math.inf) for name in _NOT_NEGATIVE]
    for name, value, most in [*sent, ("top_logprobs", top, TOP_LOGPROBS)]:
        if value is not None and not is_number(value, most):
            raise client_error(f"{name}: {value!r} is not a number from 0 to {most}")
    if top and not args.logprobs:
        raise client_error("top_logprobs: needs logprobs; set it to true")
    if has_draft():
        for name, neutral in _WITHOUT_DRAFT.items():
            if getattr(args, name, None) not in (*neutral, None):
                raise client_error(
                    f"{name}: not supported by mlx_vlm.server with a draft model; remove it"
                )
    sampler = importlib.import_module(_GENERATION).make_sampler
    for name in set(read_parameters(args)) - set(inspect.signature(sampler).parameters):
        raise client_error(f"{name}: not supported by this mlx-vlm; remove it")


def refuse_unread(build: Callable[..., Any], request: Any, *more: Any, **options: Any) -> Any:
    """Refuse a request with a parameter that the server of mlx-vlm 0.5 ignores."""
    for name, neutral in _UNREAD.items():
        value = getattr(request, name, None)
        if value and value not in neutral:
            raise client_error(f"{name}: not supported by this mlx-vlm; remove it")
    return build_or_refuse(build, request, *more, **options)


def has_draft() -> bool:
    runtime: Any = importlib.import_module("mlx_vlm.server.runtime")
    generator = getattr(runtime.runtime, "response_generator", None)
    return getattr(generator, "draft_model", None) is not None


def is_number(value: Any, most: float) -> bool:
    """Whether a value is a number from 0 to ``most``."""
    return isinstance(value, (int, float)) and 0 <= value <= most


PATCH = Patch(
    id="vlm-sampling-parameters",
    targets=(
        *result(f"{_GENERATION}:ResponseGenerator._make_sampler", complete_sampler),
        *wrap("mlx_vlm.server:_build_gen_args", refuse_unread),
        *wrap("mlx_vlm.server.app:_build_gen_args", add_parameters, supports=True),
    ),
)
