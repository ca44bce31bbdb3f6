"""An additional JSON entry in the metadata of a file that ``save_prompt_cache`` writes."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def save_entry(
    save: Callable[..., None],
    file_name: str,
    cache: Sequence[Any],
    metadata: Mapping[str, str] | None,
    name: str,
    content: Any,
) -> None:
    """Call the release's ``save_prompt_cache``, with the content, if any, in the metadata."""
    if content:
        metadata = {**(metadata or {}), name: json.dumps(content)}
    # Up to mlx-lm 0.31 the release does not accept None.
    save(file_name, cache, *(() if metadata is None else (metadata,)))


def load_entry(
    load: Callable[..., Any],
    file_name: str,
    return_metadata: bool,
    name: str,
    restore: Callable[[Any, dict[str, Any]], None],
) -> Any:
    """Call the release's ``load_prompt_cache``, and pass the entry, or "", to ``restore``."""
    cache, metadata = load(file_name, return_metadata=True)
    # For a file without metadata some releases do not return a dictionary.
    content = metadata.pop(name, "{}") if isinstance(metadata, dict) else "{}"
    restore(cache, json.loads(content))
    return (cache, metadata) if return_metadata else cache
