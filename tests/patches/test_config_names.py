import pytest

from mlx_patches.patches.loading.config_names.patch import inkling, lfm2, name_family, nemotron_h

from ..releases.models import module_or_skip


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"hybrid_override_pattern": "M*-"}, ("M*-", 3)),
        ({"hybrid_override_pattern": "M*-", "num_hidden_layers": 3}, ("M*-", 3)),
        ({"layers_block_type": ["mamba", "moe"]}, (["M", "E"], 2)),
        ({"layer_types": ["linear_attention", "full_attention"]}, (["M", "*"], 2)),
        ({}, (None, None)),
    ],
)
def test_nemotron_layers_are_named(params, wanted):
    given = nemotron_h(params)
    assert (given.get("hybrid_override_pattern"), given.get("num_hidden_layers")) == wanted


def test_missing_config_key_is_no_failure(ungated):
    module = module_or_skip("mlx_lm.models.lfm2")
    ungated("config-names")
    for _ in range(4):
        with pytest.raises(TypeError, match="missing"):
            module.ModelArgs.from_dict({"model_type": "lfm2"})
    assert "from_dict" in vars(module.ModelArgs)


def test_width_and_unknown_kind():
    assert lfm2({"block_ff_dim": 8, "intermediate_size": 9})["block_ff_dim"] == 8
    assert lfm2({"intermediate_size": 9})["block_ff_dim"] == 9
    assert "block_ff_dim" not in lfm2({})
    with pytest.raises(ValueError, match="of another world"):
        nemotron_h({"layer_types": ["of another world", "mlp"]})


def test_type_of_ernie():
    saved = {"model_type": "ernie4_5_vl_moe", "text_config": {"model_type": "ernie4_5_vl_moe_text"}}
    assert name_family(saved)["model_type"] == "ernie4_5_moe_vl"


def test_type_of_nemotron_omni():
    published = {"model_type": "NemotronH_Nano_Omni_Reasoning_V3"}
    assert name_family(published)["model_type"] == "nemotronh_nano_omni_reasoning_v3"


def test_widths_of_inkling():
    published = {"intermediate_size": 32, "dense_intermediate_size": 96, "sconv_kernel_size": 3}
    saved = {"intermediate_size": 96, "moe_intermediate_size": 32, "conv_kernel_size": 3}
    assert inkling(saved) == saved | published
    assert inkling(published) == published


@pytest.mark.parametrize("family", ["granite_vision", "granite4_vision"])
def test_granite_has_chat_format(ungated, family):
    prompts = module_or_skip("mlx_vlm.prompt_utils")
    ungated("config-names")
    message = prompts.get_message_json(family, "What is it?", num_images=2)
    assert [part["type"] for part in message["content"]] == ["text", "image", "image"]
