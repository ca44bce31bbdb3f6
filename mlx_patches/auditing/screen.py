"""The output of ``mlx-patches audit``: at most 20 lines of 80 columns, the verdict first."""

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..activation.session import LEFT_OUT, session
from ..core.files import shell_word
from ..core.model_files import CONSENT
from ..core.outcome import NOT_NEEDED, Status
from ..evidence import words
from ..evidence.outside import HeldCell
from ..evidence.words import DEVICES, DTYPES, SEVERITIES
from .audit import Audit, find_fixed
from .installed_code import find_gone, instead
from .listing import ignore_if
from .verdict import (
    CellVerdict,
    ModelVerdict,
    PatchState,
    be,
    headline,
    scenarios_of,
    with_patches,
    worst_first,
)

WIDTH, HEIGHT = 80, 20
# The indentation of a wrapped fact's further lines.
_INDENT = "    "
# Below this width a sentence is below its patch, not next to it.
NARROW = 60
# Media besides images, by their stages' names, and how fields of a config begin that only models
# with them have.
_MEDIA = (("audio", "audio_config"), ("video", "video_token"))
# A line of text, or a table of heads and rows.
Part = str | tuple[Sequence[str], Sequence[Sequence[str]]]


def verdict(report: Audit) -> str:
    """The verdict in one sentence; for a model, one sentence per package."""
    if report.unaudited:
        return f"Nothing could be audited: {report.unaudited[0]}"
    if report.model is not None:
        name = report.model.model_type
        texts = [headline(one, report.here(), name) for one in worst(report)]
        if set(report.open) & set(report.model.own_patches):
            ids = report.model.unused_stops
            which = f"stop token {ids[0]} is" if len(ids) == 1 else f"{len(ids)} stop tokens are"
            texts.insert(0, f"{name} may not stop generating here: {which} ignored")
        return "\n".join(texts) or f"no installed package implements {name}"
    if report.host_report is not None and (report.host_report.broken or report.host_report.unmet):
        return report.host_report.advice
    whose = f"{report.host_report.installed}: " if report.host_report else ""
    if report.broken_sets:
        return f"{whose}{report.broken_sets[0].reason}"
    open_, needed = len(report.open), len(report.needed)
    if open_:
        switched = "" if any(o.finding for o in report.outcomes) else ", by choice"
        known = f"{open_} of {needed}" if open_ < needed else str(open_)
        known += f" known defect{'' if needed == 1 else 's'}"
        return f"{whose}{known} of the installed releases {be(open_)} not repaired here{switched}"
    if report.findings:
        return f"{whose}{report.findings[0]}"
    only = f", only in {report.host} processes" if report.host else ""
    state = "the installed releases have no known defect"
    if needed:
        known = "the one known defect is" if needed == 1 else f"all {needed} known defects are"
        state = f"{known} repaired here{only}"
    if report.exit_code() == 2:
        return f"{whose}{state[0].upper()}{state[1:]}, but some of the code was not measured"
    return f"{whose}Nothing to do: {state}"


def brief(report: Audit) -> str:
    """The verdict; with a model, also the problems besides it that decide the exit code."""
    if report.model is None or report.unaudited:
        return verdict(report)
    unmet = report.host_report.advice if report.host_report and report.host_report.unmet else ""
    return "\n".join(filter(None, (verdict(report), *report.problems, *report.unknown, unmet)))


def lines(report: Audit, height: int | None = HEIGHT, width: int = WIDTH) -> list[str]:
    """The lines of the screen, at most ``height`` unless that is None."""
    head, facts = top(report, width)
    # Lines to be copied are not wrapped here: the terminal wraps them.
    bottom = commands(report)
    if not report.unaudited:
        texts = [*describe_places(report).splitlines(), *single_requests(report)]
        bottom += _wrap(texts, width, "  ")
    active = "enabled" if report.active else "not enabled"
    active = f"enabled for {report.host}" if report.host else active
    bottom.append(f"Environment: {report.environment} ({active})")
    room, dropped = None, 0
    if height is not None:
        left = height - rows(head, width) - rows(bottom, width) - 3  # two empty ones, and "More"
        least = 2 if report.open else 0  # a patch and its symptom
        while facts and rows(facts, width) > max(left - least, 1):
            while facts.pop().startswith(_INDENT):  # drop a fact with all its lines, never a part
                pass
            dropped += 1
        room = left - rows(facts, width)
    shown, hidden = _repairs(report, room, width)
    more = {"fact/facts": dropped} | hidden
    found = ((number, kind.split("/")) for kind, number in more.items() if number)
    counts = ", ".join(f"{number} {kind[number > 1]}" for number, kind in found)
    shown += _wrap([f"  More (-v): {counts}"] * bool(counts), width, _INDENT)
    return [*head, *facts, *shown, "", *bottom]


def top(report: Audit, width: int = WIDTH) -> tuple[list[str], list[str]]:
    """The lines of the verdict, and the lines of the other facts."""
    head = _wrap(verdict(report).splitlines(), width)
    problem = report.model.folder.problem if report.model and report.model.folder else ""
    # It contains a path, so it is not wrapped.
    return head, [
        *([f"  {problem}"] if problem else []),
        *_wrap([f"  {text}" for text in facts(report) if text != problem], width, _INDENT),
    ]


def rows(lines: Sequence[str], width: int = WIDTH) -> int:
    return sum(max(1, -(-len(line) // width)) for line in lines)


def worst(report: Audit) -> list[ModelVerdict]:
    here, order = report.here(), {1: 0, 2: 1, 0: 2}

    def weight(one: ModelVerdict) -> tuple[int, int, int]:
        open_ = one.wrong_here(here)
        severity = SEVERITIES.index(open_[0].severity) if open_ else len(SEVERITIES)
        return order[one.exit_code(here)], severity, -len(open_)

    return sorted(report.verdicts, key=weight)


def effects(report: Audit) -> dict[str, str]:
    """Patch to effect, for the needed patches that are not in effect.

    Sorted by severity, the worst first. Within one severity, patches of an audited model keep the
    order of its verdicts; without a model, the patches that most families need come first.
    """
    registry = session().registry
    ids = [id_ for id_ in report.open if report.concerns(id_)]
    if report.model is not None:
        named = [id_ for one in worst(report) for id_ in one.patches]
        ids = [id_ for id_ in dict.fromkeys((*named, *report.model.own_patches)) if id_ in ids]
    else:
        wrong = [one for one in report.verdicts if any(cell.wrong for cell in one.cells)]
        families = Counter(id_ for one in wrong for id_ in one.patches)
        ids.sort(key=lambda id_: -families[id_])
    return {id_: registry.find_declared(id_).summary for id_ in worst_first(ids)}


def facts(report: Audit) -> Iterator[str]:
    yield from report.unaudited[1:]
    if report.unaudited:
        return
    if report.host_report is None or not report.host_report.broken:
        yield from (f"cannot work: {one.reason}: {one.remedy}" for one in report.broken_sets)
    yield from (f"not repaired by any patch: {one.effect}: {one.remedy}" for one in report.warnings)
    yield from report.unknown
    if report.host_report is not None:
        yield from report.host_report.requests
    yield from (one.finding for one in report.foreign if one.finding)
    for variable in _switches(report, every=False):
        yield f"switched off by {variable}"
    if profile := _narrow_profile(report):
        yield f"enabled with a profile that omits patches: {profile}"
    if report.accepted and (accepted := [id_ for id_ in effects(report) if id_ in report.accepted]):
        yield f"accepted by --ignore: {', '.join(accepted)}"
    if report.model is not None:
        yield from _model_facts(report)
        return
    for distribution in dict.fromkeys(one.distribution for one in report.verdicts):
        own = [one for one in report.verdicts if one.distribution == distribution]
        counts, release = Counter(one.result for one in own), own[0].release
        still, new = counts[words.RED], counts[""]
        if new == len(own):
            lost = find_gone(session().matrix, release, report.outcomes)
            more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            none = f"; it lacks the code that {', '.join(lost[:3])}{more} repair" if lost else ""
            yield f"{release}: not measured; each patch is judged by the code it changes{none}"
            continue
        here, right = _make_released(own), [one for one in own if one.result == words.GREEN]
        solo = sum(one.wrong_solo(here) or bool(one.fails_beside(here)) for one in right)
        wrong = still + counts[words.REPAIRED] + solo
        families = f"{wrong} of {len(own)} model families"
        unknown = sum(one.verdict == words.NOT_MEASURED for one in own)
        what = "family" if unknown == 1 else "families"
        changed = f"; {unknown} {what} not measured" if unknown else ""
        changed += f" ({new} with different code)" if new else ""
        repaired = with_patches(still) if wrong else ""
        more = f"{repaired}{_images_of(own)}{_solo_of(own)}{changed}"
        yield f"{release}: {families} wrong as released{_effects_of(own, solo)}{more}"
    if text := describe_optional(report):
        yield text


def describe_optional(report: Audit) -> str:
    """How many optional patches apply here, and how to enable them; empty with a model."""
    if report.model is not None or not (count := len(report.refusing)):
        return ""
    patches = _many(count, "optional security patch", "es")
    return f"{patches}, which may reject requests: mlx-patches enable --profile safe,security"


def _images_of(verdicts: Sequence[ModelVerdict]) -> str:
    """How many families are wrong with images in a batch."""
    measured = [one for one in verdicts if one.measured.images]
    wrong = [one for one in measured if any("r" in cell.pair for cell in one.measured.images)]
    still = sum(any(words.is_red(cell.pair) for cell in one.measured.images) for one in wrong)
    text = f"; images in a batch: wrong in {len(wrong)} of {len(measured)}{with_patches(still)}"
    return text if wrong else ""


def _make_released(verdicts: Sequence[ModelVerdict]) -> PatchState:
    return PatchState(False, frozenset(id_ for one in verdicts for id_ in one.patches))


def _solo_of(verdicts: Sequence[ModelVerdict]) -> str:
    """How many of the families whose single requests were compared are wrong in one."""
    measured = [one for one in verdicts if one.measured.compares_single]
    released = _make_released(measured)
    wrong = [one for one in measured if one.is_wrong_solo(released)]
    still = sum(one.is_wrong_solo(PatchState(active=True)) for one in wrong)
    text = f"; single requests: wrong in {len(wrong)} of {len(measured)}{with_patches(still)}"
    return text if wrong else ""


def _effects_of(verdicts: Sequence[ModelVerdict], solo: int) -> str:
    """The number of families with each effect, the worst first, and of those only in the engine or
    in single requests."""
    found = Counter(solo=solo)
    for one in verdicts:
        cells = [cell for cell in one.wrong if cell.severity != words.FEATURE]
        own = [cell for cell in cells if not words.scenario(cell.name).engine]
        if cells and one.result in (words.RED, words.REPAIRED):
            found[own[0].severity if own else "engine"] += 1
    texts = {"wrong-text": "with wrong text", "crash": "with crashes", "memory": "with leaks"}
    texts |= {
        "engine": "only in the release's own engine",
        "solo": "only in single requests or with images",
    }
    parts = [f"{found[name]} {text}" for name, text in texts.items() if found[name]]
    return f" ({', '.join(parts)})" if parts else ""


def _model_facts(report: Audit) -> Iterator[str]:
    here = report.here()
    # Only the scenarios of the worst verdict; the headline of a right one already names them.
    for one in worst(report)[:1]:
        if (open_ := one.wrong_here(here)) and one.verdict != words.RIGHT:
            names = scenarios_of(open_)
            more = f"; +{len(names) - 3} more (-v)" if len(names) > 3 else ""
            yield f"wrong in: {'; '.join(names[:3])}{more}"
    known = [one for one in report.verdicts if one.verdict != words.NOT_MEASURED]
    yield from dict.fromkeys(one.note for one in known if one.note)
    if any(not one.traced for one in known) and effects(report):
        yield "not traced: which of these patches it needs"
    folder = report.model.folder if report.model else None
    if folder and folder.problem:
        yield folder.problem


def _repairs(report: Audit, room: int | None, width: int) -> tuple[list[str], dict[str, int]]:
    """The patches that repair the report's defects, the worst first, and how many others are not
    shown, by kind."""
    if report.unaudited:
        return [], {}
    found = effects(report)
    reasons = {o.patch: o for o in report.outcomes if o.patch in found and o.finding}
    narrow = width < NARROW
    column = 4 if narrow else max(map(len, list(found)[:room]), default=0) + 4
    listed: list[str] = []
    left = len(found)
    for id_, effect in found.items():
        if (one := reasons.get(id_)) and one.status is not Status.DISABLED:
            effect = f"{one.status}: {one.reason if one.status is Status.FAILED else effect}"
        texts = [*[""] * narrow, *textwrap.wrap(effect, width - column)]
        pairs = zip([f"  {id_}", *[""] * len(texts)], texts, strict=False)
        block = [f"{name:<{column}}{text}".rstrip() for name, text in pairs]
        if room is not None and rows([*listed, *block], width) > room:
            break
        listed += block
        left -= 1
    active = 0 if report.model or not report.open else len(report.needed) - len(report.open)
    others = len(set(report.open) - set(found))
    hidden = {
        "patch/patches": left,
        "server or cache patch/server or cache patches": others,
        "patch in effect/patches in effect": active,
    }
    return [""] * bool(listed) + listed, hidden


def commands(report: Audit) -> list[str]:
    """The commands that apply the patches, undo that, and prove a defect."""
    if report.unaudited:
        return []
    commands = []
    fixable = [o.patch for o in report.outcomes if o.finding and o.status == "disabled"]
    here = report.here()
    open_ = [c for one in report.verdicts for c in one.wrong_here(here)] if report.model else []
    own_code = report.model and report.model.folder and report.model.folder.own_code
    held = [cell for one in report.verdicts for cell in one.fails_beside(here)]
    repaired = [not cell.wrong_with_patches for cell in open_]
    repaired += [not words.is_red(cell.pair) for cell in held]
    repairable = not here.active and any(repaired)
    needed = any(map(report.concerns, fixable))
    if not needed and _narrow_profile(report):
        limits = "".join(f" --host {name}" for name in report.host.split(", ") if name)
        commands.append(f"Fix:   mlx-patches enable{limits} --profile safe")
    elif not needed and (variables := _switches(report, every=repairable)):
        commands.append(f"Fix:   unset {' '.join(variables)}")
    elif repairable or needed:
        host = report.host_report
        limit = f" --host {host.installed.name}" if host and not host.limited_to else ""
        commands.append(f"Fix:   mlx-patches enable{limit}   Undo: mlx-patches disable")
    elif report.model is not None and (open_ or held):
        family = next(iter(report.model.families.values()))
        other = "" if own_code else f"; mlx-patches recommend {family}"
        commands.append(f"Fix:   none known here{other}")
    if report.active:
        commands.append("Undo:  mlx-patches disable")
    if not own_code and (stay := _suggest_releases(report)):
        commands.append(f"Next:  install {' and '.join(stay)}, or upgrade mlx-patches")
    proof = _proof(report)
    # The lab runs one scenario in seconds, and all of them, or transformers, in minutes.
    short = "lab" not in proof or ("--scenario" in proof and "--reference" not in proof)
    time = "Proof (<1 min):" if short else "Proof (minutes):"
    lines = [f"{time} {proof}"] if len(time + proof) < WIDTH else [time, f"  {proof}"]
    return [*commands, *(lines if proof else ())]


def _suggest_releases(report: Audit) -> list[str]:
    """The measured releases to use if the installed code was not measured."""
    unknown = {one.distribution for one in report.verdicts if not one.result}
    unknown |= {o.distribution for o in report.outcomes if o.finding and o.status == "drifted"}
    stale = [one for one in report.distributions if one.name in unknown]
    return list(dict.fromkeys(new for one in stale for new in instead(one, report.distributions)))


def _switches(report: Audit, every: bool) -> list[str]:
    """The environment variables that switch off needed patches, or ``every`` patch."""
    before = "switched off by "
    off = (o for o in report.outcomes if o.by_choice and (every or report.concerns(o.patch)))
    return list(dict.fromkeys(o.reason.rpartition(before)[2] for o in off if before in o.reason))


def _narrow_profile(report: Audit) -> str:
    """The profile of this environment, if it omits patches that the report needs."""
    reasons = (o.reason for o in report.outcomes if o.by_choice and report.concerns(o.patch))
    found = (one.removeprefix(LEFT_OUT) for one in reasons if one.startswith(LEFT_OUT))
    return next(found, "")


def _proof(report: Audit) -> str:
    if report.model is None:
        ids = [*effects(report), *worst_first(report.needed)]
        return f"mlx-patches probe {ids[0]}" if ids else ""
    if solo := [id_ for one in worst(report) for id_ in one.measured.solo]:
        return f"mlx-patches probe {solo[0]}"  # the lab compares with a single request
    here = report.here()
    for one in worst(report)[:1]:
        # The lab runs the image scenarios only by name.
        if (images := one.fails_with_images(here)) and not one.wrong_here(here):
            return f"mlx-patches lab --model {one.family} --scenario {images[0].name}"
        if one.fails_on_images(here) and not one.wrong_here(here):
            return f"mlx-patches lab --reference --model {one.family} --scenario reference-images"
        # Of all scenarios, a family may take minutes.
        open_ = one.wrong_here(here) or one.wrong
        cells = [c.name for c in open_ if "@" not in c.name and c.name not in ("build", "process")]
        which = f" --scenario {cells[0]}" if cells else ""
        if report.model.folder is not None:
            path = shell_word(report.model.folder.path)
            if report.model.folder.own_code:
                return f"{CONSENT}=1 mlx-patches lab --weights {path}{which}"
            return f"mlx-patches lab --config {path}{which}"
        return f"mlx-patches lab --model {one.family}{which}"
    return ""


def describe_places(report: Audit) -> str:
    """The devices and dtypes of the evidence; one line per release if they differ."""
    if report.model is None or report.measured:
        return _describe_places(report.verdicts, report.measured, report.model is not None)
    lines = {one.release: _describe_places([one], None, True) for one in worst(report)}
    if len(set(lines.values())) < 2:
        return next(iter(lines.values()), "Not measured.")
    return "\n".join(
        f"{release}: {line[0].lower()}{line[1:]}".replace(": measured on", ": on")
        for release, line in lines.items()
    )


def single_requests(report: Audit) -> list[str]:
    if report.model is None or not report.verdicts:
        return []
    here, found = report.here(), {}
    for one in worst(report):
        held = one.measured.held
        if held and held.comparable:
            count = count_matches(one, held.cells, "config", here)
            found[f"match {held.outside} in {_add_hint(count)}"] = one.release
        elif held:
            found[f"could not be compared with {held.outside}"] = one.release
    if not found:
        return ["Single requests were not compared with another implementation.", *_images(report)]
    several = len(found) > 1
    return [
        f"{release}: single requests {text}." if several else f"Single requests {text}."
        for text, release in found.items()
    ] + _images(report)


def _images(report: Audit) -> list[str]:
    """A line on a model's single requests with images, if it reads images."""
    for one in worst(report):
        pictures = one.measured.pictures
        if pictures and one.shown:
            stages = count_matches(one, one.shown, "stage", report.here())
            folder = report.model.folder if report.model else None
            measured = zip(one.shown, one.results(one.shown, report.here()), strict=True)
            names = {cell.name for cell, letter in measured if letter}
            media = list_other_media(folder.config if folder else {}, names)
            left = f"; {' and '.join(media)} not compared" if media else ""
            return [f"Images match {pictures.outside} in {_add_hint(stages)}{left}."]
        if pictures:
            return ["Images were not compared with transformers (--json has the reason)."]
    return []


def list_other_media(config: Mapping[str, Any], stages: Collection[str] = ()) -> list[str]:
    """The media besides images that a config or a part of it names, without those of stages."""
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    names = [name for part in parts for name, value in part.items() if value is not None]
    named = [media for media, start in _MEDIA if any(name.startswith(start) for name in names)]
    return [media for media in named if media not in stages]


def count_matches(one: ModelVerdict, cells: Sequence[HeldCell], kind: str, here: PatchState) -> str:
    """How many cells match in this environment, and how many were not measured in this state."""
    letters = one.results(cells, here)
    unknown = f"; {letters.count('')} not measured" if "" in letters else ""
    return f"{letters.count('g')} of {_many(len(letters), kind)}{unknown}"


def _add_hint(count: str) -> str:
    """Where the others are listed, unless all match."""
    matches, _, total, *_ = count.split()
    return count if matches == total else f"{count} (others: -v)"


def _list_stages(one: ModelVerdict, here: PatchState) -> str:
    """The stages of images that do not match here; empty if all do."""
    found = {
        "differ": one.fails_on_images(here),
        "were not measured": one.list_unmeasured(one.shown, here),
    }
    return "; ".join(
        f"{', '.join(cell.name for cell in cells)} {what}" for what, cells in found.items() if cells
    )


def _describe_places(
    verdicts: Sequence[ModelVerdict], now: tuple[str, str] | None, one_model: bool
) -> str:
    cells = {words.place_of(cell.name)[1:] for one in verdicts for cell in one.cells}
    places = {now} if now else cells
    dtypes = {
        DEVICES[device]: [dtype for dtype in DTYPES if (device, dtype) in places]
        for device in DEVICES
        if device != words.METAL_EMULATED and any(device == one for one, _ in places)
    }
    on = f"Measured {'now ' if now else ''}on {' and '.join(dtypes)}"
    alike = {tuple(found) for found in dtypes.values()}
    if len(alike) == 1:
        detailed = f"{on} in {' and '.join(alike.pop())}"
    else:
        each = (f"{device} ({', '.join(found)})" for device, found in dtypes.items())
        detailed = f"Measured on {' and '.join(each)}"
    marked = [one for one in verdicts if one.measured.metal]
    emulated = [o for o in marked if any(words.METAL_EMULATED in c.name for c in o.cells)]
    if DEVICES[words.METAL] in dtypes:
        return f"{detailed}."
    if marked:
        was = "was" if len(emulated) == 1 else "were"
        several = "That code was" if one_model else f"{len(emulated)} of them {was}"
        logic = f"\n{several} emulated on a CPU." if emulated else ""
        are = "family has" if len(marked) == 1 else "families have"
        has = "it has" if one_model else f"{len(marked)} {are}"
        return f"{on if dtypes else 'Not measured'}; {has} Metal-only code.{logic}"
    return f"{detailed}; not on Metal." if dtypes else "Not measured."


def _wrap(texts: Sequence[str], width: int, indent: str = "") -> list[str]:
    """The texts as lines of at most ``width`` columns; a longer word is broken."""
    wrap = textwrap.TextWrapper(width, subsequent_indent=indent, break_on_hyphens=False).wrap
    return [line for text in texts for line in wrap(text)]


def _many(count: int, word: str, plural: str = "s") -> str:
    return f"{count} {word}{'' if count == 1 else plural}"


def details(report: Audit, show_all: bool) -> Iterator[Part]:
    """The part for ``audit -v``: a model's scenarios or the families, and the targets."""
    yield f"\nInstalled: {', '.join(map(str, report.distributions)) or 'nothing'}"
    if model := report.model:
        entry = "its own entry" if model.known else "the default entry"
        ids = "; ".join(
            f"{name}: {', '.join(one) or 'nothing'}" for name, one in model.rows.items()
        )
        yield f"Model type {model.model_type}, {entry}: {ids or 'not installed'}"
        for one in report.verdicts:
            if held := one.measured.held:
                yield f"{one.release}: {held.sentence}"
            if stages := _list_stages(one, report.here()):
                yield f"{one.release}, images: {stages}"
            if metal := one.measured.metal:
                yield f"Metal-only code in {one.release}: {', '.join(metal)}"
            heads = (f"scenario, {one.release}", "as released", "with patches", "here", "needs")
            wrong = one.wrong_here(report.here())
            yield heads, [_scenario(cell, cell in wrong) for cell in one.cells]
    shown = [o for o in report.outcomes if show_all or o.finding or o.status not in NOT_NEEDED]
    if shown:
        names = {id_: f"{id_} ({origin})" for id_, origin in report.origins.items()}
        yield (
            ("patch", "target", "status", "fixed in", "reason", "ignore it if"),
            [
                (
                    *(names.get(o.patch, o.patch), o.target, str(o.status), find_fixed(o)),
                    *(o.reason, ignore_if(o.patch) if o.finding else ""),
                )
                for o in shown
            ],
        )
    if hidden := len(report.outcomes) - len(shown):
        yield f"{hidden} more targets need nothing (--all shows them)"
    if report.model is None and report.verdicts:
        yield (
            ("model family", "release", "verdict", "patches"),
            [_family(one) for one in report.verdicts if one.verdict != words.RIGHT],
        )


def _scenario(cell: CellVerdict, wrong_here: bool) -> tuple[str, ...]:
    patched = {"g": "right", "r": "wrong", "n": "not applicable"}
    return (
        cell.words,
        cell.severity if cell.wrong else "right",
        patched.get(cell.pair[1:], "not measured"),
        "wrong" if wrong_here else "right",
        ", ".join(cell.needs or ()) or ("not traced" if cell.needs is None and cell.wrong else ""),
    )


def _family(one: ModelVerdict) -> tuple[str, ...]:
    patches = ", ".join(one.patches) if one.traced else "not traced; see --model"
    return one.family, one.release, one.verdict, patches if one.wrong else one.note
