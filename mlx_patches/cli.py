"""The command ``mlx-patches``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import __version__
from .core.errors import MlxPatchesError
from .core.packages import MODEL_PACKAGES

# Long enough for a cold import of a release on a slow machine.
PROBE_SECONDS = 120
_PROFILE_HELP = "Which patches: batch, server, security, safe, or several."
_STYLES = {
    "applied": "green",
    "pending": "green",
    "fixed-upstream": "dim",
    "not-affected": "dim",
    "absent": "dim",
    "green": "green",
    "n/a": "dim",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlx-patches")
def cli() -> None:
    """Runtime patches that make batching on MLX correct, and an audit of what needs them.

    Exit codes: 0 nothing needed or all in effect, 1 a finding, 2 usage or broken input.
    """


@cli.command()
@click.option("--model", metavar="TYPE_OR_FOLDER", help="Only what this model needs.")
@click.option("--host", metavar="DISTRIBUTION", help="Say what to do for this host server.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/audit-json.md).")
@click.option("--strict", is_flag=True, help="What was switched off by choice is a finding too.")
@click.option("--all", "show_all", is_flag=True, help="Show the targets that need nothing as well.")
@click.option("--html", type=Path, metavar="FILE", help="Write the report page, too.")
def audit(
    model: str | None,
    host: str | None,
    as_json: bool,
    strict: bool,
    show_all: bool,
    html: Path | None,
) -> None:
    """Say what is installed, what is wrong with it, and what is repaired."""
    from .auditing.audit import audit as make_audit

    report = make_audit(model, host)
    code = report.exit_code(strict)
    if html is not None:
        from .evidence.store import load
        from .report import save

        save(html, load(), report.as_dict())
    if as_json:
        click.echo(json.dumps({**report.as_dict(), "exit_code": code}, indent=2))
    else:
        _print_audit(report, code, show_all)
    sys.exit(code)


@cli.command()
@click.argument("patch")
def explain(patch: str) -> None:
    """Print why a patch exists, how it works, where upstream stands and when it retires."""
    from .activation.session import session

    current = session()
    found = current.registry.get(patch)
    click.echo(f"{found.id}: {found.summary}\n")
    click.echo(found.documentation)
    click.echo("\nTargets")
    for target in found.targets:
        click.echo(f"    {target.path}")
    click.echo("Affected releases")
    for distribution in dict.fromkeys(t.distribution for t in found.targets):
        rule = current.matrix.rule(found.id, distribution)
        if rule is not None:
            fixed = f", fixed in {rule.fixed}" if rule.fixed else ""
            click.echo(f"    {distribution} {rule.affected}{fixed}")
    if origin := current.registry.origin(patch):
        click.echo(f"Contributed by\n    {origin}")
    click.echo(f"Reproducer\n    mlx-patches probe {found.id}")


@cli.command("list")
@click.option(
    "--profile", metavar="NAME", help="Only the patches of: batch, server, security, safe."
)
def list_patches(profile: str | None) -> None:
    """List every patch, its profiles, and whose it is where it is not ours."""
    from .activation import contributions, profiles
    from .activation.session import session

    current = session()
    if profile is not None:
        profiles.choose(profile)
    table = _table("patch", "profiles", "without it", "from")
    for patch in current.registry:
        area = current.registry.area(patch.id)
        of = profiles.profiles_of(area, patch.id, by_default=not patch.optional)
        if profile is None or set(of) & set(profile.replace(",", " ").split()):
            origin = current.registry.origin(patch.id)
            table.add_row(patch.id, ", ".join(of) or "optional", patch.summary, origin)
    _console().print(table)
    for name in contributions.blocked(current.disabled):
        click.echo(f"left out by MLX_PATCHES_DISABLE: the patches of {name}")


@cli.command()
@click.argument("name", metavar="PATCH|MODEL")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def probe(name: str, as_json: bool) -> None:
    """Run a reproducer in two processes: without the patches, and with them."""
    from .activation.session import session
    from .probes.tiny import MODELS

    registry = session().registry
    if name not in registry and name not in MODELS:
        models = ", ".join(MODELS)
        raise MlxPatchesError(f"no patch or model {name!r}; models: {models}; see mlx-patches list")
    kind = "--patch" if name in registry else "--model"
    without, with_ = (_run_child(kind, name, *extra) for extra in ([], ["--patched"]))
    rows = [
        {
            "patch": name,
            "target": before["target"],
            "without": before["verdict"],
            "with": after["verdict"],
            "detail_without": before["detail"],
            "detail_with": after["detail"],
        }
        for before, after in zip(without, with_, strict=True)
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        table = _table("target", "without", "with", "seen without", "seen with")
        for row in rows:
            verdicts = [_styled(row["without"]), _styled(row["with"])]
            table.add_row(row["target"], *verdicts, row["detail_without"], row["detail_with"])
        _console().print(table)
    sys.exit(1 if any(row["with"] == "red" for row in rows) else 0)


@cli.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="Only this family, or this distribution's.",
)
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Only this one.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, metavar="N")
@click.option("--patched", "mode", flag_value="patched", help="Only with the patches.")
@click.option("--unpatched", "mode", flag_value="unpatched", help="Only without them.")
@click.option("--both", "mode", flag_value="both", help="Both (the default).")
@click.option("--every-patch", is_flag=True, help="Not only those that the model's row names.")
@click.option(
    "--out", type=Path, metavar="FILE", help="Add rows to it, and run only what it lacks."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--timeout", default=120.0, show_default=True, metavar="S", help="Of each family.")
@click.option("--config", type=Path, metavar="FOLDER", help="Shrink the model in this folder.")
@click.option("--weights", type=Path, metavar="FOLDER", help="Load the model in this folder.")
def lab(
    models: tuple[str, ...],
    scenarios: tuple[str, ...],
    jobs: int,
    mode: str | None,
    every_patch: bool,
    out: Path | None,
    as_json: bool,
    timeout: float,
    config: Path | None,
    weights: Path | None,
) -> None:
    """Measure the batch invariance of the installed model families, tiny and with random weights.

    Each family runs in processes of its own. Exit codes: 0 no red cell, 1 a red cell (with the
    patches, where both ran), 2 usage or broken input.
    """
    from .lab import report, runner

    if config and weights:
        raise click.UsageError("--config shrinks a model, --weights takes it as it is: give one")
    tasks = runner.tasks(models, scenarios, mode or "both", config, every_patch, weights)
    with report.progress(len(tasks)) as tell:
        rows = runner.run(tasks, jobs, timeout, out, tell)
    if as_json:
        click.echo(json.dumps(report.as_dict(rows), indent=2))
    else:
        report.show(_console(), rows)
    sys.exit(runner.exit_code(rows))


@cli.command()
@click.option("--model", required=True, metavar="TYPE", help="A model type.")
@click.option("--host", metavar="DISTRIBUTION", help="Only what this installed host admits.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def recommend(model: str, host: str | None, as_json: bool) -> None:
    """Name the measured releases in which a model is right, alone and with the patches."""
    from .auditing.models import implementations
    from .auditing.recommend import recommend as make_recommendation

    families = implementations(model) or dict.fromkeys(MODEL_PACKAGES.values(), model)
    found = make_recommendation(families, host)
    if not found:
        raise MlxPatchesError(f"the lab has no evidence of a model {model!r}")
    if as_json:
        click.echo(json.dumps([one.as_dict() for one in found], indent=2))
        return
    table = _table("distribution", "right without patches", "right with them", "newest to use")
    for one in found:
        newest = one.best_repaired or "none that was measured"
        green, repaired = (", ".join(names) or "none" for names in (one.green, one.repaired))
        table.add_row(one.distribution, green, repaired, newest)
    _console().print(table)


@cli.command()
@click.option("--host", metavar="DISTRIBUTION", help="Only in processes of this installed host.")
@click.option("--profile", default="safe", show_default=True, metavar="NAME", help=_PROFILE_HELP)
def enable(host: str | None, profile: str) -> None:
    """Activate the patches in every process of this environment, or in those of one host.

    MLX_PATCHES=0 in a process's environment forbids them there, MLX_PATCHES=1 asks for them.
    """
    from .activation import enable as enabling

    limit = enabling.limit_to(host) if host else None
    path = enabling.enable(limit, profile)
    whose = f" for {', '.join(limit.scripts)}" if limit else ""
    click.echo(f"enabled{whose}: {path}")


@cli.command()
def disable() -> None:
    """Undo enable."""
    from .activation import enable as enabling

    removed = enabling.disable()
    click.echo(f"disabled: removed {removed}" if removed else "was not enabled here")


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option("--profile", default="", metavar="NAME", help=f"{_PROFILE_HELP}  [default: safe]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], profile: str) -> None:
    """Start a host with the patches: mlx-patches run -- vllm-mlx serve MODEL.

    Nothing has to be enabled. Worker processes get the patches too.
    """
    from .activation import run as running

    running.execute(running.launch(command, profile))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ps(as_json: bool) -> None:
    """List your processes that have patches in effect. MLX_PATCHES_PS=0 keeps one out of it."""
    from .activation.presence import processes

    found = processes()
    if as_json:
        click.echo(json.dumps([one._asdict() for one in found], indent=2))
        return
    if not found:
        click.echo("no process of yours has patches in effect")
        return
    table = _table("pid", "host", "patched", "patches", "withdrawn")
    for one in found:
        withdrawn = ", ".join(one.withdrawn) or "none"
        count = str(len(one.patches))
        table.add_row(str(one.pid), one.host, ", ".join(one.releases), count, withdrawn)
    _console().print(table)


def _run_child(*arguments: str) -> list[dict[str, Any]]:
    from .activation import settings

    command = [sys.executable, "-m", "mlx_patches.probes.child", *arguments]
    env = settings.without_us()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, env=env
        )
        rows: list[dict[str, Any]] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise MlxPatchesError(f"the probe did not end within {PROBE_SECONDS} s") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise MlxPatchesError(f"the probe's process died: {last}") from None
    return rows


def _print_audit(report: Any, code: int, show_all: bool) -> None:
    console = _console()
    installed = ", ".join(map(str, report.distributions)) or "no MLX package"
    console.print(Text(f"Installed: {installed}"))
    active = f"in processes of {report.host}" if report.host else "yes" if report.active else "no"
    console.print(Text(f"Active in this environment: {active}"))
    for broken in report.broken_sets:
        console.print(Text(f"Cannot work: {broken.reason}: {broken.remedy}", style="red"))
    for warned in report.warnings:
        console.print(Text(f"No patch repairs: {warned.effect}: {warned.remedy}", style="yellow"))
    if report.model is not None:
        _print_model(console, report.model)
    shown = [o for o in report.outcomes if show_all or o.finding or _worth_a_row(o)]
    if shown:
        table = _table("patch", "target", "status", "reason")
        for outcome in shown:
            status, origin = _styled(str(outcome.status)), report.origins.get(outcome.patch)
            name = f"{outcome.patch} ({origin})" if origin else outcome.patch
            table.add_row(name, outcome.target, status, outcome.reason)
        console.print(table)
    hidden = len(report.outcomes) - len(shown)
    if hidden:
        console.print(Text(f"{hidden} more targets need nothing (--all shows them)", style="dim"))
    if report.model is None and report.models:
        table = _table("affected model", "distribution", "patches")
        for model, rows in report.models.items():
            for distribution, ids in rows.items():
                table.add_row(model, distribution, ", ".join(ids))
        console.print(table)
    if report.host_report is not None:
        style = "bold red" if report.host_report.finding else "bold green"
        console.print(Text(report.host_report.advice, style=style))
    console.print(Text(_verdict(report, code), style="bold red" if code else "bold green"))


def _verdict(report: Any, code: int) -> str:
    if not code:
        return "Nothing to do"
    count = len(report.findings)
    said = f"{count} finding{'' if count == 1 else 's'}" if count else "Switched off by choice"
    if not report.active and any(o.status == "disabled" and o.finding for o in report.outcomes):
        said += "; to activate: mlx-patches enable, or mlx_patches.apply() in your program"
    return said


def _print_model(console: Console, model: Any) -> None:
    row = "its own row" if model.known else "the row default"
    rows = "; ".join(f"{name}: {', '.join(ids) or 'nothing'}" for name, ids in model.rows.items())
    console.print(Text(f"Model type {model.model_type}, {row}: {rows or 'not installed'}"))
    if model.folder:
        for file, ids in model.folder.eos.items():
            console.print(Text(f"Stop tokens in {file}: {', '.join(map(str, ids))}"))
        if model.folder.problem:
            console.print(Text(model.folder.problem, style="red"))


def _worth_a_row(outcome: Any) -> bool:
    from .core.outcome import NOT_NEEDED

    return outcome.status not in NOT_NEEDED


def _console() -> Console:
    # Piped output is for programs and logs: one line a row, whatever its length.
    return Console() if sys.stdout.isatty() else Console(width=400, no_color=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, "red"))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; a broken input is one line on stderr and exit code 2."""
    try:
        cli.main(args=arguments, standalone_mode=True)
    except MlxPatchesError as error:
        click.echo(f"mlx-patches: {error}", err=True)
        sys.exit(2)
    sys.exit(0)
