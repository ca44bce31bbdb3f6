"""Which scalings are read, and a broken version of ``rope-scaling``."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions.rope_scaling import patch as rope_scaling

YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_the_original_length_is_the_config_s_own_where_the_scaling_has_none(name):
    read = rope_scaling.scaling_of({name: YARN, "max_position_embeddings": 64})
    assert read == {
        **YARN,
        "type": "yarn",
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 64,
    }


def test_the_scaling_of_the_full_layers_is_read():
    nested = {"full_attention": YARN, "sliding_attention": {"rope_type": "default"}}
    assert rope_scaling.scaling_of({"rope_parameters": nested})["factor"] == 4.0


@pytest.mark.parametrize(
    "config",
    [
        {},
        None,
        {"rope_scaling": None},
        {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ],
)
def test_a_config_without_a_scaling_has_none(config):
    assert rope_scaling.scaling_of(config) is None
