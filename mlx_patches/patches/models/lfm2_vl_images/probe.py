"""Runs the parts of LFM2-VL that read images, with tiny sizes."""

from contextlib import suppress
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, import_module, module_of, require
from ....probes.siglip2 import SIDE, probe_padding, probe_positions

NUMPY = "Lfm2VlNumpyImageProcessor"
MODEL = "mlx_vlm.models.lfm2_vl"
IMAGES = "transformers.models.auto.image_processing_auto"
PROCESSING = f"{MODEL}.processing_lfm2_vl"
WIDTH, PATCH_SIZE, EPSILON = 8, 2, 1e-2
LARGE, GRID = (1600, 1200), (2, 3)


def probe(target: Target) -> Result:
    """Red if a part of the processor or of the tower computes something else."""
    require(target)
    name = target.name.rpartition(".")[2]
    if name == "resize_positional_embeddings":
        return probe_positions(module_of(target))
    if name == "load_processor":
        return probe_prompt([LARGE])
    if name == "preprocess":
        return probe_prompt([(300, 180), (224, 224)])
    tower = make_tower()
    if name == "__init__":
        used = tower.post_layernorm.eps
        return Result(used != EPSILON, f"the last norm adds {used}")
    return probe_padding(tower, PATCH_SIZE)


def make_tower() -> Any:
    config_of = import_module(f"{MODEL}.config").VisionConfig
    config = config_of.from_dict(
        {
            "model_type": "lfm2_vl",
            "hidden_size": WIDTH,
            "intermediate_size": WIDTH,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_patches": SIDE**2,
            "patch_size": PATCH_SIZE,
            "layer_norm_eps": EPSILON,
        }
    )
    return import_module(f"{MODEL}.vision").VisionModel(config)


def probe_prompt(sizes: list[tuple[int, int]]) -> Result:
    """Red if a prompt has other tokens than its images' features, or if no tile is named."""
    utils, processing = import_module("mlx_vlm.utils"), import_module(PROCESSING)
    seen: list[str] = []

    def tokenize(prompts: list[str], **_: Any) -> dict[str, Any]:
        seen.extend(prompts)
        return {"input_ids": [[0]]}

    processor = processing.Lfm2VlProcessor.__new__(processing.Lfm2VlProcessor)
    vars(processor).update(
        tokenizer=tokenize,
        _merge_kwargs=lambda *_, **kwargs: {"text_kwargs": kwargs, "images_kwargs": {}},
        image_token="<image>",
        image_start_token="<start>",
        image_end_token="<end>",
    )
    tokenize.init_kwargs = {}  # type: ignore[attr-defined]
    pictures: Any = import_module("PIL.Image")
    images, text = [pictures.new("RGB", size) for size in sizes], ["<image>" * len(sizes)]
    with (
        mock.patch.object(utils.AutoProcessor, "from_pretrained", return_value=processor),
        mock.patch(f"{IMAGES}.AutoImageProcessor.from_pretrained"),
        mock.patch.object(processing, "_original_call") as original,
    ):
        if not hasattr(processing, NUMPY):
            with suppress(Exception):  # the release's own needs torch
                utils.load_processor("", add_detokenizer=False)(images=images, text=text)
            return Result(not original.called, f"transformers' code is used: {original.called}")
        processor.image_processor = processing.Lfm2VlNumpyImageProcessor()
        made = utils.load_processor("", add_detokenizer=False)(images=images, text=text)
    features = sum(-(-h // 2) * -(-w // 2) for h, w in made["spatial_shapes"].tolist())
    named = LARGE not in sizes or "<|img_row_{}_col_{}|>".format(*GRID) in seen[0]
    detail = f"{seen[0].count('<image>')} tokens for {features} features"
    return Result(seen[0].count("<image>") != features or not named, detail)
