import pytest

from mlx_patches.patches.positions.rope_scaling import patch as rope_scaling

YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_original_length_falls_back_to_config(name):
    read = rope_scaling.scaling_of({name: YARN, "max_position_embeddings": 64})
    assert read == {
        **YARN,
        "type": "yarn",
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 64,
    }


def test_full_layers_scaling_is_read():
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
def test_config_without_scaling(config):
    assert rope_scaling.scaling_of(config) is None
