import mlx.core as mx
import pytest

from mlx_patches.lab import engine
from mlx_patches.probes.batch_invariance import TOLERANCE, measure_distance

from ..releases.models import build_or_skip


@pytest.mark.parametrize("family", ["gemma3n", "gemma4"])
@pytest.mark.parametrize("lengths", [(5, 5, 3), (1, 11, 1), (12, 1)])
def test_each_chunk_gets_its_inputs(ungated, family, lengths):
    ungated("chunk-inputs")
    model = build_or_skip(f"mlx-vlm:{family}")
    ids = mx.random.randint(1, model.vocabulary, (1, sum(lengths)), key=mx.random.key(5))
    language = model.module.model
    if not hasattr(language, "get_per_layer_inputs"):
        pytest.skip("this release's model has no inputs of its layers")
    given = {"per_layer_inputs": language.get_per_layer_inputs(ids)}

    def feed_chunks(**own):
        engine.forget(model)
        cache, start = model.make_cache(), 0
        model.call([[8, 2, 8, 1, 6]], cache)
        for length in lengths:
            logits = model.call(ids[:, start : start + length], cache, **own)
            start += length
        return logits[:, -1]

    assert measure_distance(feed_chunks(**given), feed_chunks()) <= TOLERANCE


# Gemma gets the inputs of the first tokens; Qwen3-VL gets the range of each chunk.
