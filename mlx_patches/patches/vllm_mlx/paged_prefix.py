"""A prefix that vllm-mlx finds in its paged cache is not the one that was computed.

Why
    ``--use-paged-cache`` keeps a prompt's caches in blocks of 64 tokens. A block is found by
    its own tokens, whatever stood before them (up to 0.2.7 by their low bytes alone), although
    its keys and values depend on all of it. Blocks are cut along axis 2 of whatever a layer
    keeps, or along axis 1 where that has three axes: a recurrent state or a rotating buffer,
    which are no sequences of tokens, come back as something else, and a state of three axes
    makes the layer, or the whole cache, unusable. A prompt that is found whole leaves no token
    to process, so its last one is fed twice.
How
    What is cut is a ``KVCache``, along the axis before the last, whatever the rank. What any
    other cache holds is kept whole, as copies, with the last block of its sequence, and serves
    only a prompt that begins with exactly that sequence. A block is found by everything up to
    its end, and at least one token is left to process.
Upstream
    vllm-mlx 0.2.8 keeps recurrent states whole, and 0.2.9 finds the axis from the rank. In
    0.6.0 a block is still found by its own tokens.
Retire when
    A supported release finds blocks by what stood before them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ...core.patch import Patch, Target, around
from .prefix_hit import handles

# The prefix cache's attribute with the ``Index`` of its blocks.
INDEX = "_mlx_patches_blocks"


class Index:
    """Which block ends which prefix: the last that each block was stored for, so it is no
    larger than the host's pool of blocks."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[bytes, int]] = {}  # by the prefix's length, then its key
        self._prefixes: dict[int, tuple[int, bytes]] = {}  # by the block's id

    def __len__(self) -> int:
        return len(self._prefixes)

    def add(self, block_id: int, end: int, key: bytes) -> None:
        """Note the block of the prefix of ``end`` tokens; forget what it was of before."""
        self.forget(block_id)
        before = self._blocks.get(end, {}).get(key)
        if before is not None:
            self.forget(before)
        self._blocks.setdefault(end, {})[key] = block_id
        self._prefixes[block_id] = end, key

    def forget(self, block_id: int) -> None:
        """Drop a block, if it is known."""
        prefix = self._prefixes.pop(block_id, None)
        if prefix is not None:
            end, key = prefix
            del self._blocks[end][key]
            if not self._blocks[end]:
                del self._blocks[end]

    def ends(self) -> list[int]:
        """The lengths of the known prefixes, the shortest first."""
        return sorted(self._blocks)

    def find(self, end: int, key: bytes) -> int | None:
        """The id of the block that ends a prefix."""
        return self._blocks[end].get(key)


class Layers(list[Any]):
    """What the scheduler extracted, a dict a layer, and the tokens that it is of."""

    def __init__(self, layers: Sequence[Any], tokens: Sequence[int]):
        super().__init__(layers)
        self.tokens = tokens
        self.keys = Keys(tokens)


class Keys:
    """The keys of a sequence's beginnings, to be asked for in rising order."""

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
    """Some tokens of a ``KVCache``, of the shape (..., tokens, head_dim)."""

    kind: type
    keys: Any
    values: Any


@dataclass(frozen=True, slots=True)
class Whole:
    """All that another cache holds."""

    kind: type
    state: Any
    meta_state: Any


@dataclass(frozen=True, slots=True)
class Piece:
    """What a block holds: the tokens from ``start`` to ``end`` of the prefix that has this key.

    ``layers`` has None for a cache that cannot be restored as it was at the piece's end.
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
        """Whether a prompt's caches can be restored as they were at the piece's end."""
        return None not in self.layers

    @property
    def has_whole(self) -> bool:
        """Whether a cache in it serves this very prefix alone."""
        return any(isinstance(layer, Whole) for layer in self.layers)


def stored(
    store: Any, cache: Any, request_id: str, tokens: Sequence[int], cache_data: Sequence[Any]
) -> Any:
    """The table of a sequence's blocks, each findable by its prefix; None without any."""
    if not cache_data or not all(isinstance(layer, dict) for layer in cache_data):
        return store(cache, request_id, tokens, cache_data)
    length = held(cache_data)
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


def held(layers: Sequence[dict[str, Any]]) -> int | None:
    """The number of tokens in the caches, by those that can be cut; None where none says."""
    lengths = {layer["state"][0].shape[-2] for layer in layers if is_sequence(layer)}
    return lengths.pop() if len(lengths) == 1 else None


def is_sequence(layer: dict[str, Any]) -> bool:
    """Whether a layer's state is keys and values that can be cut between tokens."""
    kind = layer.get("class_ref")
    if (kind.__name__ if kind else layer.get("class_name", "KVCache")) != "KVCache":
        return False
    return all(getattr(part, "ndim", 0) in (3, 4) for part in layer["state"][:2])


def cut(extract: Any, cache: Any, cache_data: Any, start_idx: int, end_idx: int, *rest: Any) -> Any:
    """What a block of these tokens holds."""
    if not isinstance(cache_data, Layers):
        return extract(cache, cache_data, start_idx, end_idx, *rest)
    last = end_idx == len(cache_data.tokens)
    layers = [part(layer, start_idx, end_idx, last) for layer in cache_data]
    return Piece(cache_data.keys.upto(end_idx), start_idx, end_idx, layers)


def part(layer: dict[str, Any], start: int, end: int, last: bool) -> Span | Whole | None:
    """What a block holds of a layer."""
    kind = layer.get("class_ref") or named(layer.get("class_name"))
    if is_sequence(layer):
        keys, values = (side[..., start:end, :] for side in layer["state"][:2])
        return Span(kind, keys, values)
    return Whole(kind, handles(layer["state"]), layer.get("meta_state")) if last else None


def named(name: str | None) -> type:
    """The cache class of this name, all that 0.2.5 notes; a plain one where a layer says none."""
    from mlx_lm.models import cache

    kind: type = getattr(cache, name or "", cache.KVCache)
    return kind


def fetched(fetch: Any, cache: Any, request_id: str, tokens: Sequence[int]) -> Any:
    """The table of the longest stored prefix that leaves a token, and the tokens left."""
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
    """The blocks of the longest prefix that was stored, short of the whole; maybe none."""
    chains: dict[int, list[Any]] = {0: []}
    best: list[Any] = []
    for block in candidates(cache, tokens):
        piece = block.cache_data
        if piece.start in chains:
            chains[piece.end] = [*chains[piece.start], block]
            best = chains[piece.end] if piece.is_end else best
    return best


def candidates(cache: Any, tokens: Sequence[int]) -> Iterator[Any]:
    """The blocks that end a prefix of the tokens, short of the whole, by its length."""
    index: Index = vars(cache)[INDEX]
    blocks, keys = cache.paged_cache.allocated_blocks, Keys(tokens)
    for end in index.ends():
        if end >= len(tokens):
            break
        key = keys.upto(end)
        block = blocks.get(index.find(end, key))
        piece = piece_of(block)
        # A block may have been given to another sequence since.
        if piece and piece.key == key and piece.end - piece.start == block.token_count:
            yield block


def piece_of(block: Any) -> Piece | None:
    """What a block holds, where it was stored by us."""
    data = getattr(block, "cache_data", None)
    return data if isinstance(data, Piece) else None


def restored(restore: Any, cache: Any, block_table: Any) -> Any:
    """The caches of a table's blocks; None where they are not all there."""
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
    """A cache of the tokens that these parts of it hold."""
    import mlx.core as mx

    last = parts[-1]
    if isinstance(last, Whole):
        return last.kind.from_state(handles(last.state), last.meta_state)  # type: ignore[attr-defined]
    cache: Any = last.kind()
    cache.keys = mx.concatenate([one.keys for one in parts], axis=-2)
    cache.values = mx.concatenate([one.values for one in parts], axis=-2)
    cache.offset = cache.keys.shape[-2]
    return cache


def found(find: Any, manager: Any, tokens: Sequence[int]) -> Any:
    """A block of these tokens, unless it is one that a prefix is part of."""
    block = find(manager, tokens)
    return None if piece_of(block) else block


_BODY = (
    "BlockAwarePrefixCache.fetch_cache",
    "BlockAwarePrefixCache.store_cache",
    "BlockAwarePrefixCache._extract_block_tensor_slice",
    "BlockAwarePrefixCache.reconstruct_cache",
)

PATCH = Patch(
    id="paged-prefix",
    summary="a prefix found in the host's paged cache is another one, or another layer's state",
    targets=(
        *(
            Target("vllm-mlx", "vllm_mlx.prefix_cache", name, around(wrapper), body=_BODY)
            for name, wrapper in zip(
                _BODY,
                (
                    lambda *args, **kwargs: fetched(*args, **kwargs),
                    lambda *args, **kwargs: stored(*args, **kwargs),
                    lambda *args, **kwargs: cut(*args, **kwargs),
                    lambda *args, **kwargs: restored(*args, **kwargs),
                ),
                strict=True,
            )
        ),
        Target(
            "vllm-mlx",
            "vllm_mlx.paged_cache",
            "PagedCacheManager.find_cached_block",
            around(found),
            answers_none=True,
        ),
    ),
    probe="mlx_patches.probes.paged_prefix:probe",
    module=__name__,
)
