"""Streams a chat about an image whose keys and values are kept, and notes what is generated."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, require
from ....probes.vllm_media import make_model

IMAGE = "data:image/png;base64,iVBORw0KGgo="


def probe(target: Target) -> Result:
    """Red if the generator gets the whole prompt and the keys and values of it as well."""
    require(target)
    model = make_model()
    model._prepare_images = lambda urls: urls
    caches: Any = import_module("vllm_mlx.mllm_cache")
    model._cache_manager = caches.MLLMPrefixCacheManager(max_entries=2)
    for prompt in ("prompt", "a"):  # 0.2.6 does not find the template
        model._cache_manager.store_cache([IMAGE], prompt, ["kept"], 5)
    content = [{"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": "a"}]
    got = stream(model, [{"role": "user", "content": content}])
    is_whole = [kept for _, kept in got] == [None]
    return Result(not is_whole, f"prompts and kept keys and values {got}")


def stream(model: Any, messages: list[dict[str, Any]]) -> list[Any]:
    """The prompts and caches that mlx-vlm's generator gets."""
    library: Any = import_module("mlx_vlm")
    released, got = library.stream_generate, list[Any]()

    def generate(
        _: Any, __: Any, prompt: str, *args: Any, prompt_cache: Any, **options: Any
    ) -> Any:
        got.append((prompt, prompt_cache))
        yield SimpleNamespace(text="b", prompt_tokens=5)

    library.stream_generate = generate
    try:
        list(model.stream_chat(messages, max_tokens=1))
    finally:
        library.stream_generate = released
    return got
