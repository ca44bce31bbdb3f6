"""The content of a file, for loaders that take a URL or a path."""

from io import BytesIO


class Content(BytesIO):
    """A file that loaders accept; its repr is where it comes from, for their messages."""

    def __init__(self, content: bytes, source: str):
        super().__init__(content)
        self.source = source

    def startswith(self, prefixes: object) -> bool:
        """Return False: mlx-vlm below 0.4.0 tests for a URL before it tests the type."""
        return False

    def __repr__(self) -> str:
        return self.source
