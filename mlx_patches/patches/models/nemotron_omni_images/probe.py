"""Processes an image with stripes and a video, and joins the features of images."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    make_module,
    mx,
    own_class_of,
    require,
    require_module,
)

PROCESSING = "mlx_vlm.models.nemotron_h_nano_omni.processing_nemotron_h_nano_omni"
# The sides of an image before and after it is enlarged, and of its patches.
SMALL, LARGE, PATCH_SIZE = 8, 16, 2
# The numbers of two images' tokens, and their width.
TOKENS, WIDTH = (2, 3), 4


def probe(target: Target) -> Result:
    """Red if pixels are clipped, features are not joined, or a video is not read."""
    found = require(target)
    if target.name == "process_inputs":
        home = require_module(PROCESSING)
        return probe_video(home.NemotronHNanoOmniProcessor, found)
    kind = own_class_of(target)
    if target.name.endswith("_preprocess"):
        return probe_pixels(kind)
    return probe_features(kind) if target.name.startswith("Model") else probe_video(kind)


def probe_pixels(kind: Any) -> Result:
    """Red if black and white stripes, enlarged, have no values beyond both at their edges."""
    numpy, pillow = require_module("numpy"), require_module("PIL.Image")
    stripes = numpy.zeros((SMALL, SMALL, 3), "uint8")
    stripes[:, ::3] = 255
    processor = kind(
        norm_mean=[0.0] * 3,
        norm_std=[1.0] * 3,
        patch_size=PATCH_SIZE,
        min_num_patches=(LARGE // PATCH_SIZE) ** 2,
    )
    pixels = processor(images=[pillow.fromarray(stripes)])["pixel_values"]
    least, most = (float(found) for found in (pixels.min(), pixels.max()))
    return Result(least >= 0 or most <= 1, f"pixels from {least:.3g} to {most:.3g}")


def probe_features(kind: Any) -> Result:
    """Red if the features of two images with different numbers of tokens are not joined."""
    features = [mx.random.normal((tokens, WIDTH)) for tokens in TOKENS]
    model = make_module(
        kind,
        config=SimpleNamespace(text_config=SimpleNamespace(hidden_size=WIDTH)),
        _extract_feature_single=lambda image: image[None],
    )
    try:
        found = model.extract_feature(features)
    except ValueError as error:
        return Result(True, f"ValueError: {error}"[:200])
    is_joined = mx.array_equal(found, mx.concatenate(features)).item()
    return Result(not is_joined, f"the features are {'' if is_joined else 'not '}joined")


def probe_video(kind: Any, process_inputs: Any = None) -> Result:
    """Red if other images are processed than a video's frames, or their times are not given."""
    numpy, prompts = require_module("numpy"), []

    def process(images: Any) -> dict[str, Any]:
        sizes = [(image.width, image.height) for image in images]
        return {"num_tokens": [1], "num_patches": [1] * len(sizes), "pixel_values": [sizes]}

    def tokenize(text: list[str], **_: Any) -> dict[str, Any]:
        prompts.extend(text)
        return {}

    processor = kind.__new__(kind)
    vars(processor).update(
        image_processor=process,
        video_processor=process,
        tokenizer=tokenize,
        video_temporal_patch_dim=2,
        image_token="<image>",
        image_start_token="<img>",
        image_end_token="</img>",
        video_token="<video>",
    )
    video = numpy.zeros((2, 3, SMALL, LARGE), "uint8")
    times = SimpleNamespace(fps=2.0, frames_indices=[0, 1])
    given = {"videos": [video], "fps": [2.0], "video_metadata": [times]}
    if process_inputs:
        made = process_inputs(processor, ["<video>"], **given)
    else:
        made = processor(text=["<video>"], **given)
    sizes = made["pixel_values_videos"].tolist()
    is_read = sizes == [[[LARGE, SMALL]] * 2] and "0.50 seconds" in prompts[0]
    return Result(not is_read, f"frames of {sizes}, {prompts[0]!r}")
