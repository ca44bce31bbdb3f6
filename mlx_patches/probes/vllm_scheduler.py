"""vllm-mlx's own scheduler with a tiny model, for one request at a time."""

import inspect
from collections.abc import Sequence
from typing import Any

from . import NotApplicable
from .batch_invariance import tiny
from .fixtures import require_module

WINDOW = 8
_LAYERS = 4
_TOKENS = 4
_STEPS = 200


class Server:
    """The release's scheduler, without its server."""

    def __init__(self, model: Any, **config: Any):
        scheduler = require_module("vllm_mlx.scheduler")
        self._requests = require_module("vllm_mlx.request")
        unknown = set(config) - set(inspect.signature(scheduler.SchedulerConfig).parameters)
        if unknown:
            raise NotApplicable(f"this release has no {', '.join(sorted(unknown))}")
        settings = scheduler.SchedulerConfig(**config)
        self.scheduler = scheduler.Scheduler(model, _Tokenizer(), settings)
        self._count = 0

    def answer(self, prompt: Sequence[int], **settings: Any) -> list[int]:
        """The tokens of a greedy answer; ``settings`` are for the release's ``SamplingParams``."""
        self.add(list(prompt), **settings)
        tokens: list[int] = []
        for _ in range(_STEPS):
            for output in self.scheduler.step().outputs:
                tokens += output.new_token_ids
                if output.finished:
                    return tokens
        raise RuntimeError(f"no answer in {_STEPS} steps")

    def add(self, prompt: list[int] | str, **settings: Any) -> str:
        self._count += 1
        settings = {"max_tokens": _TOKENS, "temperature": 0.0} | settings
        self.request = self._requests.Request(
            request_id=f"probe-{self._count}",
            prompt=prompt,
            sampling_params=self._requests.SamplingParams(**settings),
        )
        self.scheduler.add_request(self.request)
        return str(self.request.request_id)


def build_llama(layer_types: Sequence[str] = ("full_attention",) * _LAYERS) -> Any:
    """Build a tiny Llama; any sliding layers have a window of ``WINDOW`` tokens."""
    return build_family(
        "llama",
        layer_types=list(layer_types),
        num_hidden_layers=len(layer_types),
        sliding_window=WINDOW if "sliding_attention" in layer_types else None,
        tie_word_embeddings=False,
    )


def build_sliding_llama() -> Any:
    """The same with a sliding window in every second layer."""
    return build_llama(["sliding_attention", "full_attention"] * (_LAYERS // 2))


def build_windowed_llama() -> Any:
    """The same with only full layers, but rotating caches of ``WINDOW`` tokens."""
    from mlx_lm.models.cache import RotatingKVCache

    model = build_llama()
    model.make_cache = lambda: [RotatingKVCache(max_size=WINDOW) for _ in model.layers]
    return model


def build_family(name: str, **fields: Any) -> Any:
    return tiny("mlx-lm", name, **fields).module


class _Tokenizer:
    """A tokenizer whose words are token ids; token 0 ends an answer."""

    eos_token_id = 0
    eos_token_ids = frozenset({0})
    all_special_ids: tuple[int, ...] = ()
    clean_up_tokenization_spaces = False
    bos_token = eos_token = None
    chat_template = None

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Any, **_: Any) -> str:
        return " ".join(map(str, tokens))

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(96)}


MEMORY = {"use_memory_aware_cache": True, "cache_memory_mb": 64}
