"""What commands share: ``-q`` and ``-v``, defaults in files, and options of several commands."""

import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from .core.errors import MlxPatchesError
from .core.files import quote
from .evidence.words import choose_severities


class Option(click.Option):
    """An option that takes one value: of two different ones, click would ignore the first.

    A shell completes paths, which are described as FILE or FOLDER.
    """

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        kind = {"FILE": "file", "FOLDER": "dir"}.get(str(self.metavar))
        if kind:
            return [CompletionItem(incomplete, type=kind)]
        return super().shell_complete(ctx, incomplete)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        repeatable = self.multiple
        self.multiple = repeatable or not self.is_flag
        super().add_to_parser(parser, ctx)
        self.multiple = repeatable

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> Any:
        given = opts.get(self.name)
        if isinstance(given, list) and not self.multiple:
            opts = {**opts, self.name: given[-1]}
            values = {self.type_cast_value(ctx, one): one for one in given if len(given) > 1}
            if len(values) > 1 and not ctx.resilient_parsing:
                first, second, *_ = (f"{self.opts[0]} {quote(one)}" for one in values.values())
                raise click.UsageError(f"{first} contradicts {second}: omit one of them", ctx)
        return super().handle_parse_result(ctx, opts, args)


option = partial(click.option, cls=Option)


class Context(click.Context):
    """A context whose help fits the screen: on a narrow one, texts are below their options."""

    def make_formatter(self) -> click.HelpFormatter:
        made = click.HelpFormatter(width=min(max(shutil.get_terminal_size().columns, 20), 80) - 2)
        if made.width < 50:
            vars(made)["write_dl"] = partial(made.write_dl, col_max=2)
        return made


class Command(click.Command):
    """A command with ``-q`` and ``-v``, whose other defaults come from the config files."""

    context_class = Context

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        for name, text in (("quiet", "Print only the result."), ("verbose", "Print every detail.")):
            flag = click.Option(
                [f"-{name[0]}", f"--{name}"], is_flag=True, expose_value=False, help=text
            )
            flag.callback = _keep
            self.params.append(flag)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; a broken config file does not disturb --help."""
        from .auditing import configuration

        try:
            names = {str(one.name) for one in self.params}
            context.default_map, context.meta["files"] = configuration.read(names)
        except MlxPatchesError as error:
            context.meta["error"] = error
        modes = {flag for one in self.params if one.name == "mode" for flag in one.opts}
        if len(given := modes.intersection(args)) > 1:  # the last would win
            text = f"{' contradicts '.join(sorted(given)[:2])}: omit one of them"
            context.meta["error"] = click.UsageError(text, context)
        return super().parse_args(context, args)

    def invoke(self, context: click.Context) -> Any:
        if "error" in context.meta:
            raise context.meta["error"]
        if context.meta["files"] and not context.meta.get("quiet"):
            files = dict.fromkeys(context.meta["files"].values())
            click.echo(f"mlx-patches: settings from {', '.join(files)}", err=True)
        return super().invoke(context)


def _keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Keep a flag for ``is_set``; -q and -v exclude each other."""
    context.meta[str(parameter.name)] = value
    if context.meta.get("quiet") and context.meta.get("verbose"):
        raise click.UsageError("-q contradicts -v: omit one of them")


def is_set(flag: str) -> bool:
    return bool(click.get_current_context().meta.get(flag))


def print_note(text: str) -> None:
    """Print a line that is not the result."""
    if not is_set("quiet"):
        click.echo(text)


def refuse_options(why: str, names: str) -> None:
    """Refuse options that contradict the one that ``why`` is about."""
    context = click.get_current_context()
    flags = {one.name: one.opts[0] for one in reversed(context.command.params)}
    flags |= {name: f"{name} in {file}" for name, file in context.meta["files"].items()}
    if given := [flags[str(name)] for name in names.split() if context.params[name]]:
        raise click.UsageError(f"{why}: omit {' and '.join(given)}")


def complete(kind: str) -> Callable[..., Any]:
    """Return a function that completes names of this kind for a shell."""

    def find(context: Any, parameter: Any, begun: str) -> Any:
        from .auditing import completion

        return completion.complete(kind, begun)

    return find


def complete_scenario(context: Any, parameter: Any, begun: str) -> Any:
    """Complete a scenario; of a server, a request's parameter."""
    from .auditing.completion import items
    from .lab.runner import list_scenarios
    from .lab.server.parameters import TABLE
    from .lab.server.runner import HANG_UP
    from .lab.walks.runner import WALKS

    given = context.params
    if given.get("server") or given.get("url"):
        return items((*TABLE, HANG_UP), begun)
    reference = bool(given.get("reference"))
    return items((*list_scenarios(reference), *[WALKS] * (not reference)), begun)


def read_host(value: str) -> str:
    from .core.distributions import canonical

    if not canonical(value).strip("- "):  # the command would apply to every host
        raise click.BadParameter("expected the name of a distribution")
    return quote(value)


def check_seconds(context: Any, parameter: Any, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"{value:g} is not a finite number of seconds above 0")
    return value


def read_severities(value: str) -> frozenset[str]:
    names = frozenset(filter(None, (name.strip().lower() for name in value.split(","))))
    # An empty list would make every audit exit with 0.
    try:
        return choose_severities(names or {""})
    except MlxPatchesError as error:
        raise click.BadParameter(str(error)) from None


def check_text(value: str) -> str:
    """A value; an empty one is often a shell variable without a value."""
    if not value:
        raise click.BadParameter("expected a value")
    return value


def to_path(value: str) -> Path:
    return Path(check_text(value))


def count_option(name: str, least: int, text: str) -> Callable[..., Any]:
    """An option for a count, by default the least one."""
    kind = click.IntRange(least)
    return option(name, type=kind, default=least, show_default=True, metavar="N", help=text)


json_option = option("--json", "as_json", is_flag=True, help="Print JSON.")
profile_option = option(
    "--profile",
    type=check_text,
    metavar="NAME",
    shell_complete=complete("profiles"),
    help="Which patches: batch, server, security, safe, or several.  [default: safe]",
)


def hosts_option(text: str) -> Callable[[Any], Any]:
    return option(
        "--host",
        "hosts",
        type=read_host,
        multiple=True,
        metavar="DISTRIBUTION",
        shell_complete=complete("hosts"),
        help=f"{text}; repeatable.",
    )


models_argument = click.argument(
    "more", nargs=-1, metavar="[MODEL]...", shell_complete=complete("models")
)


def models_option(text: str) -> Callable[[Any], Any]:
    return option(
        "--model",
        "models",
        multiple=True,
        metavar="NAME",
        shell_complete=complete("models"),
        help=text,
    )
