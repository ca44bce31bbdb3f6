"""``mlx_vlm.server`` eats the first letters of a thought: "got it" becomes "it".

Why
    What a model says before ``<channel|>`` is its thought, and a leading word "thought" is
    taken off with ``lstrip("thought")``: that is every leading t, h, o, u and g. A thought that
    begins with "the", "to", "got" or "though" loses letters, in silence.
How
    The word is taken off before, where it stands, and a line break goes in front: the release
    finds nothing to eat, and strips the line break itself.
Upstream
    Reported as mlx-vlm #1934. Fixed in mlx-vlm 0.7.10 (#2203).
Retire when
    No supported release uses ``lstrip("thought")``.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.patch import Patch, Target, around

_WORD = "thought"


def cleaned(clean: Callable[[str, str], str], reasoning: str, start_marker: str) -> str:
    """A thought without its marker; ``start_marker`` opens it."""
    return clean(without_word(reasoning, start_marker), start_marker)


def without_word(reasoning: str, start_marker: str) -> str:
    """A thought as the release can clean it, if its marker ends with the word."""
    if not start_marker.endswith(_WORD):
        return reasoning
    return "\n" + reasoning.replace(start_marker, "").removeprefix(_WORD)


PATCH = Patch(
    id="vlm-thought-prefix",
    summary='mlx_vlm.server eats the first letters of a thought: "got it" becomes "it"',
    targets=(
        Target("mlx-vlm", "mlx_vlm.server.responses_state", "_clean_reasoning", around(cleaned)),
    ),
    probe="mlx_patches.probes.thought_prefix:probe",
    module=__name__,
)
