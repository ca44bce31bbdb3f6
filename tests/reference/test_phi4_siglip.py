"""``phi4-siglip-images``: the tower of Phi-4 equals Siglip 2 of transformers, with padding."""

import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
mx = pytest.importorskip("mlx.core")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 4,
}
SHAPES = [(3, 5), (6, 2), (8, 8)]


@pytest.mark.parametrize("is_patched", [False, True])
def test_tower_equals_transformers(is_patched, ungated):
    from transformers import Siglip2VisionConfig, Siglip2VisionModel

    folder = pytest.importorskip("mlx_vlm.models.phi4_siglip")
    vision = importlib.import_module(f"{folder.__name__}.vision")
    if is_patched:
        ungated("phi4-siglip-images")
    torch.manual_seed(0)
    config = Siglip2VisionConfig(**SIZES, num_patches=16, attn_implementation="eager")
    theirs = Siglip2VisionModel(config).eval()
    ours = vision.VisionModel(vision.VisionConfig(**SIZES, num_patches=16))
    for name, value in theirs.state_dict().items():
        name = name.removeprefix("vision_model.")
        if not name.startswith("head."):  # that pools an image
            ours.load_weights([(f"vision_model.{name}", mx.array(value.numpy()))], strict=False)
    pixels = np.random.default_rng(0).normal(size=(3, 70, 48)).astype("float32")
    mask = np.zeros((3, 70), "int64")
    for row, (height, width) in enumerate(SHAPES):
        mask[row, : height * width] = 1
    with torch.no_grad():
        want = theirs(
            torch.tensor(pixels),
            torch.tensor(mask),
            torch.tensor(SHAPES),
            output_hidden_states=True,
        ).hidden_states
    found, _, _ = ours(mx.array(pixels), output_hidden_states=True, spatial_shapes=mx.array(SHAPES))
    off = max(
        np.abs(np.array(found[-2])[row, : h * w] - want[-2].numpy()[row, : h * w]).max()
        for row, (h, w) in enumerate(SHAPES)
    )
    assert (float(off) < 1e-4) is is_patched, off
