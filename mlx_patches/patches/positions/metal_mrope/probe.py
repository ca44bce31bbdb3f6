"""Rotates two rows that share positions, and only the second one, in Metal's branch."""

from ....probes.kit import Result, Target, module_with, mx
from ....probes.metal import metal_branch

WIDTH, TOKENS, SECTIONS = 32, 5, [8, 4, 4]


def probe(target: Target) -> Result:
    """Red if the second row differs from its solo run."""
    module = module_with(target)
    with metal_branch(module):
        rope = module.MRoPERotaryEmbedding(WIDTH, mrope_section=SECTIONS)
        q, k = (mx.random.normal((2, heads, TOKENS, WIDTH)) for heads in (4, 2))
        shared = mx.broadcast_to(mx.arange(TOKENS), (3, 1, TOKENS))
        both = rope.apply_rotary(q, k, shared)
        solo = rope.apply_rotary(q[1:], k[1:], shared)
        pairs = zip(both, solo, strict=True)
        distance = max(mx.abs(two[1] - one[0]).max().item() for two, one in pairs)
    return Result(
        not distance <= 1e-3, f"the second row differs by {distance:.2g} from a solo run", distance
    )
