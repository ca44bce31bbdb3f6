"""Compares rows with two images, one and none with solo runs, and changes what a mask hides."""

from ....core.arrays import mx
from ....lab.image_scenarios import features
from ....probes.batch_invariance import tiny
from ....probes.fixtures import with_patches
from ....probes.images import probe_scenario
from ....probes.kit import BATCH_PATCHES, NotApplicable, Result, Target, require_own

# Patches for other defects of the same model.
_OTHERS = (*BATCH_PATCHES, "empty-cache-ops", "row-by-row", "mllama-text", "image-prompts")
# The image states of a prompt, of which its mask hides all but the first ones.
STATES, SHOWN = 8, 5


def probe(target: Target) -> Result:
    """Red if a row of the engine differs from its solo run, or an answer sees hidden states."""
    require_own(target)
    with with_patches(("mllama-text",)):
        hidden = probe_hidden()
    if hidden.red:
        return hidden
    try:
        return probe_scenario(features, ["mllama"], _OTHERS)
    except NotApplicable:  # the release batches no images
        return hidden


def probe_hidden() -> Result:
    """Red if the token after a prompt attends to states that the prompt's mask hides."""
    model = tiny("mlx-vlm", "mllama")
    ids = mx.array([[3, 1, 4, 1, 5]])
    mask = mx.where(mx.arange(STATES) < SHOWN, 0.0, -1e9)
    mask = mx.broadcast_to(mask, (1, 1, ids.shape[1], STATES))
    shown = mx.random.normal((1, STATES, model.module.config.hidden_size), key=mx.random.key(1))

    def answer(states: mx.array) -> mx.array:
        cache = model.make_cache()
        model.module(ids, cache=cache, cross_attention_states=states, cross_attention_mask=mask)
        out = model.module(ids[:, :1], cache=cache, cross_attention_states=states)
        return out.logits

    other = mx.concatenate([shown[:, :SHOWN], -shown[:, SHOWN:]], axis=1)
    off = mx.abs(answer(shown) - answer(other)).max().item()
    return Result(off > 1e-4, f"hidden states change an answer's logits by {off:.2g}", off)
