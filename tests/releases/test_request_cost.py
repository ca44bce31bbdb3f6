"""The cost of a patch is linear in the request: inputs of sizes n, 4n and 16n."""

import ast
import contextlib
import importlib
import json
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches._shared import stop_strings

from . import work
from .steps import backtracks

PATCHES = Path(stop_strings.__file__).parents[1]
SIZE = 96
Case = Callable[[int], Callable[[], Any]]

# The modules whose functions get contents of a request.
PATH = re.compile(
    r"mlx_lm\.(server|generate|sample_utils|tokenizer_utils|tool_parsers)"
    r"|mlx_vlm\.(server|generate|sample_utils|tokenizer_utils|apc|utils|prompt_utils)"
    r"|(vllm_mlx|omlx|rapid_mlx|app|starlette)\."
)
# A patch's cost that no size of a request changes.
START = "runs when a server, a model, a tokenizer or a generator is built"
LAYERS = "does a few things for each layer of a model"
ARRAYS = "does a few things with arrays as large as the release's own, for each row or layer"
CONSTANT: dict[str, str] = {
    "speculative-window": LAYERS,
    "vlm-draft-turns": LAYERS,
    "vlm-draft-options": "checks a few options of a generation",
    "batch-refused": START,
    "cancelled-prompt": LAYERS,
    "config-names": START,
    "deepstack-rows": ARRAYS,
    "draft-none": "joins a call's tokens once, as the release does with drafts",
    "extend-solo-batch": ARRAYS,
    "extra-eos": START,
    "gemma-image-blocks": ARRAYS,
    "qwen3-omni-sounds": "loads each sound once, as the release does",
    "stereo-sounds": "resamples a sound once, as the release does",
    "openai-server-answers": "searches each chunk as vllm-stop-text does; checks some fields",
    "openai-server-hang-up": "checks the client once per chunk",
    "rapid-logprobs": "checks each chunk; evaluates arrays of a step, as the release does",
    "vlm-hang-up": "checks the client's socket once per token",
    "vlm-model-swap": "looks a request up in a set",
    "llava-next-tiles": ARRAYS,
    "vlm-row-samplers": "reads some numbers of a request; a call per sampler and step",
    "vlm-sampling-parameters": "reads some numbers of a request",
    "vlm-tool-choice": "compares the names of a request's tools; masks the logits of a few tokens",
    "vlm-schema-thinking": "reads some fields of a request",
    "vllm-messages-stop": "replaces a word in each event of a stream",
    "vllm-processor-failure": "checks each processor of a request once per token",
    "vllm-stream-end": "makes one empty object at the end of a stream",
    "vllm-simple-hang-up": "checks a flag and lets other tasks run, once per token",
    "vllm-simple-busy": "makes one object per request; passes on each chunk",
    "vllm-row-samplers": "reads some numbers of a request; a call per sampler and step",
    "generator-stream": "saves and restores a thread's default stream for each token",
    "granite4-features": ARRAYS,
    "image-rows": ARRAYS,
    "omni-deepstack": ARRAYS,
    "qwen3-vl-deepstack": ARRAYS,
    "kv-bits-refused": START,
    "lfm2-vl-images": "changes a new processor; cuts an image into at most 10 tiles",
    "phi4-siglip-images": "runs a tower once per image instead of once for all",
    "roberta-limit": START,
    "vllm-image-cache": "adds an option to a call",
    "vllm-media-end": "compares two numbers per output; looks for media as the engine does",
    "vllm-temperature": "passes two numbers of a request",
    "vllm-text-model": START,
    "server-hang-up": "checks the client's socket for each token and each chunk of the prompt",
    "vllm-legacy-prefix-hit": "as vllm-prefix-hit; checks each layer",
    "max-kv-size-ignored": START,
    "minicpm-images": "compares a model's name when a conversation is formatted",
    "nemotron-omni-images": "converts each frame of a video once, before the release resizes it",
    "model-code-consent": START,
    "model-file-names": START,
    "padded-deltas": ARRAYS,
    "paligemma-images": "replaces a number when a generation starts",
    "pool-overlap": LAYERS,
    "vlm-prefix-cache-lists": LAYERS,
    "vlm-prefix-chunks": LAYERS,
    "vlm-prefix-first-token": ARRAYS,
    "vlm-prefix-kv-bits": ARRAYS,
    "vlm-prefix-no-config": "replaces a generator's model by a constant",
    "vlm-prefix-widths": ARRAYS,
    "quantized-merge": LAYERS,
    "recurrent-extract": ARRAYS,
    "ring-cache-batching": LAYERS,
    "rotating-keep": START,
    "sampling-threads": "looks up a thread's function",
    "server-cache-bytes": START,
    "server-start-adapter": START,
    "speculative-split": LAYERS,
    "stream-spaces": "encodes a short constant text when a detokenizer is built",
    "top-p-dtype": ARRAYS,
    "vllm-fetched-prefix": LAYERS,
    "vllm-gemma4-attention": START,
    "vllm-loaded-model": START,
    "vllm-sliding-offset": LAYERS,
    "vllm-sliding-vlm": LAYERS,
    "vllm-stop-tokens": START,
    "vlm-api-key": START,
    "vllm-rerank-types": "adds an array as large as the embeddings of a pair's tokens",
    "vlm-embedding-inputs": "reads the mask that the tokenizer returns once",
    "vlm-request-adapter": "looks up an adapter; checks the stack once if a request names one",
    "vlm-fresh-seed": "draws one number",
    "vlm-lazy-inputs": "computes the arrays of a request earlier",
    "vlm-preprocess-turns": "takes a lock",
    "vlm-quantize-last-layer": LAYERS,
    "vlm-request-failure": "catches an error",
}


def nothing(*args: Any, **kwargs: Any) -> None:
    pass


def module_of(name: str) -> Any:
    return importlib.import_module(f"mlx_patches.patches.{name}")


def calls(function: Callable[..., Any], *inputs: Callable[[int], Any]) -> Iterator[Case]:
    """A case for each input: it is made first, then the function is called with it."""
    for make in inputs:
        yield lambda n, make=make: partial(function, make(n))


# Stop strings


@dataclass
class Response:
    text: str
    finish_reason: str | None = None
    peak_memory: int = 1


class Word(str):
    """A text whose comparisons with others count: ``word in words`` is one call."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


STOPS: tuple[Callable[[int], tuple[list[str], list[str]]], ...] = (
    lambda n: (["xy"] * 8, ["x" * n]),
    lambda n: (["x"] * n, ["x" * (n + 1)]),
    lambda n: (["x"] * n, ["x" * (n // 2) + "y"]),
    lambda n: (["xy"] * n, ["xy" * n + "z", "yx" * n + "z"]),
    lambda n: (["x" * n], ["x" * n + "y"]),
    lambda n: (["abc"] * 8, [f"abc{number}" for number in range(n)]),
    lambda n: (["abc"] * 8, ["abc"] * n),
    lambda n: (["é\ud800\U0001f600"] * n, ["é\ud800" * n]),
    # Every state of one is a state of all others.
    lambda n: (["x"] * 3 * math.isqrt(n) + ["y"], ["x" * i + "z" for i in range(math.isqrt(n))]),
    lambda n: ([chr(i) for i in range(math.isqrt(n))], suffixes(math.isqrt(n))),
    lambda n: (["a word "] * n, ["\nUser:", "###", "<|im_end|>"]),
)


def suffixes(length: int) -> list[str]:
    text = "".join(map(chr, range(length)))
    return [text[start:] + "!" for start in range(length)]


def server_stops(n: int, make: Any) -> Callable[[], Any]:
    patch = module_of("server.server_stop_text.patch")
    texts, stops = make(n)
    words, responses = list(map(Word, stops)), list(map(Response, texts))
    args = SimpleNamespace(stop_words=words)
    generate = lambda *_: (SimpleNamespace(stop=nothing), responses)  # noqa: E731
    return lambda: [None for _ in patch.end_at_stops(generate, None, None, args)[1]]


def vlm_videos(n: int) -> Callable[[], Any]:
    """A prompt with many videos of one token."""
    patch = module_of("positions.video_rate.patch")
    import mlx.core as mx

    vision = SimpleNamespace(tokens_per_second=2)
    model = SimpleNamespace(config=SimpleNamespace(video_token_id=7, vision_config=vision))
    out = mx.zeros((3, 1, 2 * n), mx.int32), mx.zeros((1, 1), mx.int32)
    tokens = mx.array([[7, 1] * n])
    return lambda: patch.scale_videos(out, model, tokens, [None] * n, None)


def vlm_timed_videos(n: int) -> Callable[[], Any]:
    """Many videos of two grids in a prompt."""
    patch = module_of("positions.video_timestamps.patch")
    import mlx.core as mx

    grids = mx.array([[2, 2, 2]] * n)

    class Videos:
        merge_size = 2

        def __call__(self, videos: Any) -> Any:
            return {"video_grid_thw": grids}

    class Qwen3VLProcessor:
        vision_start_token, video_token, vision_end_token = "<", "v", ">"
        video_processor = Videos()

    processor, given = Qwen3VLProcessor(), {"videos": [[None] * 4] * n, "fps": [1.0] * n}
    return lambda: patch.process_timed(lambda *_, **__: {}, processor, "<v>" * n, **given)


def vlm_video_blocks(n: int) -> Callable[[], Any]:
    """A prompt with many blocks of videos."""
    patch = module_of("positions.video_timestamps.patch")
    import mlx.core as mx

    model = SimpleNamespace(config=SimpleNamespace(video_token_id=7))
    tokens, grids = mx.array([[7, 1] * n]), mx.array([[2, 2, 2]] * (n // 2))
    return lambda: patch.split_grids(model, tokens, grids)


class Tokens:
    def __init__(self, texts: list[str]):
        self.rest = map(Response, texts)

    def __iter__(self) -> Any:
        return self.rest

    def close(self) -> None:
        pass


def vlm_stops(n: int, make: Any) -> Callable[[], Any]:
    patch = module_of("server.vlm_stop_text.patch")
    texts, stops = make(n)
    request, tokens = SimpleNamespace(stop=list(map(Word, stops))), Tokens(texts)

    def run() -> None:
        args = patch.add_stops(SimpleNamespace(), request, None)
        if not patch.has_stops(args):
            return
        for _ in patch.end_at_stops((None, tokens), "hi", args)[1]:
            pass

    return run


def unread_image(n: int) -> Callable[[], Any]:
    pytest.importorskip("mlx_vlm.server")
    return partial(module_of("server.vlm_unread_images.patch").blame_client, ValueError(" <" * n))


@dataclass
class Output:
    new_text: str
    finished: bool = False
    finish_reason: str | None = None
    matched_stop: str | None = None
    text: str = ""


def vllm_stops(n: int, make: Any) -> Callable[[], Any]:
    patch = module_of("vllm_mlx.vllm_requests.stops")
    texts, stops = make(n)
    outputs = [*map(Output, texts), Output("", True, "stop", stops[0])]

    async def stream() -> Any:
        for output in outputs:
            yield output

    async def read(cut: Any) -> None:
        async for _ in cut(stream(), stops):
            pass

    def run() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(patch, "clean_text", str)
            for cut in (patch.cut_outputs, patch.hold_outputs):
                with pytest.raises(StopIteration):
                    read(cut).__await__().send(None)

    return run


def unread_calls(n: int) -> Callable[[], Any]:
    patch = module_of("vllm_mlx.vllm_unread_calls.patch")
    parser = SimpleNamespace()

    def run() -> None:
        for _ in range(n):
            patch.pass_text(lambda *_: ("", None), parser, "", "a word")
        patch.end_text(nothing, parser)

    return run


def drop_fields(n: int) -> Callable[[], Any]:
    fields = module_of("vllm_mlx.vllm_requests.fields")
    body = {"prompt": "a" * n, "logit_bias": {str(number): 1 for number in range(n)}}

    def run() -> None:
        token = fields.FIELDS.set(body)
        fields.read_bias()
        fields.FIELDS.reset(token)

    return run


# Tool calls


def vlm_calls(n: int, make: Any) -> Callable[[], Any]:
    patch = module_of("server.vlm_unread_calls.patch")
    tokens = Tokens(make(n))
    thinking = module_of("_shared.vlm_sections").Sections([("<think>", "</think>")], "")

    def run() -> None:
        for _ in patch.check_calls(tokens, "<c>", "</c>", lambda call: "x" in call, thinking.has):
            pass

    return run


# Text, open calls, unreadable calls, markers within one, and thinking.
CALLS = (
    lambda n: ["a"] * n,
    lambda n: ["<"] * n,
    lambda n: ["<c>", *["a"] * n],
    lambda n: ["<c>", "a", "</c>"] * n,
    lambda n: ["<c>"] * n + ["</c>"],
    lambda n: ["<c>x"] * n + ["</c>"],
    lambda n: ["<c>a</c>" * n],
    lambda n: ["<think>", *["a"] * n],
)


def convert_arguments(text: Callable[[int], str]) -> Case:
    def convert(value: str, *_: Any) -> Any:
        raise ValueError(value)

    schema = {"a": {"type": "object"}, "b": {"type": "integer"}}
    patch = module_of("server.tool_arguments.patch")

    def make(n: int) -> Callable[[], Any]:
        value = text(n)
        return lambda: [patch.convert_value(convert, value, "a", schema), is_number(value)]

    def is_number(value: str) -> Any:
        return patch.is_integer(value)

    return make


TEXTS: tuple[Callable[[int], str], ...] = (
    lambda n: "a" * n,
    lambda n: "a " * n,
    lambda n: "a" + " " * n,
    lambda n: "a[ARGS]" * n,
    lambda n: "a[ARGS]{}" * n,
    lambda n: "a [ARGS] " + "[" * n,
    lambda n: 'a[ARGS]{"a": "' + "\\" * n,
    lambda n: json.dumps([{"name": "a", "arguments": {"b": 1}}] * n),
    lambda n: "9" * n,
    lambda n: "0." + "0" * n + "1",
    lambda n: "[1, " * n,
    lambda n: "1" + "+1" * n,
    lambda n: "-" * n,
    lambda n: '{"a":' * n,
    lambda n: "<parameter=" * n,
    lambda n: "<parameter=a" + " " * n,
    lambda n: "<parameter=" + "a" * n,
    lambda n: "<parameter=a\n1</parameter>" * n,
    lambda n: "<arg_key>" * n,
    lambda n: "[" + ", ".join(["f(a=1)"] * n) + "]",
    lambda n: "[f(a=[" + "true, " * n + "])]",
    lambda n: "[f" + ".f" * n + "()]",
    lambda n: "[f(a='" + "]" * n + "')]",
    lambda n: "<|channel>" * n,
    lambda n: "<|channel>thought\na<channel|>b" * n,
    lambda n: "<|channel>response" * n,
    lambda n: "<channel|>" * n,
    lambda n: "x-anthropic-billing-header:" * n,
    lambda n: "x-anthropic-billing-header: a\n" * n,
    lambda n: "\n" * n,
    lambda n: "\\" * n,
    lambda n: "\\u00" * n,
    lambda n: "thought" * n,
    lambda n: "a/" * n,
    lambda n: "../" * n,
    lambda n: "http://a/" + "b/" * n,
    lambda n: "http://" + "a." * n,
    lambda n: "http://" + "1." * n,
    lambda n: "http://[" + ":" * n,
    lambda n: "http://" + "é" * n,
    lambda n: "http://a:" + "1" * n,
    lambda n: "http://" + "a@" * n,
    lambda n: "data:image/png;base64," + "A" * 4 * n,
    lambda n: "data:" * n,
)


# Servers' requests


def lm_hits(n: int) -> Callable[[], Any]:
    patch, chunks = (
        module_of(f"server.server_{name}.patch") for name in ("prefix_hit", "chunked_hit")
    )
    tokens = list(range(n))
    found = [SimpleNamespace(is_trimmable=lambda: False)]

    def fetch(prompts: Any, model: Any, tokens: Any) -> Any:
        return found, []

    def run() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            caches = SimpleNamespace(can_trim_prompt_cache=lambda _: False)
            monkeypatch.setitem(sys.modules, "mlx_lm.models.cache", caches)
            patch.fetch_and_leave_one(fetch, None, None, tokens)
        chunks.drop_incomplete_hit((found, []), tokens)

    return run


def vllm_hit(n: int) -> Callable[[], Any]:
    patch, tokens = module_of("vllm_mlx.vllm_prefix.hit"), list(range(n))

    class Layer:
        offset = n

        def is_trimmable(self) -> bool:
            return True

        def trim(self, count: int) -> None:
            pass

    return lambda: patch.cut_hit(([Layer()], []), None, tokens)


def page_blocks(n: int) -> Callable[[], Any]:
    """Store and fetch a prompt of n blocks of two tokens."""
    paged = module_of("vllm_mlx.vllm_prefix.paged")
    tokens, keys = list(range(2 * n + 1)), paged.Keys(range(2 * n + 1))
    index, blocks = paged.Index(), {}
    for number in range(n):
        end = 2 * (number + 1)
        content = paged.Content(keys.upto(end), end - 2, end, [paged.Span(dict, None, None)])
        blocks[number] = SimpleNamespace(block_id=number, cache_data=content, token_count=2)
        index.add(number, end, content.key)
    manager = SimpleNamespace(allocated_blocks=blocks)
    cache = SimpleNamespace(paged_cache=manager, **{paged.INDEX: index})

    def run() -> None:
        assert len(paged.find_longest(cache, tokens)) == n

    return run


def store_entry(n: int) -> Callable[[], Any]:
    stored, tokens = module_of("vllm_mlx.vllm_prefix.stored"), list(range(n))
    prefixes = SimpleNamespace(_entries={tuple(tokens): SimpleNamespace(cache=[])})
    return lambda: stored.store_copies(nothing, prefixes, tokens)


def biases(n: int) -> Callable[[], Any]:
    patch = module_of("generation.sampling_limits.patch")

    def make(logit_bias: Any = None, penalty: Any = None) -> list[Any]:
        return [lambda tokens, logits: logits]

    bias, logits = dict.fromkeys(range(n), 1.0), SimpleNamespace(shape=(1, n))
    return lambda: [
        process([], logits) for process in patch.make_in_limits(make, logit_bias=bias) for _ in "ab"
    ]


def see_prompts(n: int) -> Callable[[], Any]:
    import mlx.core as mx

    vlm, vllm = (
        module_of(name)
        for name in ("generation.vlm_prefix_penalty.patch", "vllm_mlx.vllm_prefix_penalty.patch")
    )
    batch = SimpleNamespace(_apc_meta=[{"full_input_ids": range(n)}], _token_context=[[]])
    many = [(uid, [[1]], 0, 0, [], 0, [nothing]) for uid in range(n)]
    waiting = [SimpleNamespace(batch_uid=uid, prompt_token_ids=[1, 2]) for uid in range(n)]
    long = SimpleNamespace(batch_uid=0, prompt_token_ids=range(n))
    penalized = {
        "repetition_penalty": 2,
        "repetition_context_size": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    }
    rows = [SimpleNamespace(output_tokens=[1] * size, **penalized) for size in (n, *[2] * n)]
    tokens = mx.zeros((n + 1, 1), mx.int32)

    def scheduler(sequences: Any) -> Any:
        return SimpleNamespace(batch_generator=SimpleNamespace(_unprocessed_sequences=sequences))

    def run() -> None:
        vlm.add_cached_prompts(batch)
        vllm.pass_cached_tokens(waiting, scheduler(many))
        vllm.pass_cached_tokens([long], scheduler([(0, [[1]], 0, 0, [], 0, [nothing])]))
        vllm.feed_counted(nothing, None, tokens, [], rows)

    return run


def process_prompt(n: int) -> Callable[[], Any]:
    import mlx.core as mx

    patch = module_of("generation.processors_prompt.patch")
    prompt, logits = mx.arange(n), mx.zeros((1, 4))

    def run() -> None:
        process = patch.add_prompt("processors-prompt", prompt, lambda tokens, logits: logits)
        for step in range(8):
            mx.eval(process(prompt[-1 - step :], logits))

    return run


def cache_prompt(n: int) -> Callable[[], Any]:
    import mlx.core as mx

    patch = module_of("server.server_prefix_penalty.patch")
    args = SimpleNamespace(prompt_tokens=[1] * n)

    def run() -> None:
        (process,) = patch.show_prompt([lambda tokens, logits: logits], args)
        for step in range(1, 9):
            mx.eval(process(mx.ones(step), mx.zeros((1, 4))))

    return run


def draft(n: int) -> Callable[[], Any]:
    patch = module_of("generation.draft_kept_cache.patch")
    return lambda: list(patch.finish(((token,) for token in range(n)), list))


def answers(n: int) -> list[Any]:
    """The responses of an answer of n tokens, each with text."""
    logprobs = {"logprob": 0.0, "top_tokens": ()}
    return [SimpleNamespace(token=one, text="a", state="tool", **logprobs) for one in range(n)]


def logprob_entries(n: int) -> Callable[[], Any]:
    patch = module_of("server.server_logprobs.patch")

    def run() -> None:
        handler = SimpleNamespace(logprob_entries=[], stream=True)
        for _ in patch.add_entries(iter(answers(n)), handler.logprob_entries):
            patch.report_entries({"choices": [{}]}, handler, None)
        list(patch.add_entries(iter(answers(n)), handler.logprob_entries))
        handler.stream = False
        patch.report_entries({"choices": [{}]}, handler, [0] * n)

    return run


def renew(n: int) -> Callable[[], Any]:
    patch = module_of("server.server_lru_order.patch")
    prompts = SimpleNamespace(_lru=deque(("model", [1] * n + [one]) for one in range(4)))
    return lambda: patch.renew(prompts, ("model", [1] * n + [2]))


def rows_of_processors(n: int) -> Callable[[], Any]:
    patch = module_of("generation.processor_rows.patch")
    batch, other = (
        SimpleNamespace(
            uids=list(range(n)), samplers=[], logits_processors=[[nothing]], token_context=[[1]]
        )
        for _ in "ab"
    )

    def run() -> None:
        patch.fill_lists(batch, other)
        patch.cut_lists(batch)
        patch.replace_none(batch)

    return run


def sample_rows(name: str) -> Case:
    def make(n: int) -> Callable[[], Any]:
        import mlx.core as mx

        patch, logits = module_of(f"generation.{name}.patch"), mx.zeros((n // 16, 4))
        sample = patch.PATCH.targets[0].factory(lambda row, *_: row)
        return lambda: mx.eval(sample(logits))

    return make


class Detokenizer:
    """The state of the release's detokenizers; every fourth token begins a word."""

    def __init__(self, word: str):
        self.tokenmap = [word, word, word, module_of("_shared.byte_letters").LETTERS[32]]
        self.text, self._unflushed, self.trim_space = "", "", True
        self.tokens: list[int] = []


def detokenize(n: int, word: str) -> Callable[[], Any]:
    patch, detokenizer = module_of("generation.detokenizer_text.patch"), Detokenizer(word)

    def add(detokenizer: Any, token: int) -> None:
        detokenizer._unflushed = "" if token == 3 else word * (n // 4)

    def run() -> None:
        for number in range(n):
            token = number % 4 if number < 8 else 0
            if patch.may_raise(detokenizer, token):
                patch.add_byte_level(add, detokenizer, token)
            if patch.may_wait(detokenizer, token):
                patch.add_sentencepiece(add, detokenizer, token)
            if patch.is_unknown(detokenizer, token):
                patch.add_unknown(add, detokenizer, token)
        detokenizer._text = "\ufffd" * n
        patch.drop_cut_character(nothing, detokenizer)

    return run


def broken_bytes(n: int) -> Callable[[], Any]:
    patch = module_of("generation.detokenizer_text.patch")
    detokenizer = SimpleNamespace(_unflushed=patch.LETTERS[255] * n)

    def advance(detokenizer: Any) -> None:
        if patch.LETTERS[255] in detokenizer._unflushed:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "")

    return lambda: patch.replace_invalid(advance, detokenizer)


def images(n: int) -> Callable[[], Any]:
    limited, public = module_of("server.media.limited"), module_of("server.media.public")
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"image_url": {"url": url}} for _ in range(n // 16)]
    release = {
        "_image_parts": lambda messages: messages,
        "_image_url": lambda part: part["image_url"]["url"],
    }

    def run() -> None:
        guard = partial(limited.guard_source, "host-media-limits")
        limited.put_images(guard, release, parts, nothing, public.check_inline)

    return run


def streams(n: int) -> Callable[[], Any]:
    patch = module_of("vllm_mlx.vllm_stream_parsers.patch")

    async def items() -> Any:
        for number in range(n // 16):
            yield number

    async def read() -> None:
        async for _ in patch.separate_parsers(items()):
            pass

    def run() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setitem(sys.modules, "vllm_mlx.server", ModuleType("vllm_mlx.server"))
            with pytest.raises(StopIteration):
                read().__await__().send(None)

    return run


def format_calls(n: int) -> Callable[[], Any]:
    patch = module_of("server.server_tool_errors.patch")
    many = [{"name": "f"}] * n
    long = {"name": "f", "arguments": {"a": list(range(n))}}
    parse = patch.guard_parser(lambda *_: [*many, long])
    return parse


def take_request(n: int) -> Callable[[], Any]:
    taken = module_of("server.server_batch_error.patch").Taken()
    request = (Queue(), None, SimpleNamespace(stop_words=["a"] * n))
    return lambda: taken.get(lambda: request)


def note_end(n: int) -> Callable[[], Any]:
    patch, tokens = module_of("server.vlm_finish_reason.patch"), Tokens(["a"] * n)
    tokens.__class__ = type("Iterator", (Tokens,), {"__next__": lambda self: next(self.rest)})
    return lambda: [None for _ in patch.note_end(tokens, [])]


def thoughts(n: int) -> Callable[[], Any]:
    patch = module_of("server.vlm_thought_prefix.patch")
    texts = ["a</think>b<think>"] * n
    return lambda: list(patch.split_at_markers([Response(text) for text in texts]))


def pixels(n: int) -> Callable[[], Any]:
    patch = module_of("server.vlm_vision_features.patch")
    inputs = {"pixel_values": [list(range(n))], "grid": [[1, 2]] * n}
    names = ["a" * 8] * n
    turn = SimpleNamespace()
    return lambda: (
        patch.name_pixels(inputs),
        patch.name_state(names),
        patch.is_remote(names),
        patch.drop_other_media(turn, [names]),
    )


def tool_results(n: int) -> Callable[[], Any]:
    """A message with many results, many messages with one, and a result with many parts."""
    patch = module_of("server.host_tool_results.patch")
    parts = [{"type": "image", "source": "x"}, {"type": "text", "text": "x"}]
    result = {"type": "tool_result", "content": parts}
    items = [
        {"role": "user", "content": [result] * n},
        *[{"role": "user", "content": [result]}] * n,
        *[{"role": "tool", "content": parts}] * n,
        {"role": "tool", "content": parts * n},
    ]
    return lambda: list(patch.order_items(items, "vllm_mlx"))


def sounds(n: int) -> Callable[[], Any]:
    patch = module_of("models.several_sounds.patch")
    processor, given = type("Gemma4Processor", (), {})(), ["x"] * n
    return lambda: patch.has_several_sounds(processor, given) and patch.count_as_one(given)


def cut_turns(n: int) -> Callable[[], Any]:
    patch = module_of("generation.vlm_prompt_cache_cut.patch")
    cache = SimpleNamespace(offset=n, trim=nothing, is_trimmable=lambda: True)
    state = SimpleNamespace(cache=[cache], token_ids=list(range(n)))
    return lambda: patch.find_cuttable_prefix(lambda *_: n // 2, state, range(n))


def padding(n: int) -> Callable[[], Any]:
    patch, prompt = module_of("generation.batch_generate.patch"), [0, *[1] * n]
    return lambda: patch.find_spans_by_token([prompt, [0, *prompt[:-1]]], 0)


def waiting_images(n: int) -> Callable[[], Any]:
    patch = module_of("generation.image_prompts.patch")
    sequences = [(0, 0, 0, {})] * n
    generator = SimpleNamespace(_unprocessed_sequences=sequences, prefill_batch_size=8)
    return lambda: patch.count_texts(generator)


class Tokenizer:
    bos_token_id = eos_token_id = None
    eos_token_ids = (1,)

    def encode(self, text: str) -> list[str]:
        return list(text.strip())


def empty_prompts(n: int) -> Callable[[], Any]:
    lm, vllm = (
        module_of("server.server_empty_prompt.patch"),
        module_of("vllm_mlx.vllm_empty_prompt.patch"),
    )
    tokenizer, prompt = Tokenizer(), list(range(n))
    requests = [
        SimpleNamespace(prompt=text, prompt_token_ids=tokens)
        for text, tokens in (("", prompt), (" " * n + "a", None), ("a" * n, None))
    ]
    scheduler = SimpleNamespace(tokenizer=tokenizer)

    def run() -> None:
        lm.fill_empty_prompt(prompt, tokenizer)
        for request in requests:
            vllm.is_empty(scheduler, request)

    return run


def xtc_tokens(n: int) -> Callable[[], Any]:
    patch = module_of("server.server_xtc.patch")
    tokens, body = [[1, 2]] * n, dict.fromkeys(map(str, range(n)), 1) | {"xtc_probability": 1}
    return lambda: (patch.flatten_tokens(tokens), patch.add_threshold(body))


def nest_lists(n: int) -> list[Any]:
    """n nested lists, within the depth limit of JSON's reader."""
    found: list[Any] = []
    for _ in range(min(n, 400)):
        found = [found]
    return [found, *([[1]] * n)]


def give_names(n: int) -> Callable[[], Any]:
    host, public = module_of("server.media.host"), module_of("server.media.public")
    source: Any = "a" * n
    for _ in range(n // 16):
        source = {"url": source}
    lists = nest_lists(n)
    return lambda: (host.find_source(source, "image"), public.refuse_names(lists))


def send_templates(n: int) -> Callable[[], Any]:
    patch = module_of("server.host_request_templates.patch")
    messages = [{"role": "user", "content": "a"}] * n
    body: Any = dict.fromkeys(map(str, range(n)), 1) | {"messages": messages}
    for _ in range(50):
        body = {"extra_body": body, "chat_template_kwargs": {"a": body}}
    return lambda: patch.check_body({"extra_body": messages, **body["extra_body"]})


def send_schemas(n: int) -> Callable[[], Any]:
    patch = module_of("server.host_schema_refs.patch")
    schema: Any = {"enum": ["a"] * n}
    for _ in range(n):
        schema = {"anyOf": [schema, {"$ref": "#"}]}
    return lambda: patch.check_body({"messages": [], "tools": [schema], "response_format": schema})


def send_values(n: int) -> Callable[[], Any]:
    values = module_of("_shared.request_values")
    parts = [
        {"type": "image_url", "image_url": {"url": "a" * n}},
        *[{"type": "text", "text": ""}] * n,
    ]
    messages = [{"role": "user", "content": "a"}] * n
    fields = {"stop": ["a"] * n, "logit_bias": dict.fromkeys(map(str, range(n)), 1)}
    body = {"messages": [*messages, {"content": parts}], "tools": [{}] * n, **fields}
    return lambda: (values.find_value_fault(body), values.has_media(body))


def render(n: int) -> Callable[[], Any]:
    jinja2: Any = pytest.importorskip("jinja2")
    place = "loading.template_sandbox.environment"
    bounds = module_of(place)
    source = (
        "{% set ns = namespace(last='') %}{% for m in messages %}{% if loop.first %}{% endif %}"
        "{{ m.role | trim }}{% if m.content is string %}{{ m['content'].split('a')[-1] }}"
        "{% else %}{% for part in m.content %}{{ part.text | upper }}{% endfor %}{% endif %}"
        "{% set ns.last = m.role ~ ':' %}{% endfor %}{{ messages | tojson }}"
    )
    sandbox = bounds.make_sandbox(jinja2.Environment())
    template = bounds.limit_render(sandbox.from_string(source), source)
    messages = [{"role": "user", "content": "aba"}] * (n // 4)
    messages.append({"role": "user", "content": [{"text": "a"}] * (n // 4)})

    def run() -> None:
        try:
            template.render(messages=messages)
        except ValueError as error:  # else it would count as an answer
            raise AssertionError("the template was stopped") from error

    return run


def texts(function: Callable[[], Callable[..., Any]]) -> list[Case]:
    """Every text as the input of a function that is looked up when the case runs."""
    return [lambda n, make=make: partial(function(), make(n)) for make in TEXTS]


def of(module: str, name: str, *args: Any) -> list[Case]:
    return texts(lambda: partial(getattr(module_of(module), name), *args))


def refuse(module: str, name: str, *args: Any, times: int = 1) -> list[Case]:
    def look_up() -> Callable[..., Any]:
        error, function = module_of("_shared.refusals").Refused, getattr(module_of(module), name)

        def call(text: str) -> None:
            with contextlib.suppress(error):
                function(text, *args)

        return call

    return [lambda n, case=case: case(times * n) for case in texts(look_up)]


_ENCODED = "models.encoded_sounds.patch"
_ARGUMENTS, _PYTHONIC = "server.tool_arguments.patch", "server.pythonic_calls.patch"
CASES: dict[str, list[Case]] = {
    "video-rate": [vlm_videos],
    "video-timestamps": [vlm_timed_videos, vlm_video_blocks],
    "server-stop-text": [partial(server_stops, make=make) for make in STOPS],
    "vlm-stop-text": [
        *(partial(vlm_stops, make=make) for make in STOPS),
        partial(vlm_stops, make=lambda n: (["a"], [""] * n)),
    ],
    "vlm-image-turns": [
        lambda n: partial(
            module_of("server.vlm_image_turns.patch").place_images,
            [{"role": "user", "content": [{"type": "image"}] * 2}] * n,
            n,
            {"model_type": "qwen2_vl"},
        )
    ],
    "vlm-video-turns": [
        lambda n: partial(
            module_of("server.vlm_image_turns.videos").place_videos,
            [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "a"}]}] * n,
            0,
            0,
            ["a"] * n,
        )
    ],
    "vlm-unread-calls": [partial(vlm_calls, make=make) for make in CALLS],
    "molmo2-inputs": [
        lambda n: partial(
            module_of("models.molmo2_inputs.patch").begin_prompts,
            ["a"] * n,
            SimpleNamespace(tokenizer=SimpleNamespace(bos_token="<s>")),
        )
    ],
    "vlm-unread-images": [
        unread_image,
        lambda n: partial(
            module_of("server.vlm_unread_images.patch").check_count,
            "<image> " * n,
            "<image>",
            n,
            "images",
        ),
    ],
    "server-batch-error": [take_request],
    "server-tool-arguments": [
        *of(_ARGUMENTS, "close_names"),
        *of(_ARGUMENTS, "strip_name"),
        *of(_ARGUMENTS, "parse_each_call", lambda text, *_, **__: {}),
        *map(convert_arguments, TEXTS),
    ],
    "server-pythonic-calls": of(_PYTHONIC, "find_calls"),
    "server-tool-errors": [format_calls],
    "host-media-limits": [
        *of("server.media.limited", "check_image"),
        *of("server.media.limited", "is_web"),
        images,
    ],
    "host-media-policy": [
        *refuse("server.media.fetch_policy", "split_url"),
        # Longer than the longest path: below that, following links may be quadratic.
        *refuse("server.media.paths", "resolve_path", [Path("/")], times=64),
        *refuse("server.media.public", "check_inline"),
        *refuse("server.media.public", "check_voice_name"),
        *refuse("server.media.paths", "is_admitted", times=64),
    ],
    "host-media": [give_names],
    "host-request-models": of("server.request_models.patch", "is_allowed", ("default_model", "a")),
    "host-request-templates": [send_templates],
    "host-schema-refs": [send_schemas],
    "host-request-parameters": [send_values],
    "template-sandbox": [render],
    "detokenizer-text": [
        partial(detokenize, word="a"),
        partial(detokenize, word="é"),
        broken_bytes,
    ],
    "draft-kept-cache": [draft],
    "extracted-tokens": [
        lambda n: partial(
            module_of("generation.extracted_tokens.patch").copy_tokens, list(range(n))
        )
    ],
    "server-ignored-parameters": [
        lambda n: partial(
            module_of("server.server_ignored_parameters.patch").find_ignored,
            {str(one): one for one in range(n)},
        )
    ],
    "server-logprobs": [logprob_entries],
    "server-lru-order": [renew],
    "server-open-calls": [
        lambda n: (
            lambda: list(module_of("server.server_open_calls.patch").fill_states(iter(answers(n))))
        )
    ],
    "server-prefix-penalty": [cache_prompt],
    "server-unread-calls": [
        lambda n: partial(
            module_of("server.server_unread_calls.patch").read_calls,
            lambda formatter, texts: [],
            SimpleNamespace(),
            ["a"] * n,
        )
    ],
    "server-prefix-hit": [lm_hits],
    "server-chunked-hit": [lm_hits],
    "server-short-prompt": [
        lambda n: partial(module_of("server.server_short_prompt.patch").clamp_start, -n)
    ],
    "server-empty-prompt": [empty_prompts],
    "vllm-empty-prompt": [empty_prompts],
    "server-xtc": [xtc_tokens],
    "vllm-stop-text": [lambda n, make=make: vllm_stops(n, make) for make in STOPS],
    "vllm-unread-calls": [unread_calls],
    "vllm-request-fields": [drop_fields],
    "vllm-prefix-hit": [vllm_hit],
    "vllm-paged-prefix": [page_blocks],
    "vllm-stored-prefix": [store_entry],
    "sampling-limits": [biases],
    "vlm-prefix-penalty": [see_prompts],
    "vllm-prefix-penalty": [see_prompts],
    "processors-prompt": [process_prompt],
    "processor-rows": [rows_of_processors],
    "xtc-rows": [sample_rows("xtc_rows")],
    "top-p-rows": [sample_rows("top_p_rows")],
    "vllm-json-escapes": [
        lambda n, make=make: partial(
            module_of("vllm_mlx.vllm_json_escapes.patch").double_backslashes, make(n).encode()
        )
        for make in TEXTS
    ],
    "vllm-stream-parsers": [streams],
    "vllm-billing-header": [
        *of("vllm_mlx.vllm_billing_header.patch", "cut_line"),
        lambda n: partial(
            module_of("vllm_mlx.vllm_billing_header.patch").cut_line,
            [{"text": "x-anthropic-billing-header: a\nb"}] * n,
        ),
    ],
    "vllm-gemma4-reasoning": of("vllm_mlx.vllm_gemma4_reasoning.patch", "parse_answer"),
    "vlm-thought-prefix": [
        lambda n, make=make: partial(
            module_of("server.vlm_thought_prefix.patch").cut_word, make(n), "thought"
        )
        for make in TEXTS
    ]
    + [thoughts],
    "vlm-finish-reason": [note_end],
    "vlm-vision-features": [pixels],
    "vlm-prompt-cache-cut": [cut_turns],
    "padded-prompts": [padding],
    "host-tool-results": [tool_results],
    "several-sounds": [sounds],
    "encoded-sounds": [*of(_ENCODED, "decode"), *of(_ENCODED, "is_encoded")],
    "image-prompts": [waiting_images],
}


# Takes as long as half of the others.
SLOW = ("vllm-stop-text",)


def on_path() -> list[Any]:
    """The patches with a target that gets contents of a request, as pytest parameters."""
    registry = catalogue.builtin()
    declared = map(registry.find_declared, registry.ids())
    found = sorted(
        patch.id for patch in declared if any(PATH.match(one.module) for one in patch.targets)
    )
    return [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in found]


@pytest.mark.parametrize("patch", on_path())
def test_work_is_linear_in_request(patch):
    assert (patch in CASES) != (patch in CONSTANT), "a patch on a request's path has no cost case"
    for number, make in enumerate(CASES.get(patch, ())):
        assert not (found := work.superlinear(make, SIZE)), f"case {number}: {found}"


def expressions() -> list[tuple[str, re.Pattern[Any]]]:
    """The regular expressions of all patches, compiled or passed to a function of ``re``."""
    found = {}
    for file in sorted(PATCHES.rglob("*.py")):
        if file.name.startswith("probe") or "re." not in (source := file.read_text()):
            continue
        module = importlib.import_module(
            ".".join(("mlx_patches.patches", *file.relative_to(PATCHES).with_suffix("").parts))
        )
        values = [*vars(module).values()]
        values += [part for one in values if isinstance(one, tuple) for part in one]
        for value in values:
            if isinstance(value, re.Pattern):
                found[value] = file.parent.name
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=function),
                    args=[ast.Constant(value=str(pattern)), *_],
                ):
                    anchored = function in ("match", "fullmatch")
                    if function != "compile":
                        pattern = rf"\A(?:{pattern})" if anchored else pattern
                        found.setdefault(re.compile(pattern), file.parent.name)
    return [(name, expression) for expression, name in found.items()]


@pytest.mark.parametrize(("name", "expression"), expressions(), ids=lambda one: str(one)[:40])
def test_no_expression_reads_a_text_again_and_again(name, expression):
    assert not (found := backtracks(expression)), found


# Work that the counts must detect: earlier forms of the patches, and the same in other forms


def again_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = stop_strings.cut_at_stops

    def joining(responses: Any, *args: Any) -> Any:
        held: list[str] = []
        for response in cut(responses, *args):
            held += [response.text]
            yield replace(response, text="".join([*held, *held]))

    for name in ("server_stop_text", "vlm_stop_text"):
        monkeypatch.setattr(module_of(f"server.{name}.patch"), "cut_at_stops", joining)


def look_up_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(words: list[str]) -> list[str]:
        found: list[str] = []
        found.extend(word for word in words if word not in found)
        return found

    monkeypatch.setattr(module_of("server.server_stop_text.patch"), "read_stops", read)


def copy_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    paged = module_of("vllm_mlx.vllm_prefix.paged")

    def find_longest(cache: Any, tokens: Any) -> list[Any]:
        chains: dict[int, list[Any]] = {0: []}
        for block in paged.find_candidates(cache, tokens):
            content = block.cache_data
            chains[content.end] = [*chains[content.start], block]
        return chains[content.end]

    monkeypatch.setattr(paged, "find_longest", find_longest)


def add_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = module_of("vllm_mlx.vllm_gemma4_reasoning.patch")

    def split(text: str) -> tuple[str, str]:
        reasoning = content = ""
        for channel in text.split(patch.START):
            inside, _, after = channel.partition(patch.END)
            both = (reasoning + inside, content + after)
            reasoning, content = both
        return reasoning, content

    monkeypatch.setattr(patch, "split_channels", split)


@pytest.mark.parametrize(
    ("mutate", "patch"),
    [
        (again_joined, "server-stop-text"),
        (again_joined, "vlm-stop-text"),
        (look_up_words, "server-stop-text"),
        (copy_chains, "vllm-paged-prefix"),
        (add_texts, "vllm-gemma4-reasoning"),
    ],
)
def test_former_quadratic_work_is_found(mutate, patch, monkeypatch):
    mutate(monkeypatch)
    size = SIZE if mutate is again_joined else SIZE // 3  # lines are counted one by one
    assert any(work.superlinear(make, size) for make in CASES[patch])


def test_links_of_a_path_of_any_length_are_seen(monkeypatch):
    monkeypatch.setattr(module_of("server.media.paths"), "_LONGEST", 10**9)
    cases = refuse("server.media.paths", "resolve_path", [Path("/")])
    assert any(work.superlinear(make, SIZE) for make in cases)


def each_prefix(text: str, stops: list[str]) -> int:
    """As ``count_begun`` was: every beginning of every stop string, for every token."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )


def join_again(n: int) -> Callable[[], Any]:
    def run() -> None:
        held: list[str] = []
        for _ in range(n):
            held.append("x")
            "".join(held)

    return run


def read_again(n: int) -> Callable[[], Any]:
    return lambda: [None for one in range(n) for other in range(one)]


def keep_chains(n: int) -> Callable[[], Any]:
    def run() -> list[list[int]]:
        chains: list[list[int]] = [[]]
        for number in range(n):
            chains.append([*chains[-1], number])
        return chains

    return run


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        (lambda n: lambda: [each_prefix("x", ["x" * n]) for _ in range(n)], "lines"),
        (join_again, "allocated"),
        (read_again, "lines"),
        (keep_chains, "allocated"),
        (lambda n: lambda: "a" * (n * n), "allocated"),
    ],
)
def test_planted_quadratic_work_is_seen(planted, kind):
    size = 32 if kind == "lines" else SIZE
    assert work.superlinear(planted, size).startswith(kind)


def test_held_memory_is_seen():
    def make(n):
        return lambda: [bytes(n) for _ in range(n)]

    one, four = (work.measure(make(n)) for n in (256, 1024))
    assert four.held > 12 * one.held


@pytest.mark.parametrize("planted", [r"([\w-]+)\s*\[ARGS\]\s*", r"(a+)+b", r"\s+$", r"x.*y.*z"])
def test_planted_backtracking_is_seen(planted):
    assert backtracks(re.compile(planted))


@pytest.mark.parametrize("planted", [r"a+", r"(?<!\w)\w++x", r"^a[^\n]*", rb"....ftyp", r"[/\\]"])
def test_linear_expressions_pass(planted):
    assert not backtracks(re.compile(planted))
