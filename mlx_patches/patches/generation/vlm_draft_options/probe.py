"""Generates with a drafter that is always wrong, with a penalty or with the smallest block."""

import sys
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_of, mx, require_own, tiny

_PROMPT = [3, 1, 4, 2]
_TOKENS = 8


def probe(target: Target) -> Result:
    """Red if the tokens differ from those without the drafter."""
    require_own(target)
    module, model = module_of(target), tiny("mlx-vlm", "qwen3_5").module
    generate = decode if target.name == "generate_step" else decode_batch
    wanted: list[dict[str, Any]] = [{"draft_block_size": 1}]
    if generate is decode:
        wanted.append({"repetition_penalty": 5.0})
    for options in wanted:
        drafted = generate(
            module, model, _PROMPT, draft_model=Drafter(), draft_kind="dflash", **options
        )
        options.pop("draft_block_size", None)
        plain = generate(module, model, _PROMPT, **options)
        if drafted != plain:
            return Result(True, f"{options or 'a block of 1'}: {drafted}, not {plain}")
    return Result(False, "the tokens are those without the drafter")


def decode(module: Any, model: Any, prompt: list[int], **options: Any) -> list[int]:
    options |= {"max_tokens": _TOKENS, "temperature": 0.0}
    steps = module.generate_step(mx.array([prompt]), Whole(model), None, None, **options)
    return [int(step[0]) for step in steps]


def decode_batch(module: Any, model: Any, prompt: list[int], **options: Any) -> list[int]:
    never = type("", (), {"__call__": lambda *_: False, "add_eos_token_ids": lambda *_: None})
    processor = SimpleNamespace(tokenizer=SimpleNamespace(stopping_criteria=never()))
    generator = module.BatchGenerator(model, processor, greedy_sampling=True, **options)
    embedded = {"inputs_embeds": model.model.embed_tokens(mx.array([prompt]))}
    generator.insert([prompt], _TOKENS, [embedded])
    answer: list[int] = []
    for _ in range(4 * _TOKENS):
        for one in (one for responses in generator.next() for one in responses):
            if getattr(one, "token", None) is not None:
                answer.append(one.token)
            if getattr(one, "finish_reason", None):
                return answer
    return answer


class Whole:
    """A model of a text model."""

    def __init__(self, language_model: Any):
        self.language_model = language_model
        self.config = getattr(language_model, "args", None) or language_model.config

    def get_input_embeddings(self, ids: Any, *_: Any, **__: Any) -> Any:
        embedded = self.language_model.model.embed_tokens(ids)
        return sys.modules["mlx_vlm.models.base"].InputEmbeddingsFeatures(inputs_embeds=embedded)


class Drafter:
    """A drafter that drafts token 0."""

    config = SimpleNamespace(block_size=3, target_layer_ids=[0], model_type="drafter")

    def __init__(self) -> None:
        self.accept_lens: list[int] = []

    def reset(self, model: Any) -> list[Any]:
        return []

    def make_cache(self) -> list[Any]:
        return []

    def draft_block(
        self, token: Any, hidden: Any, cache: Any, size: int, *_: Any, **__: Any
    ) -> Any:
        return mx.zeros((hidden.shape[0], size - 1), mx.int32)
