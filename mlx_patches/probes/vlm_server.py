"""mlx-vlm's server without a model, for probes of how it handles an answer."""

import contextlib
import importlib
import threading
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from ..core.arrays import mx
from .fixtures import require_names


def make_silent_generator(chunks: Iterable[str]) -> Any:
    """A generator without its thread; it answers every request with these text segments."""
    server: Any = importlib.import_module("mlx_vlm.server")
    chunks = list(chunks)
    reasons = [None] * (len(chunks) - 1) + ["length"]
    tokens = [
        server.StreamingToken(text=text, token=number, logprobs=0.0, finish_reason=reason)
        for number, (text, reason) in enumerate(zip(chunks, reasons, strict=True))
    ]

    class Generator(server.ResponseGenerator):  # type: ignore[misc]
        def __init__(self) -> None:
            self.draft_model = self.tokenizer = self.processor = None
            self.requests = SimpleNamespace(put=self.respond)
            self.cancelled: list[Any] = []

        def wait_until_ready(self, timeout: float | None = None) -> None:
            pass

        def _cpu_preprocess(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return {"input_ids": mx.array([[1, 2]])}

        def _cancel(self, uid: Any) -> None:
            self.cancelled.append(uid)

        def respond(self, request: Any) -> None:
            queue = request[0] if isinstance(request, tuple) else request.rqueue
            for one in (server.GenerationContext(uid=7, prompt_tokens=2), *tokens, None):
                queue.put(one)

    return Generator()


class Loaded:
    """The generator of a model that needs no memory; ``adapters`` are those that were loaded."""

    adapters: ClassVar[list[Any]] = []

    def __init__(self, model_path: str, adapter_path: Any = None, **options: Any):
        self.name = model_path
        self.adapters.append(adapter_path)

    def wait_until_ready(self) -> tuple[Any, ...]:
        config = SimpleNamespace(model_type="llama", text_config=None)
        return SimpleNamespace(config=config), None, config

    def stop_and_join(self) -> None:
        self.name += ", which is unloaded,"


@contextlib.contextmanager
def loading() -> Iterator[Any]:
    """The module of the release's server that loads models; these need no memory."""
    server: Any = importlib.import_module("mlx_vlm.server")
    place = importlib.import_module("mlx_vlm.server.app") if hasattr(server, "__path__") else server
    require_names(place, "ResponseGenerator")
    Loaded.adapters.clear()
    with mock.patch.object(place, "ResponseGenerator", Loaded):
        try:
            yield place
        finally:
            place.unload_model_sync()


VOCABULARY = 64


@contextlib.contextmanager
def running(**state: Any) -> Iterator[Any]:
    """The server's generator with its thread, and a model whose next token depends on the last."""
    server: Any = importlib.import_module("mlx_vlm.server")

    class Generator(server.ResponseGenerator):  # type: ignore[misc]
        def _initialize_model(self) -> None:
            self.model, self.processor = _Model(), _processor()
            self.tokenizer, self.config = self.processor.tokenizer, self.model.config
            self.draft_model = self.draft_kind = None
            self.__dict__.update(state)

        def _cpu_preprocess(self, prompt: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return {"input_ids": mx.array([prompt])}

        def _gpu_embed(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            ids = inputs["input_ids"]
            return ids, {"inputs_embeds": mx.zeros((*ids.shape, 2))}

        def _stream_text(self, *args: Any) -> str:
            return ""

    generator = Generator("model")
    generator.wait_until_ready(60)
    try:
        yield generator
    finally:
        generator.stop_and_join()


class _Model:
    """A model without layers: each token has its own random logits for the next one."""

    config = SimpleNamespace(model_type="llama", eos_token_id=None, image_token_index=None)
    layers: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.language_model = self
        self.logits = mx.random.normal((VOCABULARY, VOCABULARY), key=mx.random.key(5))
        mx.eval(self.logits)

    def __call__(self, tokens: Any, cache: Any = None, **kwargs: Any) -> Any:
        return self.logits[tokens]

    def parameters(self) -> dict[str, Any]:
        return {}

    def make_cache(self) -> list[Any]:
        return []


def _processor() -> Any:
    stopping = type("Stopping", (), {"__call__": lambda self, token: False})()
    stopping.add_eos_token_ids = lambda ids: None
    tokenizer = SimpleNamespace(
        stopping_criteria=stopping, encode=lambda *args, **kwargs: [1], decode=lambda *args: ""
    )
    detokenizer = SimpleNamespace(reset=lambda: None, tokenizer=tokenizer)
    return SimpleNamespace(tokenizer=tokenizer, detokenizer=detokenizer)


def make_preparing_server(kind: Any, processor: Any) -> Any:
    """A server without a model and a generation thread, which only prepares requests."""
    server = kind.__new__(kind)
    server.model = SimpleNamespace(config=SimpleNamespace(model_type="llama"))
    server.processor = processor
    server.draft_model = server.requests = server.config = server._load_error = None
    server._ready = threading.Event()
    server._ready.set()
    # Since 0.6.5.
    server._tokenizer_lock = threading.Lock()
    return server
