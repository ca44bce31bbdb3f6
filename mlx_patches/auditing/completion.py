"""Shell completion of patch ids, models, hosts, profiles and severities."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from ..activation.profiles import PROFILES
from ..activation.session import session
from ..core.distributions import find, source_file
from ..core.model_types import is_helper, remapping
from ..core.packages import MODEL_PACKAGES, SERVERS
from ..evidence.words import SEVERITIES
from .hosts import KNOWN


def script(shell: str, command: click.Command) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    text = kind(command, {}, "mlx-patches", "_MLX_PATCHES_COMPLETE").source()
    for old, new in _CHANGES.get(shell, {}).items():
        text = text.replace(old, new)
    return text


def complete(kinds: str, begun: str) -> list[CompletionItem]:
    """The names of these kinds that begin so; models may also be files."""
    names = [name for kind in kinds.split() for name in _NAMES[kind]()]
    found = items(names, begun, kinds in LISTED)
    return found or [CompletionItem(begun, type="file")] if "models" in kinds else found


def items(names: Iterable[str], begun: str, is_list: bool = False) -> list[CompletionItem]:
    """The names that begin so; ``is_list``: of the last name in a list with commas."""
    before = begun[: begun.rfind(",") + 1] if is_list else ""
    found = sorted(before + name for name in set(names))
    return [CompletionItem(name) for name in found if name.startswith(begun)]


def _models() -> Iterable[str]:
    for package in MODEL_PACKAGES:
        yield from remapping(package)
        if file := source_file(package):
            modules = file.parent.glob("[!_]*.py")
            yield from (one.stem for one in modules if not is_helper(one))
            yield from (one.parent.name for one in file.parent.glob("[!_]*/__init__.py"))


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "patches": lambda: session().registry.ids(),
    "models": _models,
    "hosts": lambda: [one for one in (*KNOWN, *SERVERS) if find(SERVERS.get(one, one))],
    "profiles": PROFILES.keys,
    "severities": lambda: (*SEVERITIES, "any"),
}
# Options of these kinds take several names with commas.
LISTED = ("profiles", "severities")
# A plain .zshrc has no completion system yet; `compinit -i` skips folders of other users. zsh and
# fish would drop the option of `--option=value`, and fish the rest of a value after a comma.
_CHANGES = {
    "zsh": {
        "    compdef _": "    (( $+functions[compdef] )) ||"
        " { autoload -Uz compinit && compinit -i }\n    compdef _",
        "    local -a response\n": '    local -a response\n    local flag="${(M)PREFIX##--*=}"\n',
        '"$key"': '"$flag$key"',
        "_path_files": 'compset -P "$flag"; _path_files',
    },
    "fish": {
        'string split ","': 'string split -m 1 ","',
        "echo $metadata[2]": "echo (string match -r '^--[^=]*=' -- (commandline -ct); or echo '')"
        "$metadata[2]",
    },
}
