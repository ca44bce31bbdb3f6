"""An entry of ours in the metadata of a file that ``save_prompt_cache`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any


def add_entry(metadata: Mapping[str, str] | None, name: str, content: Any) -> dict[str, str]:
    """The caller's metadata with one more entry, as JSON."""
    return {**(metadata or {}), name: json.dumps(content)}


def load_entry(
    load: Callable[..., Any],
    file_name: str,
    return_metadata: bool,
    name: str,
    restore: Callable[[Any, dict[str, Any]], None],
) -> Any:
    """``load_prompt_cache``, with caches that are restored from the entry, and without the entry.

    Args:
        load: the release's ``load_prompt_cache``.
        file_name: its argument.
        return_metadata: its argument.
        name: of the entry.
        restore: called with the caches and what the entry holds, empty if there is none.
    """
    cache, metadata = load(file_name, return_metadata=True)
    # For a file without metadata some releases do not return a dictionary.
    content = metadata.pop(name, "{}") if isinstance(metadata, dict) else "{}"
    restore(cache, json.loads(content))
    return (cache, metadata) if return_metadata else cache
