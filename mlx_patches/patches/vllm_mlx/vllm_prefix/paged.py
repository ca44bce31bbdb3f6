"""vllm-mlx with its paged cache: wrong output after a hit, from blocks of other prefixes.

Why: ``--use-paged-cache`` keeps a prompt's caches in blocks of 64 tokens. A block is found by its
    own tokens (up to 0.2.7 only by their low bytes), although its keys and values depend on all
    tokens before it. Every layer's arrays are cut along axis 2, or along axis 1 if they have three
    axes: a recurrent state or a rotating buffer, which is not a sequence of tokens, is restored
    wrongly, and a state with three axes makes the layer, or the whole cache, unusable. A hit on the
    whole prompt leaves no token to process, so its last token is fed twice.
How: Only a ``KVCache`` is cut, along the axis before the last, whatever its rank. The content of
    any other cache is copied whole into the last block of its sequence, and is used only for a
    prompt that begins with exactly that sequence. A block is found by all tokens up to its end, and
    at least one token is left to process.
Upstream: vllm-mlx 0.2.8 keeps recurrent states whole, and 0.2.9 finds the axis from the rank. In
    0.6.0 a block is still found by its own tokens.
Retire when: A supported release also finds blocks by the tokens before them.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ....core.verbs import Patch, Target, mx, result, wrap
from .hit import make_handles

# The prefix cache's attribute with the ``Index`` of its blocks.
INDEX = "_mlx_patches_blocks"


class Index:
    """Finds the block that ends a prefix.

    A block has one prefix, the last that it was stored for, so the index is never larger than the
    host's pool of blocks.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, bytes], int] = {}  # by the prefix's length and key
        self._prefixes: dict[int, tuple[int, bytes]] = {}  # by the block's id

    def __len__(self) -> int:
        return len(self._prefixes)

    def add(self, block_id: int, end: int, key: bytes) -> None:
        """Record the block that ends a prefix of ``end`` tokens; forget its earlier prefix."""
        self.forget(block_id)
        self.forget(self.find(end, key))
        self._blocks[end, key] = block_id
        self._prefixes[block_id] = end, key

    def forget(self, block_id: int | None) -> None:
        """Drop a block, if it is known."""
        if block_id in self._prefixes:
            del self._blocks[self._prefixes.pop(block_id)]

    def list_ends(self) -> list[int]:
        """The lengths of the known prefixes, the shortest first."""
        return sorted({end for end, _ in self._blocks})

    def find(self, end: int, key: bytes) -> int | None:
        """The id of the block that ends a prefix of ``end`` tokens; None if there is none."""
        return self._blocks.get((end, key))


class Layers(list[Any]):
    """The layers that the scheduler extracted, a dict each, and the tokens in their caches."""

    def __init__(self, layers: Sequence[Any], tokens: Sequence[int]):
        super().__init__(layers)
        self.tokens = tokens
        self.keys = Keys(tokens)


class Keys:
    """The keys of a sequence's prefixes, to be computed in order of rising length."""

    def __init__(self, tokens: Sequence[int]):
        self._tokens = tokens
        self._hash = sha256()
        self._end = 0

    def upto(self, end: int) -> bytes:
        """The key of the first ``end`` tokens."""
        self._hash.update(array("q", self._tokens[self._end : end]))
        self._end = end
        return self._hash.digest()


@dataclass(frozen=True, slots=True)
class Span:
    """Some tokens of a ``KVCache``; keys and values are (..., tokens, head_dim)."""

    kind: type
    keys: Any
    values: Any


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole content of a cache of another class."""

    kind: type
    state: Any
    meta_state: Any


@dataclass(frozen=True, slots=True)
class Content:
    """A block's content: the tokens from ``start`` to ``end`` of the prefix with this key.

    ``layers`` has None for a cache whose state at the block's end is not stored.
    """

    key: bytes
    start: int
    end: int
    layers: list[Span | Whole | None]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> Span | Whole | None:
        return self.layers[layer]

    @property
    def is_end(self) -> bool:
        """Whether all caches can be restored to their state at the block's end."""
        return None not in self.layers

    @property
    def has_whole(self) -> bool:
        """Whether a layer's content can be used only for exactly this prefix."""
        return any(isinstance(layer, Whole) for layer in self.layers)


def store_blocks(
    store: Any, cache: Any, request_id: str, tokens: Sequence[int], cache_data: Sequence[Any]
) -> Any | None:
    """Store a sequence in blocks that are found by prefix; returns its table, or None."""
    if not cache_data or not all(isinstance(layer, dict) for layer in cache_data):
        return store(cache, request_id, tokens, cache_data)
    lengths = {layer["state"][0].shape[-2] for layer in cache_data if is_sequence(layer)}
    if len(lengths) != 1:  # no cache can be cut, or they hold different numbers of tokens
        return None
    known = list(tokens[: lengths.pop()])
    table = store(cache, request_id, known, Layers(cache_data, known))
    index: Index = vars(cache).setdefault(INDEX, Index())
    blocks = cache.paged_cache.allocated_blocks
    for id_ in table.block_ids if table else ():
        content = find_content(blocks.get(id_))
        if content and (blocks[id_].token_count == cache.block_size or content.has_whole):
            index.add(id_, content.end, content.key)
    return table


def is_sequence(layer: dict[str, Any]) -> bool:
    """Whether a layer's state is keys and values that can be cut between tokens."""
    kind = layer.get("class_ref")
    if (kind.__name__ if kind else layer.get("class_name", "KVCache")) != "KVCache":
        return False
    return all(getattr(side, "ndim", 0) in (3, 4) for side in layer["state"][:2])


def cut_block(
    extract: Any, cache: Any, cache_data: Any, start_idx: int, end_idx: int, *rest: Any
) -> Any:
    if not isinstance(cache_data, Layers):
        return extract(cache, cache_data, start_idx, end_idx, *rest)
    last = end_idx == len(cache_data.tokens)
    layers = [take_part(layer, start_idx, end_idx, last) for layer in cache_data]
    return Content(cache_data.keys.upto(end_idx), start_idx, end_idx, layers)


def take_part(layer: dict[str, Any], start: int, end: int, last: bool) -> Span | Whole | None:
    """A layer's part of a block; None if it is stored only with the last block."""
    kind = layer.get("class_ref") or find_class(layer.get("class_name"))
    if is_sequence(layer):
        keys, values = (side[..., start:end, :] for side in layer["state"][:2])
        return Span(kind, keys, values)
    return Whole(kind, make_handles(layer["state"]), layer.get("meta_state")) if last else None


def find_class(name: str | None) -> type:
    """The cache class of this name, as vllm-mlx 0.2.5 stores it; ``KVCache`` by default."""
    from mlx_lm.models import cache

    kind: type = getattr(cache, name or "", cache.KVCache)
    return kind


def fetch_blocks(fetch: Any, cache: Any, request_id: str, tokens: Sequence[int]) -> Any:
    """The table of the longest stored prefix that leaves a token, and the remaining tokens."""
    if INDEX not in vars(cache):
        return fetch(cache, request_id, tokens)
    blocks = find_longest(cache, tokens)
    if not blocks:
        cache._misses += 1
        return None, tokens
    table = cache.paged_cache.create_block_table(request_id)
    for block in blocks:
        cache.paged_cache.increment_ref(block.block_id)
        table.block_ids.append(block.block_id)
        table.num_tokens += block.token_count
    cache._hits += 1
    cache._tokens_saved += table.num_tokens
    return table, list(tokens[table.num_tokens :])


def find_longest(cache: Any, tokens: Sequence[int]) -> list[Any]:
    """The blocks of the longest stored prefix that leaves a token; empty if there is none."""
    last: dict[int, Any] = {0: None}  # the block that ends a prefix, by the prefix's length
    end = 0
    for block in find_candidates(cache, tokens):
        content = block.cache_data
        if content.start in last:
            last[content.end] = block
            end = content.end if content.is_end else end
    blocks = []
    while end:
        blocks.append(last[end])
        end = last[end].cache_data.start
    return blocks[::-1]


def find_candidates(cache: Any, tokens: Sequence[int]) -> Iterator[Any]:
    """The blocks that end a prefix of the tokens that leaves a token, the shortest first."""
    index: Index = vars(cache)[INDEX]
    blocks, keys = cache.paged_cache.allocated_blocks, Keys(tokens)
    for end in index.list_ends():
        if end >= len(tokens):
            break
        key = keys.upto(end)
        block = blocks.get(index.find(end, key))
        content = find_content(block)
        # The host may have reused the block for another sequence.
        if content and content.key == key and content.end - content.start == block.token_count:
            yield block


def find_content(block: Any) -> Content | None:
    data = getattr(block, "cache_data", None)
    return data if isinstance(data, Content) else None


def restore_caches(restore: Any, cache: Any, block_table: Any) -> Any | None:
    blocks = cache.paged_cache.allocated_blocks
    ids = block_table.block_ids if block_table else []
    contents = [find_content(blocks.get(id_)) for id_ in ids]
    if not any(contents):
        return restore(cache, block_table)
    known = [content for content in contents if content]
    if len(known) < len(contents) or not known[-1].is_end:
        return None
    return [join_parts(parts) for parts in zip(*(content.layers for content in known), strict=True)]


def join_parts(parts: Sequence[Any]) -> Any:
    last = parts[-1]
    if isinstance(last, Whole):
        return last.kind.from_state(make_handles(last.state), last.meta_state)  # type: ignore[attr-defined]
    cache: Any = last.kind()
    cache.keys = mx.concatenate([one.keys for one in parts], axis=-2)
    cache.values = mx.concatenate([one.values for one in parts], axis=-2)
    cache.offset = cache.keys.shape[-2]
    return cache


def ignore_stored(block: Any) -> Any | None:
    """A block that the host has found by its tokens; None if this patch has stored it."""
    return None if find_content(block) else block


_BODY = (
    "BlockAwarePrefixCache.fetch_cache",
    "BlockAwarePrefixCache.store_cache",
    "BlockAwarePrefixCache._extract_block_tensor_slice",
    "BlockAwarePrefixCache.reconstruct_cache",
)


def _wrap(name: str, wrapper: Callable[..., Any], **options: Any) -> tuple[Target, ...]:
    return wrap(f"vllm_mlx.prefix_cache:{name}", wrapper, fingerprint_of=_BODY, **options)


PATCH = Patch(
    id="vllm-paged-prefix",
    formerly="paged-prefix",
    targets=(
        *_wrap(_BODY[0], fetch_blocks),
        *_wrap(_BODY[1], store_blocks, answers_none=True),
        *_wrap(_BODY[2], cut_block),
        *_wrap(_BODY[3], restore_caches, answers_none=True),
        *result("vllm_mlx.paged_cache:PagedCacheManager.find_cached_block", ignore_stored),
    ),
    probe=".probe_paged:probe",
)
