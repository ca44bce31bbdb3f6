"""Prepares a request in another thread, with a processor that returns lazy arrays."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, class_of, mx, require_own
from ....probes.vlm_server import make_preparing_server


class _Tokenizer:
    """A tokenizer whose token ids are not computed yet."""

    pad_token = "."
    chat_template = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(input_ids=make_ids(), attention_mask=make_ids())


def make_ids() -> Any:
    return mx.array([[1, 2]]) + 1


def probe(target: Target) -> Result:
    """Red if the thread that generates cannot compute what another one has prepared."""
    require_own(target)
    server = make_preparing_server(class_of(target), _Tokenizer())
    with ThreadPoolExecutor(1) as pool:
        lazy = pool.submit(make_ids).result()
        prepared = pool.submit(server._cpu_preprocess, "a prompt").result()
    try:
        mx.eval(lazy)
    except RuntimeError:
        pass
    else:
        raise NotApplicable("in this MLX any thread computes any array")
    try:
        mx.eval(prepared["input_ids"])
    except RuntimeError as error:
        return Result(True, str(error))
    return Result(False, "the inputs are computed")
