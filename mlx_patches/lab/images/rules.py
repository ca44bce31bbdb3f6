"""A rule that needs no reference: a field that published configs lack does not change a result.

A release gives such a field a default. If a part of the config has a field of that name, its value
has to yield the same result: gemma3 divided image features by the root of the default
``hidden_size``, 2048, whatever the width of its text model.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTS = ("text_config", "llm_config", "language_config")


def defaults(config: Any, published: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Field to its default and the value of a part of the published config, if these differ."""
    if not dataclasses.is_dataclass(config):
        return {}
    part: Mapping[str, Any] = next(filter(None, map(published.get, PARTS)), {})
    return {
        one.name: (one.default, part[one.name])
        for one in dataclasses.fields(config)
        if one.name not in published
        and isinstance(one.default, (int, float))
        and isinstance(part.get(one.name), (int, float))
        and getattr(config, one.name, None) == one.default != part[one.name]
    }


@contextmanager
def with_fields(folder: Path, fields: Mapping[str, Any]) -> Iterator[Path]:
    """A copy of a folder, with more fields in its config."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        copy = Path(temporary)
        for path in folder.iterdir():
            os.link(path, copy / path.name)
        config = json.loads((folder / "config.json").read_text())
        (copy / "config.json").unlink()
        (copy / "config.json").write_text(json.dumps({**config, **fields}))
        yield copy
