"""vllm-mlx --mllm, simple engine: temperature and a chat's top_p have no effect.

Why: The engine of vllm-mlx 0.4.1 passes mlx-vlm the temperature as ``temp``, which it ignores: each
    answer is greedy. A chat's ``top_p`` is not passed at all.
How: Both go along with the request's other options, and the temperature gets mlx-vlm's name when
    the drafter's options are made; releases before 0.4.0, which lack that place, stay greedy.
    ``top_p`` is that of the request; the server's default for it is not known there.
Upstream: Fixed in vllm-mlx 0.6.0.
Retire when: No supported release passes ``temp``.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.request_fields import read_number

_NAME = "mlx_patches_temperature"


def pass_sampling(generate: Function, *args: Any, **options: Any) -> Any:
    """Generate with the request's temperature and ``top_p`` among the other options."""
    sampling = {_NAME: options.get("temperature", 0.7), "top_p": read_number("top_p")}
    return generate(*args, **{k: v for k, v in sampling.items() if v is not None} | options)


def name_temperature(make: Function, model: Any, call_kwargs: Any = None) -> Any:
    """The drafter's options, with the temperature that mlx-vlm gets."""
    temperature = (call_kwargs or {}).pop(_NAME, None)
    made = make(model, call_kwargs)
    return made if temperature is None else {**made, "temperature": temperature}


_MODEL = "vllm_mlx.models.mllm:MLXMultimodalLM"
_GENERATORS = ("chat", "stream_chat", "stream_generate")

PATCH = Patch(
    id="vllm-temperature",
    targets=(
        *wrap([f"{_MODEL}.{one}" for one in _GENERATORS], pass_sampling),
        *wrap(f"{_MODEL}._draft_generation_kwargs", name_temperature, supports=True),
    ),
)
