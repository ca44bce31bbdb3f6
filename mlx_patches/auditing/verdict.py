"""Verdicts on models in the installed releases, from the lab's evidence.

The audit, ``recommend``, ``needs`` and the report page use only this module and
``evidence.words`` for a model's verdict, so that they cannot contradict each other.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ..activation.session import session
from ..core.record import fields
from ..evidence import outside, store, words
from ..evidence.words import FEATURE, NOT_MEASURED, RIGHT, SEVERITIES, WRONG_TEXT
from .modules import modules_of, package_of_models

_modules_of = cache(modules_of)


class PatchState(NamedTuple):
    """The patches' state in this environment.

    Args:
        active: whether processes of this environment apply patches.
        missing: the patches that an installed release needs and that are not in effect.
        partly: the missing patches that are in effect in some modules, and the models' modules
            that lack them.
        accepts_some: the user accepts the defects of some patches, and no others are in effect.
    """

    active: bool
    missing: frozenset[str] = frozenset()
    partly: Mapping[str, Collection[str]] = MappingProxyType({})
    accepts_some: bool = False

    def repairs(self, needs: Collection[str]) -> bool:
        """Whether a defect may be repaired or accepted, if none of its ``needs`` is missing."""
        return self.active and (bool(needs) or not self.accepts_some)

    def lacks(self, patch: str, model: "ModelVerdict") -> bool:
        """Whether a patch is missing in code that a model runs."""
        if patch not in self.partly:
            return patch in self.missing
        run = _modules_of(package_of_models(model.distribution), model.family)
        return not run.isdisjoint(self.partly[patch])


class CellVerdict(NamedTuple):
    """One scenario of a model.

    Args:
        pair: the cell's letters in the evidence: without the patches and, if measured, with them.
        severity: the severity of the cell if it is red.
        needs: the patches that turn it green, or keep it green beside the family's other patches;
            None if these were not traced.
    """

    name: str
    pair: str
    severity: str
    needs: tuple[str, ...] | None

    @property
    def words(self) -> str:
        return words.scenario(self.name).words

    @property
    def wrong(self) -> bool:
        """Whether it is red as released."""
        return self.pair[0] == "r"

    @property
    def wrong_with_patches(self) -> bool:
        """Whether it is red even with the patches, or was not measured with them."""
        return words.is_red(self.pair)

    def as_dict(self) -> dict[str, Any]:
        return {
            **fields(self, "name", "words"),
            "severity": self.severity if self.wrong or self.wrong_with_patches else None,
            **fields(self, "wrong", "wrong_with_patches", "needs"),
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one family, in the release set with its installed code.

    Args:
        evidence: that set's evidence from the lab; None if there is none.
        note: how the installed releases differ from the measured ones, or why the family was not
            measured.
        metal: the modules in which the family has Metal-only code.
        solo: the patches without which even a single request gets wrong output. Scenarios cannot
            show that, because each compares a batch with single requests.
        held: the model type's single-request results, compared with another implementation; None
            if they were not compared.
        prefill: whether its decode equals its own prefill; None if that was not measured.
        images: the results of a batch with images in the release's engine; empty if not measured.
        pictures: single requests with images, compared with another implementation; None if the
            family has none, or if they were not measured.
    """

    evidence: Mapping[str, Any] | None = None
    note: str = ""
    metal: tuple[str, ...] = ()
    solo: tuple[str, ...] = ()
    held: outside.Held | None = None
    prefill: outside.HeldCell | None = None
    images: tuple[outside.HeldCell, ...] = ()
    pictures: outside.Pictures | None = None

    @property
    def compares_single(self) -> bool:
        """Whether a single request of this family was compared with anything."""
        held = self.held is not None and self.held.comparable
        shown = self.pictures is not None and bool(self.pictures.kinds)
        return bool(self.solo or self.prefill) or held or shown


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """The verdict on one model in one package.

    Args:
        result: the family's result in the evidence; empty if there is no evidence.
        measured: what it is based on.
        cells: the scenarios that apply to the family.
        inapplicable: the number of scenarios that do not apply.
        patches: the patches that repair it: the traced ones, or those that its entry names.
        traced: whether every repair was traced to its patches.
        note: the note of ``measured``, or why the family has no result.
        defects: its configs that are not equal; for a folder, those that match its own config.
        own: whether the defects are of a folder.
        shown: the stages of single requests with images, for the folder's own config.
    """

    family: str
    distribution: str
    version: str
    result: str
    measured: Measured = Measured()
    cells: tuple[CellVerdict, ...] = ()
    inapplicable: int = 0
    patches: tuple[str, ...] = ()
    traced: bool = True
    note: str = ""
    defects: tuple[outside.HeldCell, ...] = ()
    own: bool = False
    shown: tuple[outside.HeldCell, ...] = ()

    @property
    def verdict(self) -> str:
        """``right``, ``wrong``, ``repaired``, ``cannot batch`` or ``not measured``."""
        return words.verdict_of(self.result)

    @property
    def release(self) -> str:
        return f"{self.distribution} {self.version}"

    @property
    def wrong(self) -> tuple[CellVerdict, ...]:
        """The scenarios that are wrong as released, the worst first."""
        return self._sort(cell for cell in self.cells if cell.wrong)

    @property
    def wrong_with_patches(self) -> tuple[CellVerdict, ...]:
        """The scenarios that are wrong even with the patches, or were not measured with them."""
        return self._sort(cell for cell in self.cells if cell.wrong_with_patches)

    def wrong_here(self, here: PatchState) -> tuple[CellVerdict, ...]:
        return self._sort(cell for cell in self.cells if self._is_open(cell, here))

    def wrong_solo(self, here: PatchState) -> bool:
        """Whether a single request gets wrong output in this environment, whatever the config."""
        return any(here.lacks(id_, self) for id_ in self.measured.solo)

    def is_wrong_solo(self, here: PatchState) -> bool:
        """Whether a single request is wrong here, with a config that the model has."""
        return self.wrong_solo(here) or bool(self.fails_solo(here) or self.fails_on_images(here))

    def _open(
        self, cells: Iterable[outside.HeldCell], here: PatchState
    ) -> tuple[outside.HeldCell, ...]:
        return tuple(
            one for one in cells if one.is_open(here.repairs(one.needs), self._missing(one, here))
        )

    def _missing(self, cell: outside.HeldCell, here: PatchState) -> list[str]:
        return [id_ for id_ in cell.needs if here.lacks(id_, self)]

    def results(self, cells: Iterable[outside.HeldCell], here: PatchState) -> list[str]:
        """The letters of these cells in this environment; empty if not measured so."""
        return [one.result(here.repairs(one.needs), self._missing(one, here)) for one in cells]

    def fails_solo(self, here: PatchState) -> tuple[outside.HeldCell, ...]:
        """The wrong configs that the model has; without its folder, the published ones.

        Includes its own prefill, if that differs.
        """
        cells = (*self.defects, *([self.measured.prefill] if self.measured.prefill else []))
        return tuple(one for one in self._open(cells, here) if self.own or one.is_usual)

    def fails_with_images(self, here: PatchState) -> tuple[outside.HeldCell, ...]:
        """The scenarios of a batch with images that are wrong in this environment."""
        # A repair that was not traced may need any patch of the model.
        images = self.measured.images
        cells = [one if one.needs else one._replace(needs=self.patches) for one in images]
        return self._open(cells, here)

    def fails_on_images(self, here: PatchState) -> tuple[outside.HeldCell, ...]:
        """The stages in which a single request with images is wrong in this environment."""
        found = zip(self.shown, self.results(self.shown, here), strict=True)
        return tuple(one for one, letter in found if letter == "r")

    def fails_beside(self, here: PatchState) -> tuple[outside.HeldCell, ...]:
        """The single requests and the batches with images that are wrong in this environment."""
        return (*self.fails_solo(here), *self.fails_with_images(here), *self.fails_on_images(here))

    def list_unmeasured(
        self, cells: Sequence[outside.HeldCell], here: PatchState
    ) -> tuple[outside.HeldCell, ...]:
        """The cells that did not run in this state, often because an earlier one was wrong."""
        found = zip(cells, self.results(cells, here), strict=True)
        return tuple(one for one, letter in found if not letter)

    def may_fail_on_images(self, here: PatchState) -> bool:
        """Whether a stage is wrong as released, and the patches in effect may not repair it."""
        return any(one.pair[0] == "r" for one in self.list_unmeasured(self.shown, here))

    def exit_code(self, here: PatchState, fail_on: Collection[str] = words.FAIL_ON) -> int:
        """0 if right or repaired here, 1 if wrong here, 2 if not measured."""
        if WRONG_TEXT in fail_on and self.wrong_solo(here):
            return 1
        if any(one.severity in fail_on for one in self.fails_beside(here)):
            return 1
        if self.verdict == NOT_MEASURED:
            return 2
        if self.result == words.CANNOT_BATCH:  # also if a patch refuses the batch
            wrong = FEATURE in fail_on
        else:
            wrong = any(cell.severity in fail_on for cell in self.wrong_here(here))
        return 1 if wrong else 2 if self.may_fail_on_images(here) else 0

    def as_dict(self, here: PatchState, cells: bool = True) -> dict[str, Any]:
        """The JSON form; ``cells``: include every scenario."""
        held, prefill, images = self.measured.held, self.measured.prefill, self.measured.images
        wrong_solo = self.is_wrong_solo(here)
        solo = held and {
            "held_against": held.outside,
            "configs": len(held.cells),
            "wrong": [one.name for one in self.defects if one.pair[0] == "r"],
            "wrong_here": [one.name for one in self._open(self.defects, here)],
            "not_measured_here": [one.name for one in self.list_unmeasured(held.cells, here)],
        }
        # The second names are the former keys, for one more release.
        return {
            **fields(self, "family", "distribution", "version", "verdict"),
            "repaired_here": self.result == words.REPAIRED and not self.wrong_here(here),
            "scenarios": _count(self.cells),
            "wrong": _count(self.wrong),
            "wrong_with_patches": _count(self.wrong_with_patches),
            "wrong_here": _count(self.wrong_here(here)),
            **dict.fromkeys(("wrong_solo", "wrong_alone"), wrong_solo),
            **dict.fromkeys(("solo", "alone"), solo),
            "own_prefill": prefill
            and {"wrong": prefill.pair[0] == "r", "wrong_with_patches": words.is_red(prefill.pair)},
            "images": {
                "wrong": [one.name for one in images if one.pair[0] == "r"],
                "wrong_with_patches": [one.name for one in images if words.is_red(one.pair)],
                "wrong_here": [one.name for one in self.fails_with_images(here)],
            }
            if images
            else None,
            "images_solo": self._describe_images(here),
            "not_applicable": self.inapplicable,
            **fields(self, "patches", "traced", "note"),
            "metal_branches": list(self.measured.metal),
            "exit_code": self.exit_code(here),
            **({"cells": [cell.as_dict() for cell in self.cells]} if cells else {}),
        }

    def _describe_images(self, here: PatchState) -> dict[str, Any] | None:
        pictures = self.measured.pictures
        return pictures and {
            "held_against": pictures.outside,
            "not_compared": pictures.why or None,
            "stages": [one.name for one in self.shown],
            "wrong": [one.name for one in self.shown if one.pair[0] == "r"],
            "wrong_with_patches": [one.name for one in self.shown if one.is_red_with_patches],
            "wrong_here": [one.name for one in self.fails_on_images(here)],
            "not_measured_here": [one.name for one in self.list_unmeasured(self.shown, here)],
        }

    def _is_open(self, cell: CellVerdict, here: PatchState) -> bool:
        if cell.wrong_with_patches:
            return True
        if not cell.wrong:
            return here.active and any(here.lacks(id_, self) for id_ in cell.needs or ())
        needs = self.patches if cell.needs is None else cell.needs
        if not needs:
            return not here.repairs(needs)
        return any(here.lacks(id_, self) for id_ in needs)

    def _sort(self, cells: Any) -> tuple[CellVerdict, ...]:
        return tuple(sorted(cells, key=lambda cell: SEVERITIES.index(cell.severity)))


def judge(
    measured: Measured,
    distribution: str,
    version: str,
    family: str,
    possible: Callable[[], Sequence[str]] = tuple,
    config: dict[str, Any] | None = None,
) -> ModelVerdict:
    """The verdict on one family.

    Args:
        possible: returns the patches that the family may need, if a repair was not traced.
        config: the model's own config.
    """
    evidence, note = measured.evidence, measured.note
    pairs = store.pairs_of(evidence, family) if evidence else {}
    defects = measured.held.defects(config) if measured.held else ()
    own = config is not None
    solo_cells = [one for one in (*defects, measured.prefill) if one and (own or one.is_usual)]
    shown = measured.pictures.cells(config) if measured.pictures else ()
    beside = (*solo_cells, *measured.images, *shown)
    solo_ids = [*measured.solo, *(id_ for one in beside for id_ in one.needs)]
    make = partial(ModelVerdict, family, distribution, version, defects=defects, own=own)
    make = partial(make, shown=shown)
    if evidence is None or not pairs:
        if evidence is not None:
            note = evidence.get("note") or "the lab's evidence does not have this family"
        ids = worst_first(dict.fromkeys((*solo_ids, *possible())))
        return make("", measured, patches=(*ids,), traced=False, note=note)
    result = words.family_result(pairs)
    named = [evidence.get(part, {}).get(family, {}) for part in ("companions", "needs")]
    needs = {**named[0], **named[1]}
    details = [evidence.get(f"details_{one}", {}).get(family, {}) for one in ("without", "with")]
    detail = {**details[1], **details[0]}
    cells = tuple(
        CellVerdict(
            name,
            pair,
            words.severity_of(name, detail.get(name, "")),
            tuple(needs[name]) if name in needs else None,
        )
        for name, pair in pairs.items()
        if pair[0] in "gr" or words.is_red(pair)
    )
    repairable = [cell for cell in cells if cell.wrong and cell.pair != "rr"]
    untraced = {cell.severity for cell in repairable if cell.needs is None}
    traced = [cell.needs or () for cell in cells if cell.pair != "rr"]
    patches = [*solo_ids, *(id_ for ids in traced for id_ in ids)]
    if untraced == {FEATURE}:
        patches += [id_ for id_ in possible() if patch_severity(id_) == FEATURE]
    elif untraced or words.verdict_of(result) == NOT_MEASURED:
        patches += possible()
    if result == words.NOT_BUILT:
        why = detail.get("build", "")
        note = f"the lab could not build it{f': {why}' if why else ''}"
    elif result == words.INSENSITIVE:
        note = "the lab's tiny model is not sensitive enough"
    return make(
        result,
        measured,
        cells,
        len({words.place_of(name)[0] for name, pair in pairs.items() if pair[0] == "n"}),
        patches=tuple(worst_first(dict.fromkeys(patches))),
        traced=not untraced,
        note=note,
    )


def scenarios_of(cells: Iterable[CellVerdict]) -> list[str]:
    """The words for the scenarios of these cells, each once.

    Devices and dtypes are named only if none of the cells is from a CPU in float32.
    """
    places: dict[str, list[str]] = {}
    for cell in cells:
        name, _, place = cell.name.partition("@")
        places.setdefault(name, []).append(place)
    return [
        words.scenario(name if "" in found else f"{name}@{', '.join(sorted(found))}").words
        for name, found in places.items()
    ]


def _count(cells: Iterable[CellVerdict]) -> int:
    """The number of scenarios of these cells; one may have cells on several devices."""
    return len({words.place_of(cell.name)[0] for cell in cells})


def headline(one: ModelVerdict, here: PatchState, name: str = "") -> str:
    """The verdict in a sentence; ``name`` is the user's name for the model."""
    return in_a_batch(one, here, name) + with_images(one, here) + describe_single(one, here)


def with_images(one: ModelVerdict, here: PatchState) -> str:
    """The part of a verdict on a batch with images: wrong here, repaired, or empty if right."""
    open_ = [cell for cell in one.fails_with_images(here) if not _is_solo(cell)]
    if not open_:
        released = any(cell.pair[0] == "r" for cell in one.measured.images if not _is_solo(cell))
        return "; images in a batch are repaired too" if released else ""
    chunked = " in chunked prefill"
    still = [cell for cell in open_ if words.is_red(cell.pair)]
    only = all(cell.name == outside.CHUNKED for cell in open_)
    text = f"; a batch with images{chunked if only else ''} {_verb(open_)}"
    if not still:
        return f"{text}, which the patches repair"
    part = chunked if len(still) < len(open_) and still[0].name == outside.CHUNKED else ""
    why = outside.IMAGES_WHY.get(one.family)
    return f"{text},{part} even with the patches{f': {why}' if why else ''}"


def describe_single(one: ModelVerdict, here: PatchState) -> str:
    """The end of a verdict: the defects of single requests, and their configs."""
    open_ = one.fails_solo(here)
    long = list(filter(_is_solo, one.fails_with_images(here)))
    crashes = [cell for cell in open_ if cell.crash]
    differs = [cell for cell in open_ if not cell.crash and cell is not one.measured.prefill]
    texts = [
        f"differs from {one.measured.held.outside} ({outside.list_configs(differs)})"
        if one.measured.held and differs
        else "",
        "decodes differently from its own prefill"
        if one.measured.prefill in open_ and one.measured.prefill not in crashes
        else "",
        f"crashes ({outside.list_configs(crashes)})" if crashes else "",
        f"{_verb(long)} for images in chunked prefill" if long else "",
        of_images(one, here),
    ]
    return f"; a single request {' and '.join(filter(None, texts))}" if any(texts) else ""


# The media of the stages without images.
_MEDIA = {"audio": "sounds", "video": "videos"}


def of_images(one: ModelVerdict, here: PatchState) -> str:
    """What a single request with images gets here; empty if it is right."""
    open_ = one.fails_on_images(here)
    if not open_:
        unmeasured = one.may_fail_on_images(here)
        return "with images was not measured with the patches" if unmeasured else ""
    media = {_MEDIA.get(cell.name, "images") for cell in open_}
    shown = "images" if "images" in media else " and ".join(sorted(media))
    text = f"gives wrong answers to {shown}"
    if any(cell.name in (outside.LOAD, outside.SAVED) and cell.crash for cell in open_):
        text = "does not load"
    elif all(cell.crash for cell in open_):
        text = f"crashes on {shown}"
    if any(cell.is_red_with_patches for cell in open_):
        return f"{text}, even with the patches"
    if any(cell.pair == "r" for cell in open_):
        return f"{text}, not measured with the patches"
    return f"{text}, which the patches repair"


def _is_solo(cell: outside.HeldCell) -> bool:
    """Whether a cell with images is about a single request."""
    return cell.name == outside.IMAGES_SOLO


def in_a_batch(one: ModelVerdict, here: PatchState, name: str) -> str:
    name, open_ = name or one.family, one.wrong_here(here)
    count, wrong = _count(one.cells), _count(open_)
    where = f"here ({one.release})"
    if one.wrong_solo(here):
        text = f"{name} gives wrong text {where}, even for a single request"
        if not wrong:
            return text
        repaired = with_patches(_count(one.wrong_with_patches))
        return f"{text}; {wrong} of {count} batch scenarios {be(wrong)} wrong{repaired}"
    if one.verdict == NOT_MEASURED:
        return f"{name} was not measured in {one.release}: {one.note}"
    if one.result == words.CANNOT_BATCH:
        spared = f"{one.inapplicable} of {count + one.inapplicable} scenarios"
        return f"{name} cannot be batched by {one.release}: {spared} do not apply"
    if one.verdict == RIGHT and one.measured.solo:
        wrongs = "as released it gives wrong text, even for a single request"
        return f"{name} is repaired {where}: {wrongs}"
    if one.verdict == RIGHT:  # the open defects are of severity feature
        lacks = ", ".join(scenarios_of(open_))
        but = f", except {lacks}" if lacks else ""
        return f"{name} is right in a batch {where}: {count - wrong} of {count} scenarios{but}"
    if not open_:
        red = _count(one.wrong)
        wrongs = f"{red} of {count} scenarios {be(red)} wrong"
        return f"{name} is repaired {where}: {wrongs} as released"
    still = _count(one.wrong_with_patches)
    text = f"{name} {_verb(open_)} in a batch {where}"
    if one.result == words.RED and here.active and len(open_) == len(one.wrong_with_patches):
        return f"{text}, even with the patches in effect: {still} of {count} scenarios"
    return f"{text}: {wrong} of {count} scenarios{with_patches(still)}"


def with_patches(still: int) -> str:
    """The end of a sentence that counts defects as released."""
    return f", {still} even with the patches" if still else ", all repaired by the patches"


def be(count: int) -> str:
    return "is" if count == 1 else "are"


def _verb(cells: Iterable[CellVerdict | outside.HeldCell]) -> str:
    """The effect of the worst of these red cells on a user."""
    worst = min((cell.severity for cell in cells), key=SEVERITIES.index)
    verbs = {WRONG_TEXT: "gives wrong text", words.CRASH: "crashes", FEATURE: "lacks a feature"}
    return verbs.get(worst, f"has a {worst} defect")


def patch_severity(patch_id: str) -> str:
    """The severity of a patch's defect; the worst if it is not one of our words."""
    registry = session().registry
    named = registry.find_declared(patch_id).severity if patch_id in registry else WRONG_TEXT
    return named if named in SEVERITIES else WRONG_TEXT


def worst_first(ids: Iterable[str]) -> list[str]:
    """Patches sorted by severity, the worst first; the sort is stable."""
    return sorted(ids, key=lambda id_: SEVERITIES.index(patch_severity(id_)))
