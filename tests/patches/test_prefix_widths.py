from types import SimpleNamespace

import pytest

from mlx_patches.patches.caches.prefix_widths import patch
from mlx_patches.patches.caches.prefix_widths.probe import LATENT, compare_prefixes
from mlx_patches.probes.fixtures import make_prefix_hits

from ..releases.models import module_or_skip

PLAIN = [((2, 4), (2, 4))] * 3
UNLIKE = [((2, 4), (2, 4)), ((3, 4), (3, 4)), ((2, 8), (2, 4))]


@pytest.fixture
def apc():
    return module_or_skip("mlx_vlm.apc", "make_warm_batch_kv_cache_multi")


@pytest.mark.parametrize("layers", [LATENT, UNLIKE], ids=["latent", "unlike"])
@pytest.mark.parametrize("lengths", [(5, 3, 0), (0, 4), (3, 3), (6,)])
def test_each_layer_has_its_prefix_shape(apc, ungated, layers, lengths):
    ungated("vlm-prefix-widths")
    picks = make_prefix_hits(layers, lengths)
    caches, longest = apc.make_warm_batch_kv_cache_multi(picks, len(layers))
    assert longest == max(lengths)
    assert not compare_prefixes(caches, picks, longest)
    for cache in caches:
        assert cache.offset.tolist() == list(lengths)
        assert cache.left_padding.tolist() == [longest - length for length in lengths]
        grown = cache.extract(0)
        assert grown.keys.shape[2] == lengths[0]
        assert grown.values.shape[-1] in {width for pair in layers for _, width in pair}


def test_caches_are_cut_to_prefix(apc, ungated):
    """A pick may have a live cache, which may hold more than the prefix."""
    ungated("vlm-prefix-widths")
    (one, other) = make_prefix_hits(LATENT, (5, 4))
    block = one["matched_blocks"][0]
    live = [
        SimpleNamespace(keys=k, values=v) for k, v in zip(block.keys, block.values, strict=True)
    ]
    picks = [{"warm_cache": live, "prefix_len": 3}, other]
    caches, longest = apc.make_warm_batch_kv_cache_multi(picks, len(LATENT))
    assert longest == 4
    held = caches[0].values[0:1, :, 1:4]
    assert held.tolist() == block.values[0][..., :3, :].tolist()


def test_uniform_models_are_unchanged(apc):
    calls = []

    def make(*args):
        calls.append(args)
        return apc.make_warm_batch_kv_cache_multi(*args)

    picks = make_prefix_hits(PLAIN, (5, 0))
    caches, longest = patch.build_by_shape(make, picks, len(PLAIN))
    assert len(calls) == 1 and calls[0][0] is picks
    assert not compare_prefixes(caches, picks, longest)
