"""The text of ``mlx-patches explain``: why a patch exists, and its state in this environment."""

import re
import shutil
import textwrap
from collections.abc import Iterator

from ..core.outcome import IN_EFFECT, NOT_NEEDED
from ..core.patch import Patch
from .audit import outcomes_of
from .listing import ignore_if
from .preflight import session_of_readable
from .verdict import patch_severity

# Text on a wider screen is hard to read.
MAX_WIDTH = 100
_REPOSITORIES = {
    "mlx-lm": "https://github.com/ml-explore/mlx-lm",
    "mlx-vlm": "https://github.com/Blaizzy/mlx-vlm",
    "vllm-mlx": "https://github.com/waybarrios/vllm-mlx",
}


def explain(name: str, quiet: bool = False, verbose: bool = False) -> Iterator[str]:
    """The lines about a patch.

    Args:
        quiet: only its effect and its state here.
        verbose: also the state of each target.
    """
    current = session_of_readable()
    patch = current.registry.get(name)
    yield fill(f"{patch.id}: {patch.summary}\n\n{_here(patch)}")
    if quiet:
        return
    text = patch.documentation
    if patch.headline == patch.summary:
        text = text.partition("\n\n")[2]
    yield f"\n{plain(text)}"
    yield "\nTargets"
    states = {one.target: one for one in outcomes_of([patch])} if verbose else {}
    for target in patch.targets:
        state = states.get(target.path)
        yield fill(f"    {target.path}{f'  {state.status}: {state.reason}' if state else ''}", 8)
    yield "Affected releases"
    for distribution in dict.fromkeys(t.distribution for t in patch.targets):
        if rule := current.matrix.rule(patch.id, distribution):
            fixed = f", fixed in {rule.fixed}" if rule.fixed else ""
            yield fill(f"    {distribution} {rule.add_note(rule.affected + fixed)}", 8)
    if origin := current.registry.origin(name):
        yield f"Contributed by\n    {origin}"
    yield f"Reproducer\n    mlx-patches probe {patch.id}"


def _here(patch: Patch) -> str:
    """A patch's severity, and whether this environment has its defect and repairs it."""
    outcomes = list(outcomes_of([patch]))
    needed = [one for one in outcomes if one.status not in NOT_NEEDED]
    text = f"Severity\n    {patch_severity(patch.id)}\nHere\n    "
    if not needed:
        reasons = dict.fromkeys(one.reason for one in outcomes)
        return f"{text}not affected: {'; '.join(reasons)}"
    open_ = [one for one in needed if one.status not in IN_EFFECT]
    state = f"affected, not repaired here ({open_[0].status})" if open_ else "repaired here"
    text += f"{state}: {(open_ or needed)[0].reason}"
    return f"{text}\nIgnore it if\n    {ignore_if(patch.id)}"


def plain(text: str) -> str:
    """A docstring as plain text, with the addresses of its upstream threads."""
    text = re.sub(r"``([^`]*)``|`([^`]*)`", lambda found: found[1] or found[2], text)
    text = fill(_join_lines(text))
    found = dict.fromkeys(re.findall(r"\b([a-z][\w-]*)\s+#(\d+)", text))
    links = [
        f"    {_REPOSITORIES[name]}/issues/{number}"
        for name, number in found
        if name in _REPOSITORIES
    ]
    return "\n".join([text, *(["Threads", *links] if links else [])])


def _join_lines(text: str) -> str:
    """The text with each indented paragraph, and each item of a list, in one line."""
    lines = [""]
    for line in text.splitlines():
        if lines[-1].startswith("    ") and re.match(r" {4,}(?!- )\S", line):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines[1:])


def fill(text: str, indent: int = 4) -> str:
    """The text in lines that fit the screen; an indented line continues with ``indent`` blanks."""
    width = min(shutil.get_terminal_size((MAX_WIDTH, 0)).columns, MAX_WIDTH)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines = []
    for line in text.splitlines():
        item = 2 * line.lstrip().startswith("- ")
        wrapper.subsequent_indent = " " * (indent + item) if line.startswith(" ") else ""
        lines.append(wrapper.fill(line))
    return "\n".join(lines)
