"""The test videos, whose frames both sides get as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from . import pictures, published

# Frames per second: no processor's default.
RATE = 1.0
# A frame's side that no Qwen-VL processor resizes, and the image beside a video.
SIDE, IMAGE = 448, "square"


class Case(NamedTuple):
    """The videos of a prompt, as their number of frames, behind an image if there is one."""

    frames: tuple[int, ...]
    has_image: bool = False


CASES = {
    "one video": Case((4,)),
    "two videos": Case((4, 4)),
    "image and video": Case((4,), has_image=True),
}


def list_cases(one: published.Json) -> list[str]:
    return [*CASES] if "video" in one else []


def prompt(one: published.Json, case: str, block: str = "video") -> str:
    """A case's prompt; ``block``: the field of the entry that has a video's text."""
    text = published.prompt(one, int(CASES[case].has_image))
    first = "<bos>" if one.get("bos") else ""
    end = "" if one.get("joined") else "\n"
    asked = one.get("ask", published.QUESTION)
    shown = text.removeprefix(first).removesuffix(asked)
    return f"{first}{shown}{(one[block] + end) * len(CASES[case].frames)}{asked}"


def save_images(folder: Path, case: str) -> list[str]:
    return pictures.save(folder, IMAGE) if CASES[case].has_image else []


def draw(one: published.Json, case: str) -> list[Any]:
    """The frames of each video (frames, rows, columns, 3): a picture that moves and darkens."""
    import numpy as np

    found, side = [], one.get("video-side", SIDE)
    for place, count in enumerate(CASES[case].frames):
        image = np.asarray(pictures.draw(side, side, "RGB", 31 * place + len(case)))
        frames = [np.roll(image, 40 * time, 1) // (1 + time) for time in range(count)]
        found.append(np.stack(frames))
    return found


def process(one: published.Json, processor: Any, folder: Path, case: str) -> Any:
    """What transformers' processor makes of a case."""
    from transformers.image_utils import load_image

    # Since 5.10 it keeps the tokens around a block beside those that it writes for each grid.
    bare = "video-bare" in one and hasattr(processor, "replace_video_token")
    videos = draw(one, case)
    metadata = [
        {"total_num_frames": len(video), "fps": RATE, "frames_indices": [*range(len(video))]}
        for video in videos
    ]
    return processor(
        images=[*map(load_image, save_images(folder, case))] or None,
        videos=videos,
        text=[prompt(one, case, "video-bare" if bare else "video")],
        video_metadata=metadata,
        do_sample_frames=False,
        add_special_tokens=False,
        return_tensors="pt",
    )
