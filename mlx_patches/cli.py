"""The command ``mlx-patches``."""

import errno
import json
import os
import shutil
import sys
from io import TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import click

from . import __version__
from .activation.settings import SAFE
from .core.errors import MlxPatchesError
from .core.files import printable, quote
from .core.packages import MODEL_PACKAGES
from .evidence.words import DTYPES, METAL_EMULATED, NOT_RUN, VARIANTS
from .options import (
    Command,
    Context,
    check_seconds,
    complete,
    complete_scenario,
    count_option,
    hosts_option,
    is_set,
    json_option,
    models_argument,
    models_option,
    option,
    print_note,
    profile_option,
    read_severities,
    refuse_options,
    to_path,
)

Rows = list[dict[str, Any]]
# Long enough for a cold import of a release on a slow machine.
PROBE_SECONDS = 120
_MODEL = "A model type, a model's folder or its config.json; repeatable."
# The scenarios that a probe of a model family runs.
PROBED = ("left-padded", "chunked-batch", "extend", "filter", "state", "engine")
# Errors of a standard output that is closed or full.
_NO_OUTPUT = {errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="mlx-patches")
def cli() -> None:
    """Runtime patches that make batched inference on MLX correct, and an audit that finds defects.

    Exit codes: 0 right, or repaired here; 1 wrong and not repaired; 2 unknown: the code was not
    measured, nothing could run, or the usage or an input is invalid.
    """


cli.command_class, cli.context_class = Command, Context


@cli.command()
@models_argument
@models_option(_MODEL)
@hosts_option("Report on this host server")
@option(
    "--measure",
    is_flag=True,
    help="Shrink the folder's config and run it (up to 30 s, without running code in the folder).",
)
@option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "sarif"]),
    default="text",
    help="Output format; docs/audit-json.md documents json.",
)
@option("--json", "as_json", is_flag=True, help="Same as --format json.")
@option(
    "--fail-on",
    metavar="SEVERITY,...",
    shell_complete=complete("severities"),
    type=read_severities,
    default="wrong-text,crash,security",
    show_default="wrong-text, crash, security",
    help="Severities that exit with 1: wrong-text, crash, memory, security, feature, or any.",
)
@option("--strict", is_flag=True, help="Count patches that you switched off as findings.")
@option(
    "--ignore",
    multiple=True,
    metavar="PATCH",
    shell_complete=complete("patches"),
    help="Accept the defect of this patch; repeatable.",
)
@option("--all", "show_all", is_flag=True, help="Like -v, including targets that need no patch.")
@option(
    "--html", type=to_path, metavar="FILE", help="Also write the report page to FILE; - for stdout."
)
def audit(
    more: tuple[str, ...],
    models: tuple[str, ...],
    hosts: tuple[str, ...],
    measure: bool,
    form: str,
    as_json: bool,
    fail_on: frozenset[str],
    strict: bool,
    ignore: tuple[str, ...],
    show_all: bool,
    html: Path | None,
) -> None:
    """Report whether the installed models are right in a batch, and how to repair them."""
    from .auditing import formats, screen

    if as_json and form != "text":
        refuse_options("--json is --format json", "form")
    if is_set("quiet"):
        refuse_options("-q prints only the verdict", "show_all")
    if str(html) == "-":
        refuse_options("--html - prints only the page", "as_json" + " form" * (form != "text"))
    if strict:
        refuse_options("--strict counts what --ignore accepts", "ignore")
    form = "json" if as_json else form
    reports = [
        one.ignoring(ignore)
        for one in _audits((*more, *models), hosts, measure, form == "json" or html is not None)
    ]
    codes = [one.exit_code(strict, fail_on) for one in reports]
    code = 1 if 1 in codes else max(codes)
    if html is not None:
        from .evidence.store import load
        from .report import content, page, save

        if len(reports) > 1:
            raise click.UsageError("--html writes the page of one audit: give one model or host")
        texts = {
            "verdict": screen.verdict(reports[0]),
            "optional": screen.describe_optional(reports[0]),
        }
        shown = {**reports[0].as_dict(), **texts, "exit_code": code}
        if str(html) == "-":
            click.echo(page(content(load(), shown)), nl=False)
            sys.exit(code)
        save(html, load(), shown)
    if form == "json":
        click.echo(formats.as_json(reports, codes, is_set("verbose")))
    elif form == "markdown":
        click.echo("\n\n".join(map(formats.markdown, reports, codes)))
    elif form == "sarif":
        click.echo(formats.sarif(reports, codes))
    elif is_set("quiet"):
        click.echo("\n".join(map(screen.brief, reports)))
    else:
        for number, (one, own) in enumerate(zip(reports, codes, strict=True)):
            click.echo("\n" * bool(number), nl=False)
            _print_audit(one, own, show_all)
    if html is not None:
        click.echo(f"{quote(html)}: wrote the report page", err=True)
    sys.exit(code)


def _audits(
    models: tuple[str, ...], hosts: tuple[str, ...], measure: bool = False, table: bool = False
) -> list[Any]:
    """One audit for each of the models and hosts; ``table``: with the table of affected models."""
    from .auditing.audit import audit as make_audit

    if measure and not models:
        raise click.UsageError("--measure needs a model's folder or its config.json")
    return [
        make_audit(model, host, table, _measure_folder(model) if measure and model else None)
        for model in models or (None,)
        for host in hosts or (None,)
    ]


def _measure_folder(model: str) -> dict[str, dict[str, Any]]:
    from .auditing.models import folder_of
    from .lab import report
    from .lab.folder import SECONDS, evidence_of

    folder = folder_of(model)
    if folder is None:
        raise click.UsageError(
            f"--measure needs a model's folder or its config.json, not {quote(model)!r}"
        )
    count = 2 * len(folder.implementations())
    with report.progress(count, f"together up to {SECONDS:.0f} s", SECONDS) as advance:
        return evidence_of(folder.path, advance)


@cli.command()
@models_option(_MODEL)
@hosts_option("Report on this host server")
def report(models: tuple[str, ...], hosts: tuple[str, ...]) -> None:
    """Print a bug report: this environment and its audit, in Markdown under 8 kB."""
    from .auditing import formats

    click.echo("\n\n".join(map(formats.bug_report, _audits(models, hosts))))


@cli.command()
@click.argument("patch", type=quote, shell_complete=complete("patches"))
def explain(patch: str) -> None:
    """Print why a patch exists, how it works, its upstream status and when it retires."""
    from .auditing.explanation import explain

    for line in explain(patch, is_set("quiet"), is_set("verbose")):
        click.echo(line)


@cli.command("list")
@option(
    "--profile",
    "only",  # unlike the other commands' profile, it has no default in a config file
    metavar="NAME",
    shell_complete=complete("profiles"),
    help="Only patches of this profile: batch, server, security or safe.",
)
@json_option
def list_patches(only: str | None, as_json: bool) -> None:
    """List every patch with its status here, its profiles and, if third-party, its package."""
    from .activation import contributions, profiles
    from .activation.session import session
    from .auditing.listing import list_patches

    current = session()
    if only is not None:
        profiles.choose(only)
    rows = list_patches(only)
    if as_json:
        click.echo(json.dumps({"schema": 1, "patches": [one.as_dict() for one in rows]}, indent=2))
        return
    if is_set("quiet"):
        click.echo("\n".join(one.patch for one in rows))
        return
    from .auditing.tables import show

    table = [
        (one.patch, one.status, ", ".join(one.profiles) or "optional", one.summary, one.origin)
        for one in rows
    ]
    show((("patch", "here", "profiles", "without it", "from"), table))
    if is_set("verbose"):
        targets = [(o.target, o.status, o.reason) for one in rows for o in one.outcomes]
        show((("target", "here", "reason"), targets))
    for name in contributions.find_blocked(current.disabled):
        click.echo(f"skipped by MLX_PATCHES_DISABLE: the patches of {name}")


@cli.command()
@click.argument(
    "name", type=quote, metavar="PATCH|MODEL", shell_complete=complete("patches models")
)
@json_option
def probe(name: str, as_json: bool) -> None:
    """Run a reproducer in two processes: without the patches, and with them.

    For a model family, runs the lab's scenarios that are typical of servers. The exit code is that
    of the patched run.
    """
    from .auditing.preflight import session_of_readable
    from .lab import report

    registry = session_of_readable().registry
    name = registry.today(name)
    if name not in registry:
        rows = _probe_family(name)
    else:
        with report.progress(2, f"each up to {PROBE_SECONDS} s") as advance:
            without = _run_child("--patch", name)
            advance(f"{name}, without the patches")
            with_ = _run_child("--patch", name, "--patched")
            advance(f"{name}, with the patches")
        rows = _pairs(name, without, with_)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        from .auditing.tables import show

        keys = ("target", "without", "with", "detail_without", "detail_with")
        heads = ("target", "without", "with", "seen without", "seen with")
        show((heads, [[row[key] for key in keys] for row in rows]))
    for row in rows:
        for part in ("without", "with"):
            if row[part] == NOT_RUN:
                raise MlxPatchesError(f"{name} did not run: {row[f'detail_{part}']}")
    if all(row["without"] == row["with"] == "n/a" for row in rows):
        raise MlxPatchesError(f"{name}: nothing could be run in this environment")
    sys.exit(1 if any(row["with"] == "red" for row in rows) else 0)


def _probe_family(name: str) -> Rows:
    """Run the lab's scenarios for an installed model family; returns rows as a probe does."""
    from .activation.session import session
    from .lab import report, runner

    try:
        tasks = runner.tasks((name,), PROBED)
    except MlxPatchesError as error:
        hint = session().registry.hint(name)
        raise MlxPatchesError(f"no patch or model {name!r}{hint}; {error}") from None
    with report.progress(len(tasks), f"each up to {runner.SECONDS:.0f} s") as advance:
        seen = runner.run(tasks, report=advance)
    parts: dict[bool, Rows] = {False: [], True: []}
    for r in seen:
        row = {"target": f"{r.family} {r.scenario}", "verdict": r.verdict, "detail": r.detail}
        parts[r.patched].append(row)
    return _pairs(name, *parts.values())


def _pairs(name: str, without: Rows, with_: Rows) -> Rows:
    after = {row["target"]: row for row in with_}
    nothing = {"verdict": "n/a", "detail": "did not run"}
    return [
        {
            "patch": name,
            "target": row["target"],
            "without": row["verdict"],
            "with": after.get(row["target"], nothing)["verdict"],
            "detail_without": row["detail"],
            "detail_with": after.get(row["target"], nothing)["detail"],
        }
        for row in without
    ]


@cli.command()
@models_option("Only this family, or those of this distribution; repeatable.")
@option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_scenario,
    help="Only this scenario, or only walks (random programs); repeatable.",
)
@option(
    "--walks",
    metavar="S",
    type=float,
    callback=check_seconds,
    help="Also run walks, S seconds per family.",
)
@count_option("--seed", 0, "Seed of the first walk.")
@option("--replay", metavar="LINE", help="Replay only the walk that printed this line.")
@count_option("--jobs", 1, "Families to run at a time.")
@option("--patched", "mode", flag_value="patched", help="Only with the patches.")
@option("--unpatched", "mode", flag_value="unpatched", help="Only without the patches.")
@option("--both", "mode", flag_value="both", help="Without and with the patches (default).")
@option("--every-patch", is_flag=True, help="Apply every patch, not only the model's.")
@option("--out", type=to_path, metavar="FILE", help="Add the rows to FILE; skip what it has.")
@option(
    "--evidence",
    type=to_path,
    metavar="FILE",
    help="Write the results as an evidence file for the repository; applies every patch.",
)
@json_option
@option(
    "--timeout",
    default=120.0,
    show_default=True,
    metavar="S",
    callback=check_seconds,
    help="Time limit of each process or walk.",
)
@option("--config", type=to_path, metavar="FOLDER", help="Shrink and run the model in this folder.")
@option(
    "--weights", type=to_path, metavar="FOLDER", help="Run the model in this folder at full size."
)
@option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Dtype of the tiny models' weights.  [default: float32]",
)
@option(
    "--variant",
    type=click.Choice(VARIANTS),
    hidden=True,  # for tools/measure_variants.py
    help="Another rope type, or other layers, in the tiny models' configs.",
)
@option(
    "--device",
    type=click.Choice([METAL_EMULATED]),
    help="Emulate Metal-only code and its kernels on a CPU; needs g++.",
)
@option(
    "--reference",
    is_flag=True,
    help="Compare the families with transformers instead; needs the extra reference.",
)
@option(
    "--server",
    metavar="COMMAND",
    help="Send concurrent requests to a server instead; {model} and {port} are replaced.",
)
@option("--url", help="Like --server, for a running server with the model of --write-model.")
@option(
    "--write-model",
    type=to_path,
    metavar="FOLDER",
    help="Write the model of --server, whose answers are known, and exit.",
)
def lab(**given: Any) -> None:
    """Measure the batch invariance of the installed model families with tiny random models.

    Each family runs in separate processes. The exit code is that of the patched run.
    """
    from .auditing.preflight import session_of_readable
    from .lab import record, report, runner
    from .lab.reference import check as check_reference
    from .lab.walks import runner as walking

    options = SimpleNamespace(**given)
    mode, out, evidence = options.mode or "both", options.out, options.evidence
    walked: list[walking.Walked] = []

    def show_walk(one: walking.Walked) -> None:
        """Print a family's red walks at once, since a long run may be interrupted."""
        walked.append(one)
        for line in () if options.as_json else one.lines():
            click.echo(line)

    if any(given[name] is not None for name in ("server", "url", "write_model")):
        from .lab.server import command

        own = "models config weights dtype variant device reference every_patch"
        refuse_options("a server has its own model", own)
        command.run(options, mode)
    session_of_readable()
    walks = options.walks
    if walking.WALKS in options.scenarios:
        walks = walks or walking.SECONDS
    if walks or options.replay is not None:
        own = "config weights dtype variant device evidence"
        refuse_options("walks run the lab's own tiny models", own)
    if options.replay is not None:
        refuse_options("--replay runs only the given walk", "models scenarios walks out")
        for one in walking.replay(options.replay, mode, options.every_patch, options.timeout):
            show_walk(one)
        _show_lab([one.row() for one in walked], walked, options.as_json)
    if options.weights:
        refuse_options(
            "--weights runs a model at full size, in its own dtype", "config dtype variant"
        )
    if options.variant:
        refuse_options("--variant changes the lab's own configs", "config")
    if options.reference:
        own = "config weights dtype variant device evidence"
        refuse_options("--reference has its own configs, in float32", own)
        check_reference()
    if evidence:
        every = "--evidence needs every scenario of the tiny models, without and with the patches"
        refuse_options(every, "scenarios config weights variant" + " mode" * (mode == "patched"))
    every_patch = options.every_patch or evidence is not None
    named = tuple(name for name in options.scenarios if name != walking.WALKS)
    names = ("config", "weights", "dtype", "variant", "reference", "device")
    places = {name: given[name] for name in names if given[name]}
    tasks = runner.tasks(options.models, named, mode, every_patch=every_patch, **places)
    if evidence:
        record.check_tasks(tasks, evidence)
    fixed = tasks if named or not options.scenarios else []
    ways = runner.tasks(options.models, (), mode, every_patch=every_patch) if walks else []
    jobs, timeout = options.jobs, options.timeout
    with report.progress(len(fixed) + len(ways), f"each up to {timeout:g} s") as advance:
        rows = runner.run(fixed, jobs, timeout, out, advance)
        if walks:
            seed = options.seed
            rows += walking.run(ways, walks, seed, jobs, timeout, out, advance, show_walk)
    if (folder := options.config or options.weights) and (why := runner.why_unbuilt(folder, rows)):
        raise MlxPatchesError(why)
    if evidence:
        record.save(evidence, record.evidence(rows))
        count = len({row.family for row in rows})
        click.echo(f"{evidence}: wrote evidence of {count} families", err=True)
    _show_lab(rows, walked, options.as_json, options.reference)


def _show_lab(
    rows: list[Any], walked: list[Any], as_json: bool, reference: bool = False
) -> NoReturn:
    from .lab import report, runner

    if as_json:
        click.echo(json.dumps(report.as_dict(rows, walked), indent=2))
    else:
        from .auditing.tables import show

        every = [(row.family, row.scenario, row.verdict, row.detail) for row in rows]
        if is_set("verbose") and not reference:
            show((("family", "scenario", "result", "detail"), every))
        show(*(report.show_reference if reference else report.show_rows)(rows))
    runner.check_ran(rows)
    sys.exit(runner.exit_code(rows))


@cli.command()
@models_argument
@models_option(_MODEL)
@hosts_option("Only releases that this installed host allows")
@json_option
def recommend(
    more: tuple[str, ...], models: tuple[str, ...], hosts: tuple[str, ...], as_json: bool
) -> None:
    """List the measured releases in which a model is right, without or with the patches."""
    if not (models := (*more, *models)):
        raise click.UsageError("recommend needs a model: mlx-patches recommend MODEL")
    from .auditing.explanation import fill

    found = [
        (host, one) for model in models for host in hosts or ("",) for one in _releases(model, host)
    ]
    if as_json:
        click.echo(json.dumps([one.as_dict() for _, one in found], indent=2))
        return

    def print_fact(head: str, text: str) -> None:
        click.echo(fill(f"  {head:<24}{text}", 26))

    for host, one in found:
        newest = one.best_repaired or f"none{f' that {host} allows' if host else ''}"
        newest += " with the patches" if one.best_repaired != one.best_green else ""
        if is_set("quiet"):
            click.echo(newest)
            continue
        click.echo(fill(f"{one.family} in {one.distribution}, from the lab's evidence"))
        for word, names in one.by_word.items():
            if names:
                print_fact(word, ", ".join(map(_version, names)))
        for name, wrong in one.wrong_solo.items():
            print_fact("wrong single requests", f"{_version(name)}: {', '.join(wrong)}")
        for name, why in one.with_images.items():
            print_fact("wrong with images", f"{_version(name)}: {why}")
        print_fact("newest to use", newest)


def _version(name: str) -> str:
    return name.partition(" ")[2]


def _releases(model: str, host: str) -> list[Any]:
    """The evidence on a model's families, within a host's limits."""
    from .auditing.models import folder_of, hint
    from .auditing.recommend import list_families, recommend
    from .core.model_types import implementations

    if folder := folder_of(model):
        if folder.own_code:
            why = f"this folder runs its own code ({folder.own_code}); audit it with --measure"
            raise MlxPatchesError(f"{folder.path}: not measured: {why}")
        model = folder.model_type
    families = implementations(model) or dict.fromkeys(MODEL_PACKAGES.values(), model)
    if found := recommend(families, host or None):
        return list(found)
    known = list_families()
    if not {*known}.isdisjoint(families.values()):
        raise MlxPatchesError(
            f"{quote(model)} was measured in no release; run mlx-patches lab --config FOLDER"
        )
    close = hint(model, known)
    raise MlxPatchesError(f"the lab has no evidence for model {quote(model)!r}{close}")


@cli.command()
@hosts_option("Only in processes of this installed host")
@profile_option
def enable(hosts: tuple[str, ...], profile: str | None) -> None:
    """Activate the patches in every process of this environment, or only in those of some hosts.

    For one process, MLX_PATCHES=0 turns the patches off and MLX_PATCHES=1 turns them on.
    """
    from .activation import enable as enabling
    from .activation import started

    limit = enabling.limit_to(*hosts) if hosts else None
    before = started.host or ("every process" if started.profile is not None else "")
    path = enabling.enable(limit, profile or SAFE)
    now = limit.name if limit else "every process"
    whose = f" for {', '.join(limit.scripts)}" if limit else ""
    print_note(f"enabled{whose}{f' (before: {before})' if before not in ('', now) else ''}: {path}")
    print_note("Restart running servers to pick up the patches.")


@cli.command()
def disable() -> None:
    """Undo enable."""
    from .activation import enable as enabling

    removed = enabling.disable()
    print_note(f"disabled: removed {removed}" if removed else "not enabled here")


@cli.command(context_settings={"allow_interspersed_args": False})
@profile_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], profile: str | None) -> None:
    """Start a host with the patches: mlx-patches run -- vllm-mlx serve MODEL.

    Works without mlx-patches enable. Worker processes get the patches too.
    """
    from .activation import run as running

    running.execute(running.launch(command, profile or ""), is_set("quiet"))


@cli.command()
@json_option
def ps(as_json: bool) -> None:
    """List your patched processes."""
    from .activation.processes import processes

    found = processes()
    if as_json:
        click.echo(json.dumps([one._asdict() for one in found], indent=2))
        return
    if not found:
        print_note("no patched processes")
        return
    if is_set("quiet"):
        click.echo("\n".join(str(one.pid) for one in found))
        return
    from .auditing.tables import show

    rows = []
    for one in found:
        failures = "; ".join(f"{id_} {text}" for id_, text in one.failures.items()) or "none"
        releases = ", ".join(one.releases)
        count = ", ".join(one.patches) if is_set("verbose") else str(len(one.patches))
        rows.append((str(one.pid), one.host, releases, count, failures))
    show((("pid", "host", "patched", "patches", "failures"), rows))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell's completion script for commands, options and their values.

    In ~/.bashrc: eval "$(mlx-patches completion bash)".
    """
    from .auditing.completion import script

    click.echo(script(shell, cli))


def _run_child(*arguments: str) -> Rows:
    from .activation.children import module_command
    from .lab import children

    done = children.run(module_command("mlx_patches.probes.child", *arguments), PROBE_SECONDS)
    if done.code is None:
        raise MlxPatchesError(f"the probe timed out after {PROBE_SECONDS} s")
    try:
        rows: Rows = json.loads(done.out)
    except ValueError:
        last = (done.errors.strip().splitlines() or [f"exit code {done.code}"])[-1]
        raise MlxPatchesError(f"the probe's process failed: {last}") from None
    return rows


def _print_audit(report: Any, code: int, show_all: bool) -> None:
    from .auditing import screen
    from .auditing.colour import in_colour

    verbose = is_set("verbose") or show_all
    width = max(shutil.get_terminal_size((screen.WIDTH, 0)).columns, 20)
    count = len(screen.top(report, width)[0])
    lines = screen.lines(report, None if verbose else screen.HEIGHT, width)
    bad = code or screen.effects(report)
    for number, line in enumerate(lines):
        if number < count and in_colour():
            line = click.style(line, fg="red" if bad else "green", bold=True)
        click.echo(line)
    if verbose:
        from .auditing.tables import show

        show(*screen.details(report, show_all))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; broken input prints one line on stderr and exits with code 2."""
    if sys.stdout is None:  # the parent closed it: only the exit code counts
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, TextIOWrapper):  # for characters that its encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NO_OUTPUT:
            raise
        code = _without_output(error)
    sys.exit(code)


def _run(arguments: list[str] | None) -> int | str | None:
    try:
        code = cli.main(args=arguments, standalone_mode=False)
    except SystemExit as end:
        # If the reader of a pipe has gone, click exits with 1, which would mean a finding.
        gone = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")
        return 141 if gone else end.code
    except (KeyboardInterrupt, click.Abort):
        click.echo("mlx-patches: interrupted", err=True)
        return 130
    except click.ClickException as error:
        text, context = error.format_message(), getattr(error, "ctx", None)
        if "\n" in text and not isinstance(error, click.BadParameter):
            error.show()  # the help, if no command was given
        else:
            see = f" (see {context.command_path} --help)" if context else ""
            click.echo(
                f"mlx-patches: {printable(' '.join(text.split())).rstrip('.')}{see}", err=True
            )
        return error.exit_code
    except MlxPatchesError as error:
        click.echo(f"mlx-patches: {printable(error)}", err=True)
        return 2
    except OSError as error:
        if error.filename is None and error.errno in _NO_OUTPUT:
            raise
        if error.errno in (errno.EMFILE, errno.ENFILE):
            text = f"{error.strerror}: raise the limit (ulimit -n)"
        elif error.filename is None:
            text = f"the system refused a call: {error.strerror}"
        else:
            text = f"{error.filename}: cannot be used ({error.strerror}); give another path"
        click.echo(f"mlx-patches: {printable(text)}", err=True)
        return 2
    return code if isinstance(code, int) else 0


def _without_output(error: OSError) -> int:
    """The exit code if standard output cannot be written: 141, as of SIGPIPE, or 2."""
    # Discard what is left in the buffer, so that Python prints no error when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.errno == errno.EPIPE:
        return 141
    try:
        click.echo(f"mlx-patches: cannot write to standard output ({error.strerror})", err=True)
    except OSError:  # standard error cannot be written either
        os.dup2(1, 2)
    return 2
