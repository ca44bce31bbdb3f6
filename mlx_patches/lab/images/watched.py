"""The stage that compares prompts with videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import videos
from .release import array

# The longest chunk of a prompt that cuts a video.
CHUNK = 16
# The largest difference of pixels that were not rounded.
SAME = 1e-5


def compare(compared: Any) -> tuple[dict[str, Any], bool]:
    """How far the logits of each case are off, and whether the release has other pixels."""
    off: dict[str, Any] = {}
    has_other = False
    one, want, loaded = compared.one, compared.want, compared.loaded
    for case in filter(want.runs, videos.list_cases(one)):
        images, shown = videos.save_images(want.folder, case), videos.draw(one, case)
        own = loaded.inputs(videos.prompt(one, case), images, videos=shown, fps=videos.RATE)
        has_other |= differ(own, want.inputs(case))
        for step in (None, CHUNK):
            rows = loaded.run(own, compared.sampler(case), **({"step": step} if step else {}))
            share = compared.rows_off(case, rows)
            off[f"{case} in chunks" if step else case] = share
    return off, has_other


def differ(own: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Whether some pixels are other ones: those of a resized frame are rounded."""
    for name in filter(lambda name: name.startswith("pixel_values"), want):
        if name not in own or isinstance(own[name], list):
            return True
        found, expected = array(own[name]).reshape(-1), want[name].reshape(-1)
        if found.size != expected.size or abs(found - expected).max() > SAME:
            return True
    return False
