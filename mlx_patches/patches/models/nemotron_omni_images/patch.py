"""Nemotron Omni in mlx-vlm: wrong pixels; two images or a video crash.

Why: The image processor resizes an image in 8 bits, which rounds and clips its values; the authors
    resize floats. The model joins the features of a prompt's images along the images, so they need
    the same number of tokens. The processor expects a list of a video's frames as Pillow's images,
    but receives a list of videos, each an array. It does not declare the arguments that have the
    times of the frames, so ``process_inputs`` drops them.
How: The image processor receives images that resize to floats. The features of images that are not
    of one size are joined along their tokens. The processor receives the frames of a video, and
    their times: ``process_inputs`` calls a function that declares them.
Upstream: mlx-vlm 0.7.9 does all of this.
Retire when: No supported release is older than mlx-vlm 0.7.9.
"""

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ....core.verbs import Function, Patch, argument, mx, support, wrap

FAMILY = "nemotron_h_nano_omni"
_MODULE = f"mlx_vlm.models.{FAMILY}"
_PROCESSOR = "NemotronHNanoOmniProcessor"


def copy_images(images: Iterable[Any]) -> list[Any]:
    """Copies of Pillow's images whose ``resize`` returns an array of floats."""
    copies = [image.copy() for image in images]
    for image in copies:
        image.resize = partial(resize, image)
    return copies


def resize(image: Any, size: tuple[int, int], resample: Any, **_: Any) -> Any:
    """An image of another size (rows, columns, colours), neither rounded nor clipped."""
    import numpy as np

    colours = [colour.convert("F").resize(size, resample) for colour in image.split()]
    return np.stack(colours, axis=-1)


def is_list(pixel_values: Any) -> bool:
    """Whether images are not of one size."""
    return isinstance(pixel_values, (list, tuple))


def join_tokens(extract: Function, model: Any, pixel_values: Any) -> Any:
    """The features (tokens, width) of images, extracted one by one."""
    return mx.concatenate([extract(model, image).flatten(0, 1) for image in pixel_values])


def has_video(videos: Any) -> bool:
    """Whether a prompt has one video, which is an array (frames, colours, rows, columns)."""
    return isinstance(videos, list) and len(videos) == 1 and getattr(videos[0], "ndim", 0) == 4


def read_frames(
    call: Function,
    processor: Any,
    *args: Any,
    videos: Any,
    fps: Any = None,
    video_metadata: Any = None,
    **kwargs: Any,
) -> Any:
    """The inputs of a prompt with a video, whose frames are given as images."""
    convert = import_module("PIL.Image").fromarray
    frames = [convert(frame) for frame in videos[0].transpose(0, 2, 3, 1)]
    times = video_metadata or [SimpleNamespace(fps=fps and fps[0])]
    kwargs["videos_kwargs"] = {"video_metadata": times[0], **kwargs.get("videos_kwargs", {})}
    return call(processor, *args, videos=frames, **kwargs)


def is_omni(processor: Any) -> bool:
    return type(processor).__name__ == _PROCESSOR


def declare_times(processor: Any) -> Function:
    """A function that calls the processor, and declares the arguments with the times of frames."""

    def process(
        videos: Any = None,
        audio: Any = None,
        fps: Any = None,
        video_metadata: Any = None,
        **more: Any,
    ) -> Any:
        if has_video(videos):
            more |= {"fps": fps, "video_metadata": video_metadata}
        return processor(videos=videos, audio=audio, **more)

    return process


PATCH = Patch(
    id="nemotron-omni-images",
    wrong_solo=FAMILY,
    targets=(
        *argument(
            f"{_MODULE}.image_processing_{FAMILY}:NemotronHNanoOmniImageProcessor._preprocess",
            "images",
            copy_images,
        ),
        *wrap(f"{_MODULE}.{FAMILY}:Model.extract_feature", join_tokens, when=is_list),
        *wrap(
            f"{_MODULE}.processing_{FAMILY}:{_PROCESSOR}.__call__",
            read_frames,
            when=has_video,
        ),
        *support(
            *argument("mlx_vlm.utils:process_inputs", "processor", declare_times, when=is_omni)
        ),
    ),
)
