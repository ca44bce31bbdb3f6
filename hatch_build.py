"""The metadata that depends on the repository's address, which the release workflow knows.

With ``MLX_PATCHES_REPOSITORY``, the links of README.md become absolute, since the index has no
other files, and the project gets its addresses.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Links(MetadataHookInterface):
    """Hatch calls ``update`` in each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the page of the index and, with an address, the project's addresses."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if url := os.environ.get("MLX_PATCHES_REPOSITORY", "").rstrip("/"):
            text = re.sub(r"\]\((?![a-z]+:|#)([^)]+\.svg)\)", rf"]({url}/raw/main/\1)", text)
            text = re.sub(r"\]\((?![a-z]+:|#)([^)]+)\)", rf"]({url}/blob/main/\1)", text)
            metadata["urls"] = {
                "Source": url,
                "Documentation": f"{url}/tree/main/docs",
                "Changelog": f"{url}/blob/main/CHANGELOG.md",
                "Issues": f"{url}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
