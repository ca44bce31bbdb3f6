"""Asks vllm-mlx's scheduler for prompts that share a prefix, and compares with a fresh one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from .._patch import Target
from . import NotApplicable, Result

_PREFIX = [1 + (7 * i) % 90 for i in range(600)]
_TOKENS = 4
_STEPS = 200
_LAYERS = 4
_WINDOW = 8


def probe(target: Target) -> Result:
    """Red where an answer depends on what was asked before."""
    prompts: list[list[int]]
    if target.name == "_trim_cache_offset":
        if not hasattr(importlib.import_module(target.module), target.name):
            raise NotApplicable("this release does not cut prefixes back")
        # Fewer new tokens than a window holds, more than one.
        prompts = [[*_PREFIX, 91], [*_PREFIX, 92, 93]]
        model = _llama(["sliding_attention", "full_attention"] * (_LAYERS // 2))
    else:
        prompts = [[*_PREFIX, *more] for more in ([91], [91], [], [92, 93], [91])]
        model = _llama(None)
    server = _Server(model)
    answers = [server.answer(prompt) for prompt in prompts]
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        alone = _Server(model).answer(prompt)
        if answer != alone:
            return Result(True, f"request {index}: {answer[:4]}…, asked first {alone[:4]}…")
    return Result(False, "every answer is that of a fresh server")


def _llama(layer_types: Sequence[str] | None) -> Any:
    from ..lab import Family
    from ..lab.build import build

    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": _LAYERS,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": 96,
        "tie_word_embeddings": False,
    }
    if layer_types:
        config |= {"layer_types": list(layer_types), "sliding_window": _WINDOW}
    return build(Family("mlx-lm", "llama"), config=config).module


class _Tokenizer:
    """Tokens stand for themselves; no answer ends early."""

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


class _Server:
    """The release's scheduler, alone."""

    def __init__(self, model: Any):
        try:
            scheduler = importlib.import_module("vllm_mlx.scheduler")
            self._requests = importlib.import_module("vllm_mlx.request")
        except ImportError as error:
            raise NotApplicable(f"this release does not import here: {error}") from error
        if "use_memory_aware_cache" not in inspect.signature(scheduler.SchedulerConfig).parameters:
            raise NotApplicable("this release has no such prefix cache")
        config = scheduler.SchedulerConfig(cache_memory_mb=64)
        self._scheduler = scheduler.Scheduler(model, _Tokenizer(), config)
        self._count = 0

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """The tokens of a greedy answer."""
        self._count += 1
        params = self._requests.SamplingParams(max_tokens=_TOKENS, temperature=0.0)
        request = self._requests.Request(
            request_id=f"probe-{self._count}", prompt=list(prompt), sampling_params=params
        )
        self._scheduler.add_request(request)
        tokens: list[int] = []
        for _ in range(_STEPS):
            for output in self._scheduler.step().outputs:
                tokens += output.new_token_ids
                if output.finished:
                    return tokens
        raise RuntimeError(f"no answer in {_STEPS} steps")
