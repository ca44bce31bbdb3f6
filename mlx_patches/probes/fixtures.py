"""Shared by probes: small caches, prefixes and inputs, and the application of other patches."""

import contextlib
import importlib
import inspect
import io
import json
import logging
import os
import tempfile
import wave
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest import mock

from ..core.arrays import mx
from ..core.patch import Target
from ..evidence.results import import_optional
from . import NotApplicable, Result

# The sizes of a small text model, by their names in ``config.json``.
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64}
SIZES |= {"rms_norm_eps": 1e-5, "max_position_embeddings": 512}
# Llama 3's scaling, without its factor and its original length.
LLAMA3: dict[str, Any] = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def require_names(owner: Any, *names: str) -> None:
    """Raise NotApplicable if a module, a class or an object lacks an attribute."""
    for name in names:
        if not hasattr(owner, name):
            raise NotApplicable(f"{getattr(owner, '__name__', type(owner).__name__)} has no {name}")


def require_parameter(function: Any, name: str) -> None:
    if name not in inspect.signature(inspect.unwrap(function)).parameters:
        raise NotApplicable(f"{function.__qualname__} has no {name} in this release")


def module_of(target: Target) -> Any:
    return importlib.import_module(target.module)


def require_module(name: str) -> Any:
    """Import a module, or raise NotApplicable if its package lacks it or is not installed."""
    if (found := import_optional(name)) is None:
        raise NotApplicable(f"No module named {name!r}")
    return found


def own_class_of(target: Target) -> Any:
    """The class of a target, or NotApplicable if the target's module does not define it."""
    name = target.name.partition(".")[0]
    cache_class = getattr(importlib.import_module(target.module), name, None)
    if cache_class is None or cache_class.__module__ != target.module:
        raise NotApplicable(f"{target.module} has no own {name}")
    return cache_class


def make_batch(cache_class: Any, left_padding: list[int], window: int = 8) -> Any:
    """Make a batch cache; ``window`` is the size of a rotating one in tokens."""
    if "Rotating" in cache_class.__name__:
        return cache_class(window, left_padding)
    if "Turbo" in cache_class.__name__:
        return cache_class(left_padding, bits=4)
    return cache_class(left_padding)


def make_keys_and_values(batch: int, tokens: int) -> Any:
    """Keys and values (batch, 1, tokens, 64), as wide as a quantization group."""
    return mx.ones((batch, 1, tokens, 64)), mx.ones((batch, 1, tokens, 64))


def require_own(target: Target) -> Any:
    """The object that a target names, or NotApplicable if it is imported or inherited."""
    owner, _, attribute = target.name.rpartition(".")
    holder = own_class_of(target) if owner else importlib.import_module(target.module)
    found = getattr(holder, attribute, None)
    is_own = bool(owner) or getattr(found, "__module__", None) == target.module
    if attribute not in vars(holder) or not is_own:
        raise NotApplicable(f"{target.module} defines no {target.name}")
    return found


def require(target: Target) -> Any:
    """The object that a target names, even an imported one, or NotApplicable."""
    scope: Any = importlib.import_module(target.module)
    for part in target.name.split("."):
        scope = getattr(scope, part, None)
        if scope is None:
            raise NotApplicable(f"this release has no {target.name}")
    return scope


def own_module(target: Target) -> Any:
    """Import the module of a target, which must define it."""
    require_own(target)
    return module_of(target)


def module_with(target: Target) -> Any:
    """Import the module of a target, which must define or import it."""
    require(target)
    return module_of(target)


def class_of(target: Target) -> Any:
    """The class of a target, even an imported one, or NotApplicable."""
    require(target)
    return getattr(importlib.import_module(target.module), target.name.partition(".")[0])


@contextlib.contextmanager
def without_variable(name: str) -> Iterator[None]:
    """Unset an environment variable inside the block."""
    with mock.patch.dict(os.environ):
        os.environ.pop(name, None)
        yield


@contextlib.contextmanager
def with_patches(patches: tuple[str, ...]) -> Iterator[None]:
    """Apply these patches inside the block, to hide other defects; deleted ones are skipped."""
    from ..activation.session import session
    from ..core.manager import Manager
    from .child import open_gate

    registry = session().registry
    found = [registry.get(id_) for id_ in patches if id_ in registry]
    manager = Manager(open_gate(*found))
    try:
        for patch in found:
            manager.apply(patch)
        yield
    finally:
        manager.restore()


def make_bare_generator(module: Any, **state: Any) -> Any:
    """A batch generator of mlx-vlm with only this state; it is neither constructed nor closed."""
    nothing: dict[str, Any] = dict.fromkeys(("__init__", "__del__"), lambda self: None)
    nothing["__module__"] = module.__name__
    generator = type("Generator", (module.BatchGenerator,), nothing)()
    vars(generator).update(state)
    return generator


def make_module(kind: Any, **parts: Any) -> Any:
    """A part of a model of this class, not constructed: it has only these attributes."""
    import mlx.nn as nn

    made = kind.__new__(kind)
    nn.Module.__init__(made)
    vars(made).update(parts)
    return made


def make_sound(frames: bytes = bytes(3200), rate: int = 16000, channels: int = 1) -> bytes:
    """A WAV file of 16-bit samples; a tenth of a second of silence if none are given."""
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((channels, 2, rate, 0, "NONE", ""))
        made.writeframes(frames)
    return file.getvalue()


def make_prompt_batch(kind: Any, rests: Sequence[Sequence[int]], model: Any, **options: Any) -> Any:
    """A ``PromptProcessingBatch`` of mlx-vlm for prompts whose rests are not processed yet."""
    given: dict[str, Any] = {
        "uids": list(range(len(rests))),
        "input_ids": [list(rest) for rest in rests],
        "max_tokens": [4] * len(rests),
        "inputs_embeds": mx.zeros((len(rests), max(map(len, rests)), 2)),
    }
    return kind(model=model, **{"prompt_kwargs": {}, "warm_cache": [], **given, **options})


def make_prefix_hits(layers: Sequence[Any], lengths: Sequence[int]) -> list[dict[str, Any] | None]:
    """Hits of mlx-vlm's prefix cache, one block each; ``layers``: heads and width of both."""

    def draw(shape: tuple[int, int], length: int) -> Any:
        return mx.random.normal((1, shape[0], length, shape[1]))

    def block(length: int) -> Any:
        return SimpleNamespace(
            keys=[draw(keys, length) for keys, _ in layers],
            values=[draw(values, length) for _, values in layers],
        )

    return [
        {"matched_blocks": [block(length)], "prefix_len": length, "extra_hash": 0}
        if length
        else None
        for length in lengths
    ]


class CountingModel:
    """A model without layers, whose next token is the last one plus 1."""

    layers: tuple[()] = ()
    words = 128

    def __call__(self, tokens: Any, cache: Any = None, **kwargs: Any) -> Any:
        return mx.eye(self.words)[(tokens + 1) % self.words] * 10.0

    def make_cache(self) -> list[Any]:
        return []


def restore_cache(cache: Any) -> Any:
    """Restore a new cache from another's state, as loading it from a file does."""
    meta = [cache.meta_state] if hasattr(cache, "meta_state") else []
    return type(cache).from_state(cache.state, *meta)


def make_fed_cache(cache: Any, length: int) -> Any:
    """Feed the cache tokens 1, 2, ... in one chunk; returns the cache."""
    tokens = mx.arange(1.0, length + 1).reshape(1, 1, length, 1)
    cache.update_and_fetch(tokens, tokens)
    return cache


def feed_one_by_one(cache: Any, length: int) -> Any:
    for token in range(1, length + 1):
        step = mx.full((1, 1, 1, 1), float(token))
        cache.update_and_fetch(step, step)
    return cache


def compare_loaded(
    caches: Any, kept: list[Any], feed: Callable[[list[Any], int], list[Any]]
) -> Result:
    """Red if caches loaded from a file continue differently than unsaved ones."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/cache.safetensors"
        caches.save_prompt_cache(file, kept, {"own": "entry"})
        loaded, metadata = caches.load_prompt_cache(file, return_metadata=True)
        before, after = feed(kept, 1), feed(loaded, 1)
    if metadata != {"own": "entry"}:
        return Result(True, f"the file's metadata is {metadata}")
    return Result(before != after, f"after a token: {after}, not saved {before}")


def record_messages(act: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Call ``act``; returns its result and the messages that mlx_patches logged meanwhile."""
    messages: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mlx_patches")
    logger.addHandler(listener)
    try:
        return act(), messages
    finally:
        logger.removeHandler(listener)


# Patches for defects that many models have in a batch, besides the probed one.
BATCH_PATCHES = ("offset-alias", "mask-from-cache-list", "mask-after-update", "mask-by-offset")


def make_scope(method: str, path: str, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    http = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}
    place = {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": b""}
    ends = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    return {**http, **place, **ends, "method": method, "headers": list(headers)}


async def read_body(kind: Any, endpoint: str, body: Any, receive: Any = None) -> Any:
    """The body that an endpoint, ``module:name``, gets from Starlette's ``Request``."""
    module, _, name = endpoint.partition(":")
    message = {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
    messages = [message]

    async def receive_message() -> Any:
        return messages.pop() if messages else await receive()

    function = FunctionType((lambda: None).__code__, {"__name__": module}, name)
    scope = make_scope("POST", "/") | {"endpoint": function}
    return await kind(scope, receive_message).json()
