"""Adds an empty prompt beside a request that vllm-mlx's scheduler is running."""

import asyncio
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, own_class_of, require_module, require_own
from ....probes.vllm_engine import make_engine
from ....probes.vllm_scheduler import Server, build_llama

PROMPT = [5, 9, 2, 7]
_STEPS = 20


def probe(target: Target) -> Result:
    """Red if the other request's answer changes, fails or is missing, or an engine gets it."""
    if ".engine." in target.module:
        return probe_engine(own_class_of(target))
    module = require_module(target.module)
    if target.name.startswith("_build"):
        empty = [{"role": "user", "content": ""}]
        built = require_own(target)(empty, all_image_urls=[], video_frame_counts={})
        return Result(not built, f"of an empty message {built}")
    if target.name.startswith("MLLM"):
        return probe_media(module)
    model = build_llama()
    solo = Server(model).answer(PROMPT)
    answer, _ = answer_beside(Server(model), "")
    return Result(answer != solo, f"beside an empty prompt {answer}, solo {solo}")


def probe_engine(kind: Any) -> Result:
    """Red if an engine generates without a prompt."""
    engine = make_engine(kind)
    engine._tokenizer = SimpleNamespace(encode=list)
    engine._model = SimpleNamespace(tokenizer=engine._tokenizer)
    try:
        return Result(True, f"the engine answers {asyncio.run(engine.generate(''))}")
    except Exception as error:
        return Result(getattr(error, "status_code", 500) != 400, str(error))


def probe_media(module: Any) -> Result:
    """Red if the scheduler for images takes a prompt without tokens."""
    model = SimpleNamespace(config=SimpleNamespace(model_type="probe"))
    tokenizer = SimpleNamespace(encode=list, decode=str, eos_token_id=0)
    config = module.MLLMSchedulerConfig(enable_vision_cache=False)
    scheduler = module.MLLMScheduler(model, SimpleNamespace(tokenizer=tokenizer), config)
    try:
        scheduler.add_request("")
    except Exception as error:
        return Result(getattr(error, "status_code", 500) != 400, str(error))
    return Result(True, f"requests that wait for the batch: {len(scheduler.waiting)}")


def answer_beside(server: Server, prompt: list[int] | str) -> tuple[list[int] | str, str]:
    """The answer to ``PROMPT`` beside another prompt, and the refusal of that one."""
    first, refused = server.add(PROMPT), ""
    tokens: list[int] = []
    for step in range(_STEPS):
        if step == 1:  # the first request is running
            try:
                server.add(prompt)
            except Exception as error:
                refused = str(error)
        try:
            output = server.scheduler.step()
        except Exception as error:
            return f"{type(error).__name__}: {error}", refused
        for one in output.outputs:
            if one.request_id != first:
                continue
            if one.finish_reason == "error":
                return "error", refused
            tokens += one.new_token_ids
            if one.finished:
                return tokens, refused
    return f"no answer in {_STEPS} steps", refused
