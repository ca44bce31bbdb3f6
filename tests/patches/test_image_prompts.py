from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.lab import engine
from mlx_patches.lab.solo_scenarios import inputs_of, whole_model
from mlx_patches.patches.generation.image_prompts import patch as image_prompts

from ..releases.models import build_or_skip, images_cell

# Beyond the rounding of float32: position ids of another prompt are off by 0.0009.
NEAR = 1e-5
IMAGE = {"image_grid_thw": 1}


def model_of(module):
    return type("LanguageModel", (), {"__module__": f"mlx_vlm.models.{module}"})()


def generator_of(*arguments, family="falcon_ocr.language", size=8, step_size=2048):
    sequences = [(index, [1], 9, one) for index, one in enumerate(arguments)]
    return SimpleNamespace(
        model=model_of(family),
        prefill_batch_size=size,
        prefill_step_size=step_size,
        _unprocessed_sequences=sequences,
    )


def step(generator):
    seen = []
    if not image_prompts.has_images_next(generator):
        return generator.prefill_batch_size, generator.prefill_step_size

    def following(generator):
        seen.append((generator.prefill_batch_size, generator.prefill_step_size))

    image_prompts.start_image(following, generator)
    assert (generator.prefill_batch_size, generator.prefill_step_size) == (8, 2048)
    return seen[0]


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((), (8, 2048)),
        ((None, {}, {"inputs_embeds": 1, "pixel_values": None}), (8, 2048)),
        ((IMAGE, IMAGE), (1, None)),
        ((IMAGE, None), (1, None)),
        ((None, None, IMAGE, None), (2, 2048)),
        (({"attention_mask_4d": 1},), (1, None)),
        (({"cross_attention_states": 1},), (1, None)),
    ],
)
def test_image_is_not_split(arguments, sizes):
    assert step(generator_of(*arguments)) == sizes


def test_step_without_images_changes_nothing():
    generator = generator_of(*[None] * 8, IMAGE)
    assert not image_prompts.has_images_next(generator)
    assert not image_prompts.has_images_next(generator_of(None))
    assert not image_prompts.has_images_next(SimpleNamespace(model=model_of("mllama.language")))


def test_failed_step_restores_settings():
    generator = generator_of(IMAGE)

    def following(generator):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        image_prompts.start_image(following, generator)
    assert (generator.prefill_batch_size, generator.prefill_step_size) == (8, 2048)


@pytest.mark.parametrize(
    ("family", "affected"),
    [
        ("falcon_ocr.language", True),
        ("ernie4_5_moe_vl.ernie4_5_moe_vl", True),
        ("qwen2_5_vl.language", False),
        ("falcon_ocr_next.language", False),
    ],
)
def test_other_models_are_unchanged(family, affected):
    assert image_prompts.has_images_next(generator_of(IMAGE, family=family)) is affected
    assert image_prompts.is_image(model_of(family), 5) is affected
    assert not image_prompts.is_image(model_of(family), None)


@pytest.mark.parametrize(
    ("family", "pixels", "wanted"),
    [("falcon_ocr.language", 5, None), ("falcon_ocr.language", None, 2), ("gemma3.gemma3", 5, 2)],
)
def test_only_affected_images_skip_chunking(family, pixels, wanted):
    """The check of another patch may let this layer run."""
    assert image_prompts.skip_chunking(2, model_of(family), pixels) == wanted


def test_text_with_kv_bits_is_chunked(ungated):
    """``kv-bits-refused`` changes the same function."""
    model = build_or_skip("mlx-vlm:qwen2_5_vl")
    ungated("image-prompts", "kv-bits-refused")
    prompt, sizes = mx.array([[5, 9, 2, 7, 3, 8]]), []

    class Recorder(type(model.module)):
        def __call__(self, *args, **kwargs):
            sizes.append((args[0] if args else kwargs["inputs_embeds"]).shape[1])
            return super().__call__(*args, **kwargs)

    whole = whole_model(model, None)
    whole.language_model.__class__ = Recorder
    step = engine.generate_module(model).generate_step
    options = {**inputs_of(prompt, None), "kv_bits": 8, "kv_group_size": 32}
    assert list(step(prompt, whole, max_tokens=2, prefill_step_size=2, **options))
    assert max(sizes) == 2


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("family", sorted(image_prompts.FAMILIES))
@pytest.mark.parametrize("scenario", ["features", "features-chunked", "features-solo"])
def test_images_equal_solo_closely(scenario, family):
    cell = images_cell(scenario, family)
    assert cell.verdict == "green" and cell.figure < NEAR, cell.detail


def test_foreign_position_ids_are_kept():
    model = model_of("qwen2_vl.language")
    model._position_ids = 7
    image_prompts.drop_positions(model)
    assert model._position_ids == 7


@pytest.mark.parametrize(("own", "wanted"), [(None, 7), (3, 3)])
def test_image_position_ids(own, wanted):
    features = SimpleNamespace(position_ids=own)
    model = SimpleNamespace(language_model=SimpleNamespace(_position_ids=7))
    assert image_prompts.add_positions(features, model).position_ids == wanted
