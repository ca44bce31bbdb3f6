"""mlx_vlm.server before 0.6 answers a sound with status 500.

Why: A request has the content of a sound in base64. The server passes it on as the path of a file,
    and up to 0.4 with an empty list of images, which processors cannot stack.
How: Text that is base64, and not the path of a file, is decoded before it is read. An empty list
    of images is not passed on.
Upstream: mlx-vlm 0.6.
Retire when: No supported release is older than mlx-vlm 0.6.
"""

import base64
import re
from pathlib import Path
from typing import Any

from ....core.verbs import Patch, argument
from ..._shared.media_content import Content

# Shorter texts are names: a file with its header has a longer one.
SHORTEST = 64
LONGEST_PATH = 4096
_PREFIX = re.compile(r"data:[\w./+;=-]{,200}?;base64,", re.ASCII)


def decode(file: str) -> Any:
    """The content that is encoded in a text, or the text if it is not base64."""
    found = _PREFIX.match(file)
    try:
        content = base64.b64decode(file[found.end() if found else 0 :], validate=True)
    except ValueError:  # also a character beyond ASCII
        return file
    return Content(content, "a sound in base64")


def is_encoded(file: Any) -> bool:
    """Whether a text may have the content of a sound: it is long, and neither a URL nor a file."""
    if not isinstance(file, str) or len(file) < SHORTEST:
        return False
    if file.startswith("data:"):
        return True
    return not file.startswith(("http:", "https:")) and not is_file(file)


def omit() -> None:
    """Pass no images."""


def is_empty(images: Any, audio: Any) -> bool:
    """Whether a prompt has sounds and an empty list of images."""
    return bool(audio) and images == []


def is_file(name: str) -> bool:
    try:
        return len(name) <= LONGEST_PATH and Path(name).is_file()
    except (OSError, ValueError):  # a name that is too long, or has a null character
        return False


PATCH = Patch(
    id="encoded-sounds",
    every_model=True,
    severity="crash",
    targets=(
        *argument("mlx_vlm.utils:load_audio", "file", decode, when=is_encoded),
        *argument("mlx_vlm.utils:prepare_inputs", "images", omit, when=is_empty),
    ),
)
