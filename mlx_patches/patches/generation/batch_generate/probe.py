"""Calls the release's ``batch_generate`` on unequal prompts, in a batch and one at a time."""

from ....probes.kit import (
    BATCH_PATCHES,
    Result,
    Target,
    import_module,
    require_own,
    tiny,
    with_patches,
)

_TOKENS = 4
# A family without other defects in a batch in any release that has the function.
_FAMILY = "gemma3"
_MROPE = "qwen2_5_vl"


def probe(target: Target) -> Result:
    """Red if a prompt's answer changes in a batch with a longer one, padded on either side."""
    left = compare(target, _FAMILY)
    return left if left.red else compare(target, _FAMILY, "right")


def probe_deltas(target: Target) -> Result:
    """The same for a model whose rows have rope deltas."""
    import_module(f"mlx_vlm.models.{_MROPE}.language")
    with with_patches((*BATCH_PATCHES, "rope-deltas")):
        return compare(target, _MROPE)


def compare(target: Target, family: str, side: str = "left") -> Result:
    from ....lab import EXACT, engine, offline
    from ....lab.compare import compare_generated
    from ....lab.rows import rows_of

    require_own(target)
    model = tiny("mlx-vlm", family)
    prompts = [list(row.text[: row.chunks[0]]) for row in rows_of(model, (3, 5, 8))]
    solo = [offline.batch_generate(model, [prompt], _TOKENS)[0] for prompt in prompts]
    engine.forget(model)
    batch = offline.batch_generate(model, prompts, _TOKENS, padding_side=side)
    cell = compare_generated(batch, [[one.every for one in row] for row in solo], EXACT)
    return Result(cell.verdict == "red", cell.detail, cell.figure)
