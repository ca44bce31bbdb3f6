"""mlx_vlm.server drops the first letters of a thought: "got it" becomes "it".

Why: Text before ``<channel|>`` is the model's thought. The release removes a leading word "thought"
    with ``lstrip("thought")``, which removes every leading t, h, o, u and g. A thought that starts
    with "the", "to", "got" or "though" silently loses letters.
How: The patch removes the word itself first, and puts a line break in front: ``lstrip`` then
    removes nothing, and the release strips the line break.
Upstream: Reported as mlx-vlm #1934. Fixed in mlx-vlm 0.7.10 (#2203).
Retire when: No supported release uses ``lstrip("thought")``.
"""

from ....core.verbs import Patch, argument

_WORD = "thought"


def cut_word(reasoning: str, start_marker: str) -> str:
    """A thought that ``lstrip`` cannot damage; unchanged if its marker does not end in the word."""
    if not start_marker.endswith(_WORD):
        return reasoning
    return "\n" + reasoning.replace(start_marker, "").removeprefix(_WORD)


PATCH = Patch(
    id="vlm-thought-prefix",
    every_model=True,
    targets=argument("mlx_vlm.server.responses_state:_clean_reasoning", "reasoning", cut_word),
)
