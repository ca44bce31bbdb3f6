"""Shell completion of patch ids, models, hosts and profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from ..activation.profiles import PROFILES
from ..activation.session import session
from ..core.distributions import find, source_file
from ..core.model_types import remapping
from ..core.packages import MODEL_PACKAGES, SERVERS
from .hosts import KNOWN


def script(shell: str, command: click.Command) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    text = kind(command, {}, "mlx-patches", "_MLX_PATCHES_COMPLETE").source()
    # A plain .zshrc has no completion system yet; `compinit -i` skips folders of other users.
    start = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }\n    compdef _"
    return text.replace("compdef _", start) if shell == "zsh" else text


def complete(kinds: str, begun: str) -> list[CompletionItem]:
    """The names of these kinds that begin so; models may also be files."""
    names = {name for kind in kinds.split() for name in _NAMES[kind]()}
    found = [CompletionItem(name) for name in sorted(names) if name.startswith(begun)]
    return found or [CompletionItem(begun, type="file")] if "models" in kinds else found


def _models() -> Iterable[str]:
    for package in MODEL_PACKAGES:
        yield from remapping(package)
        if file := source_file(package):
            paths = (*file.parent.glob("[!_]*.py"), *file.parent.glob("[!_]*/__init__.py"))
            yield from (one.parent.name if one.stem == "__init__" else one.stem for one in paths)


def _hosts() -> Iterable[str]:
    return [name for name in (*KNOWN, *SERVERS) if find(SERVERS.get(name, name))]


def _patches() -> Iterable[str]:
    return session().registry.ids()


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "patches": _patches,
    "models": _models,
    "hosts": _hosts,
    "profiles": PROFILES.keys,
}
