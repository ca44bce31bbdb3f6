"""The stage that compares prompts with videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...evidence.words import NOT_APPLICABLE, RED
from .. import Cell
from . import videos
from .judge import EQUAL, ROUNDED, put_in_line, verdict
from .release import WHOLE, array

# The longest chunk of a prompt that cuts a video.
CHUNK = 16
# The largest difference of pixels that were not rounded.
SAME = 1e-5


def compare(compared: Any) -> Cell:
    """Compare the logits of prompts with videos, with the release's own inputs."""
    if not compared.loaded.reads_videos:
        return Cell(NOT_APPLICABLE, "the release's function takes no videos")
    off: dict[str, Any] = {}
    has_other_pixels = False
    one, want, loaded = compared.one, compared.want, compared.loaded
    try:
        for case in filter(want.runs, videos.list_cases(one)):
            images, shown = videos.save_images(want.folder, case), videos.draw(one, case)
            own = loaded.inputs(videos.prompt(one, case), images, videos=shown, fps=videos.RATE)
            has_other_pixels |= differ(own, want.inputs(case))
            for name, step in ((case, WHOLE), (f"{case} in chunks", CHUNK)):
                rows = loaded.run(own, compared.sampler(case), step)
                off[name] = compared.rows_off(case, rows)
    except Exception as error:
        return Cell(RED, put_in_line(error))
    return verdict(off, ROUNDED if has_other_pixels else EQUAL)


def differ(own: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Whether some pixels are other ones: those of a resized frame are rounded."""
    for name in filter(lambda name: name.startswith("pixel_values"), want):
        if name not in own or isinstance(own[name], list):
            return True
        found, expected = array(own[name]).reshape(-1), want[name].reshape(-1)
        if found.size != expected.size or abs(found - expected).max() > SAME:
            return True
    return False
