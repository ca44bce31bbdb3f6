"""Generates with a drafter that is always wrong, with penalties or the smallest block."""

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from ....probes.drafted import TOKENS, Drafter, decode
from ....probes.kit import Result, Target, module_of, mx, require_own, tiny

_PROMPT = [3, 1, 4, 2]


def probe(target: Target) -> Result:
    """Red if the tokens differ from those without the drafter."""
    require_own(target)
    module, model = module_of(target), tiny("mlx-vlm", "qwen3_5").module
    if target.name == "BatchGenerator.insert":
        return insert_processor(module, model)
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


def insert_processor(module: Any, model: Any) -> Result:
    """Red if a prompt's processor, which allows one token, is ignored."""
    processors = [[lambda _, logits: mx.where(mx.arange(logits.shape[-1]) == 7, 1e9, logits)]]
    drafts = {"draft_model": Drafter(), "draft_kind": "dflash"}
    try:
        answer = decode_batch(module, model, _PROMPT, {"logits_processors": processors}, **drafts)
    except ValueError as error:
        return Result(False, f"refused: {error}")
    return Result(set(answer) != {7}, f"{answer}, where only 7 is allowed")


def decode_batch(
    module: Any,
    model: Any,
    prompt: list[int],
    inserted: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> list[int]:
    never = type("", (), {"__call__": lambda *_: False, "add_eos_token_ids": lambda *_: None})
    processor = SimpleNamespace(tokenizer=SimpleNamespace(stopping_criteria=never()))
    generator = module.BatchGenerator(model, processor, greedy_sampling=True, **options)
    embedded = {"inputs_embeds": model.model.embed_tokens(mx.array([prompt]))}
    generator.insert([prompt], TOKENS, [embedded], **inserted)
    answer: list[int] = []
    for _ in range(4 * TOKENS):
        for one in (one for responses in generator.next() for one in responses):
            if getattr(one, "token", None) is not None:
                answer.append(one.token)
            if getattr(one, "finish_reason", None):
                return answer
    return answer
