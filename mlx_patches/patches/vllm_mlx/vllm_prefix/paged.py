"""vllm-mlx finds wrong blocks in its paged prefix cache, or restores wrong states from them.

Why
    ``--use-paged-cache`` keeps a prompt's caches in blocks of 64 tokens. A block is found by its
    own tokens (up to 0.2.7 by their low bytes alone), although its keys and values depend on all
    tokens before it. Every layer's arrays are cut along axis 2, or along axis 1 if they have three
    axes: a recurrent state or a rotating buffer, which are not sequences of tokens, is restored
    wrongly, and a state with three axes makes the layer, or the whole cache, unusable. A prompt
    that is found completely leaves no token to process, so its last token is fed twice.
How
    Only a ``KVCache`` is cut, along the axis before the last, whatever its rank. The content of
    any other cache is stored whole, as copies, with the last block of its sequence, and is used
    only for a prompt that begins with exactly that sequence. A block is found by all tokens up to
    its end, and at least one token is left to process.
Upstream
    vllm-mlx 0.2.8 keeps recurrent states whole, and 0.2.9 finds the axis from the rank. In
    0.6.0 a block is still found by its own tokens.
Retire when
    A supported release finds blocks by the tokens before them too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from ....core.patch import Patch, Target, around
from .hit import new_handles

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

    def ends(self) -> list[int]:
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
class Piece:
    """A block's content: the tokens from ``start`` to ``end`` of the prefix with this key.

    ``layers`` has None for a cache whose state at the piece's end is not stored.
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
        """Whether all caches can be restored to their state at the piece's end."""
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
    length = count_tokens(cache_data)
    if length is None:
        return None
    known = list(tokens[:length])
    table = store(cache, request_id, known, Layers(cache_data, known))
    index: Index = vars(cache).setdefault(INDEX, Index())
    blocks = cache.paged_cache.allocated_blocks
    for id_ in table.block_ids if table else ():
        piece = piece_of(blocks.get(id_))
        if piece and (blocks[id_].token_count == cache.block_size or piece.has_whole):
            index.add(id_, piece.end, piece.key)
    return table


def count_tokens(layers: Sequence[dict[str, Any]]) -> int | None:
    """The number of tokens in the caches that can be cut; None if none can, or they differ."""
    lengths = {layer["state"][0].shape[-2] for layer in layers if is_sequence(layer)}
    return lengths.pop() if len(lengths) == 1 else None


def is_sequence(layer: dict[str, Any]) -> bool:
    """Whether a layer's state is keys and values that can be cut between tokens."""
    kind = layer.get("class_ref")
    if (kind.__name__ if kind else layer.get("class_name", "KVCache")) != "KVCache":
        return False
    return all(getattr(part, "ndim", 0) in (3, 4) for part in layer["state"][:2])


def cut(extract: Any, cache: Any, cache_data: Any, start_idx: int, end_idx: int, *rest: Any) -> Any:
    """The content of a block with the tokens from ``start_idx`` to ``end_idx``."""
    if not isinstance(cache_data, Layers):
        return extract(cache, cache_data, start_idx, end_idx, *rest)
    last = end_idx == len(cache_data.tokens)
    layers = [part(layer, start_idx, end_idx, last) for layer in cache_data]
    return Piece(cache_data.keys.upto(end_idx), start_idx, end_idx, layers)


def part(layer: dict[str, Any], start: int, end: int, last: bool) -> Span | Whole | None:
    """A layer's part of a block; None if it is stored only with the last block."""
    kind = layer.get("class_ref") or named(layer.get("class_name"))
    if is_sequence(layer):
        keys, values = (side[..., start:end, :] for side in layer["state"][:2])
        return Span(kind, keys, values)
    return Whole(kind, new_handles(layer["state"]), layer.get("meta_state")) if last else None


def named(name: str | None) -> type:
    """The cache class of this name, as vllm-mlx 0.2.5 stores it; ``KVCache`` by default."""
    from mlx_lm.models import cache

    kind: type = getattr(cache, name or "", cache.KVCache)
    return kind


def fetch_blocks(fetch: Any, cache: Any, request_id: str, tokens: Sequence[int]) -> Any:
    """The table of the longest stored prefix that leaves a token, and the remaining tokens."""
    if INDEX not in vars(cache):
        return fetch(cache, request_id, tokens)
    blocks = longest(cache, tokens)
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


def longest(cache: Any, tokens: Sequence[int]) -> list[Any]:
    """The blocks of the longest stored prefix that leaves a token; empty if there is none."""
    last: dict[int, Any] = {0: None}  # the block that ends a prefix, by the prefix's length
    end = 0
    for block in candidates(cache, tokens):
        piece = block.cache_data
        if piece.start in last:
            last[piece.end] = block
            end = piece.end if piece.is_end else end
    blocks = []
    while end:
        blocks.append(last[end])
        end = last[end].cache_data.start
    return blocks[::-1]


def candidates(cache: Any, tokens: Sequence[int]) -> Iterator[Any]:
    """The blocks that end a prefix of the tokens that leaves a token, the shortest first."""
    index: Index = vars(cache)[INDEX]
    blocks, keys = cache.paged_cache.allocated_blocks, Keys(tokens)
    for end in index.ends():
        if end >= len(tokens):
            break
        key = keys.upto(end)
        block = blocks.get(index.find(end, key))
        piece = piece_of(block)
        # The host may have reused the block for another sequence.
        if piece and piece.key == key and piece.end - piece.start == block.token_count:
            yield block


def piece_of(block: Any) -> Piece | None:
    """A block's content, if this patch has stored it."""
    data = getattr(block, "cache_data", None)
    return data if isinstance(data, Piece) else None


def restored(restore: Any, cache: Any, block_table: Any) -> Any | None:
    """Restore the caches of a table's blocks; None if a block is missing."""
    blocks = cache.paged_cache.allocated_blocks
    ids = block_table.block_ids if block_table else []
    pieces = [piece_of(blocks.get(id_)) for id_ in ids]
    if not any(pieces):
        return restore(cache, block_table)
    known = [piece for piece in pieces if piece]
    if len(known) < len(pieces) or not known[-1].is_end:
        return None
    return [joined(parts) for parts in zip(*(piece.layers for piece in known), strict=True)]


def joined(parts: Sequence[Any]) -> Any:
    """Make a cache of a layer's parts."""
    import mlx.core as mx

    last = parts[-1]
    if isinstance(last, Whole):
        return last.kind.from_state(new_handles(last.state), last.meta_state)  # type: ignore[attr-defined]
    cache: Any = last.kind()
    cache.keys = mx.concatenate([one.keys for one in parts], axis=-2)
    cache.values = mx.concatenate([one.values for one in parts], axis=-2)
    cache.offset = cache.keys.shape[-2]
    return cache


def find_blocks(find: Any, manager: Any, tokens: Sequence[int]) -> Any | None:
    """A block with these tokens; None if this patch has stored it, by its prefix."""
    block = find(manager, tokens)
    return None if piece_of(block) else block


_BODY = (
    "BlockAwarePrefixCache.fetch_cache",
    "BlockAwarePrefixCache.store_cache",
    "BlockAwarePrefixCache._extract_block_tensor_slice",
    "BlockAwarePrefixCache.reconstruct_cache",
)
_target = partial(Target, "vllm-mlx", "vllm_mlx.prefix_cache", fingerprint_of=_BODY)

PATCH = Patch(
    id="vllm-paged-prefix",
    formerly="paged-prefix",
    every_model=True,
    summary=(
        "vllm-mlx with its paged cache: wrong output after a hit, other prefixes' blocks are used"
    ),
    targets=(
        _target(_BODY[0], around(fetch_blocks)),
        _target(_BODY[1], around(store_blocks), answers_none=True),
        _target(_BODY[2], around(cut)),
        _target(_BODY[3], around(restored), answers_none=True),
        Target(
            "vllm-mlx",
            "vllm_mlx.paged_cache",
            "PagedCacheManager.find_cached_block",
            around(find_blocks),
        ),
    ),
    probe=".probe_paged:probe",
)
