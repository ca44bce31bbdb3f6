"""Single-request results of model types, compared with an independent implementation.

Also the measurements of ``tools/measure_solo.py``: ``own_prefill``, a family's single-request
decode compared with its own prefill; ``with_images``, whole models with images in a batch. And
those of ``tools/measure_images.py``: ``pictures``, single requests with images.

There is one file per measured release set: ``tools/measure_reference.py`` writes it from the rows
of ``lab --reference``. A cell is one config of a model type, with the letters of ``words``.
A broken file raises ``MlxPatchesError``.
"""

import functools
import json
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..core import distributions
from ..core.errors import MlxPatchesError
from ..core.model_files import WINDOWS, is_number, show
from . import store, words

# The small config, and the suffix of a config with the rope settings of transformers 4.
PLAIN, OLD = "plain", " old"
THETA, WINDOW = "theta", "window"
_ROPE = "rope type "
# The scenario that compares a model's decode with its own prefill, not with another implementation.
PREFILL = "own-prefill"
# The scenarios of whole models with images in the release's engine, and by family why no patch
# repairs those that stay wrong.
FEATURES, CHUNKED = "features", "features-chunked"
# The scenario of single requests with images in chunked prefill.
IMAGES_SOLO = "features-solo"
IMAGES_WHY = {"youtu_vl": "MLX 0.32.0 computes a wrong sum of the image sizes"}
# Stages of single requests with images: a published folder, and one that transformers 5 saved.
LOAD, SAVED = "load", "saved"


Found = dict[str, Any]
T = TypeVar("T")


class HeldCell(NamedTuple):
    """One config of a model type, or one scenario of a family.

    Args:
        name: the config's name in the lab, see ``lab/reference.py``, or the scenario's.
        pair: its letters, without the patches and with them.
        crash: a model with this config does not load or run.
        needs: the patches that turn it green.
    """

    name: str
    pair: str
    crash: bool = False
    needs: tuple[str, ...] = ()

    @property
    def is_usual(self) -> bool:
        """Whether folders of published models have this config."""
        return self.name in (PLAIN + OLD, PREFILL)

    @property
    def severity(self) -> str:
        return words.CRASH if self.crash else words.WRONG_TEXT

    @property
    def words(self) -> str:
        """A description of the config, in contrast to others."""
        base = self.name.removesuffix(OLD)
        if base == PREFILL:
            return "chunked prefill" if self.crash else "its own prefill"
        if base == PLAIN:
            return "current config format" if base == self.name else "published config"
        if base == WINDOW:
            return "prompts beyond the sliding window"
        if base == THETA:
            return "another rope theta"
        name, is_field, value = base.partition("=")
        return f"{name} {value}" if is_field else _ROPE + name.split()[0]

    @property
    def is_red_with_patches(self) -> bool:
        return self.pair.endswith("r", 1)

    def result(self, active: bool, missing: Collection[str]) -> str:
        """Its letter if the patches are ``active``, except the ``missing`` ones.

        Empty if it was not measured so: a cell does not run if an earlier one is red.
        """
        patched = active and not any(id_ in missing for id_ in self.needs)
        return (self.pair[1:] if patched else self.pair[0]).replace("n", "")

    def is_open(self, active: bool, missing: Collection[str]) -> bool:
        """Whether it is red in this state; also if it was measured only without the patches."""
        return self.pair == "r" or self.result(active, missing) == "r"

    def is_of(self, config: Mapping[str, Any], old: bool) -> bool:
        """Whether a folder's config matches this one; ``old``: it has the old spelling."""
        base = self.name.removesuffix(OLD)
        if base in (PLAIN, THETA):
            return (self.name != base) == old
        if base == WINDOW:
            return config.get("use_sliding_window") is not False and any(map(config.get, WINDOWS))
        name, is_field, value = base.partition("=")
        if not is_field:
            return (self.name != base) == old and _rope_type(config) == base.split()[0]
        wanted = json.loads(value)
        has = config.get(name)
        if isinstance(wanted, bool):
            return has is wanted
        if has is None:
            return False
        if not is_number(has):
            raise MlxPatchesError(f"config.json: {name} is {show(has)}, not a number; correct it")
        # A factor was halved, so the right one is twice as large.
        return bool(has != 2 * wanted)


class Held(NamedTuple):
    """A model type's cells; ``outside`` is the other implementation and its version."""

    outside: str
    cells: tuple[HeldCell, ...]

    @property
    def comparable(self) -> bool:
        """Whether the plain config is equal; if not, the lab's config itself may be at fault."""
        plain = [one for one in self.cells if one.name.removesuffix(OLD) == PLAIN]
        return any(one.pair[-1] == "g" for one in plain)

    @property
    def result(self) -> str:
        if not self.comparable:
            return words.NOT_APPLICABLE
        pairs = [one.pair for one in self.defects()]
        if any(map(words.is_red, pairs)):
            return words.RED
        return words.REPAIRED if pairs else words.GREEN

    @property
    def sentence(self) -> str:
        """A sentence: how many configs are equal, and which are not, as released and repaired."""
        if not self.comparable:
            return f"Single requests could not be compared with {self.outside}."
        left = [one for one in self.cells if words.is_red(one.pair)]
        # Two spellings of a config share its words.
        named = {one.words for one in left}
        repaired = [one for one in self.defects() if one.words not in named]
        released = [one.result(False, ()) for one in self.cells]
        parts = [
            f"As released, single requests match {self.outside} in"
            f" {released.count('g')} of {len(self.cells)} configs",
            f"with the patches also for {list_configs(repaired)}" if repaired else "",
            f"not for {list_configs(left)}" if left else "",
            f"{released.count('')} not measured" if "" in released else "",
        ]
        return f"{'; '.join(filter(None, parts))}."

    def defects(self, config: dict[str, Any] | None = None) -> tuple[HeldCell, ...]:
        """The configs whose released logits differ, or those that match this model's ``config``."""
        if not self.comparable:
            return ()
        red = [one for one in self.cells if "r" in one.pair]
        if config is None:
            return tuple(red)
        fields = ChainMap(config.get("text_config") or {}, config)
        spelled = any(one.name.endswith(OLD) for one in self.cells)
        old = spelled and not fields.get("rope_parameters")
        return tuple(one for one in red if one.is_of(fields, old))


class Picture(NamedTuple):
    """A kind of model with images: the fields of a config that choose it, and its stages.

    ``mark``: the field, or the field and its value, that only configs have that transformers 5
    saved; empty if there is none. A field may have a path.
    """

    name: str
    when: Mapping[str, Any]
    mark: str
    cells: tuple[HeldCell, ...]


class Pictures(NamedTuple):
    """A family's single requests with images, stage by stage, compared with ``outside``.

    ``why``: the reason if it was not compared.
    """

    outside: str
    kinds: tuple[Picture, ...] = ()
    why: str = ""

    def kind(self, config: Mapping[str, Any] | None = None) -> Picture | None:
        """The kind of a folder's config; without a folder, the family's plain kind."""
        fits = [
            one
            for one in self.kinds
            if all(value in _find_values(config, path) for path, value in one.when.items())
        ]
        return max(fits, key=lambda one: len(one.when), default=None)

    def cells(self, config: Mapping[str, Any] | None = None) -> tuple[HeldCell, ...]:
        """The stages that count for a folder's config; without a folder, for published ones."""
        found = self.kind(config)
        if found is None:
            return ()
        path, _, value = found.mark.partition("=")
        here = _find_values(config, path) if path else ()
        saved = any(value in ("", one) for one in here if one)
        return tuple(one for one in found.cells if saved or one.name != SAVED)


def find_compared(release: str, *names: str) -> Held | None:
    """The cells of the first of these model types that was measured in a release, or None."""
    types = read_compared(release)
    return next((types[name] for name in names if name in types), None)


@functools.cache
def read_compared(release: str) -> Mapping[str, Held]:
    """Each model type that was compared in a measured release, such as ``mlx-lm 0.32.2``."""

    def convert(found: Found) -> dict[str, Held]:
        return {kind: Held(found["outside"], _cells(found, kind)) for kind in found["without"]}

    return _read("reference", release, convert)


def folder(name: str) -> Path:
    return store.folder().parent / name


def _read(name: str, release: str, convert: Callable[[Found], Mapping[str, T]]) -> Mapping[str, T]:
    """What a release's file in a folder of measurements has; empty if there is no file."""
    file = folder(name) / f"{release.replace(' ', '-')}.json"
    if not file.exists():
        return {}
    with store.reading(file):
        return convert(json.loads(file.read_bytes()))


def own_prefill(release: str, family: str) -> HeldCell | None:
    """Whether a single request's decode equals the family's prefill; None if not measured."""
    return _read_cells(release, PREFILL).get(family)


def with_images(release: str, family: str) -> tuple[HeldCell, ...]:
    """A whole model's results with images: a batch, and single chunked prefill."""
    cells = (_read_cells(release, name).get(family) for name in (FEATURES, CHUNKED, IMAGES_SOLO))
    return tuple(one for one in cells if one)


def beside(
    release: str, family: str, model_type: str = ""
) -> tuple[Held | None, HeldCell | None, tuple[HeldCell, ...]]:
    """The measurements of a family besides the lab's scenarios: the three subjects above."""
    return (
        find_compared(release, model_type, family),
        own_prefill(release, family),
        with_images(release, family),
    )


def pictures(release: str, family: str) -> Pictures | None:
    """A family's single requests with images, with the installed transformers if measured."""
    return _read_pictures(release).get(family)


@functools.cache
def _read_pictures(release: str) -> Mapping[str, Pictures]:
    installed = f"{release} {distributions.find('transformers')}"
    return {**read_images(release), **read_images(installed)}


@functools.cache
def read_images(name: str) -> Mapping[str, Pictures]:
    """Each family whose images a release's file has."""

    def convert(found: Found) -> dict[str, Pictures]:
        kinds: dict[str, list[Picture]] = {family: [] for family in found["not_compared"]}
        for name, one in found["kinds"].items():
            picture = Picture(name, one["when"], one["mark"], _cells(found, name))
            kinds.setdefault(one["family"], []).append(picture)
        return {
            family: Pictures(found["outside"], (*own,), found["not_compared"].get(family, ""))
            for family, own in kinds.items()
        }

    return _read("images", name, convert)


@functools.cache
def _read_cells(release: str, scenario: str) -> Mapping[str, HeldCell]:
    """Family to its cell in a scenario that ``tools/measure_solo.py`` measures."""

    def convert(found: Found) -> dict[str, HeldCell]:
        parts = ("needs", "details_without", "details_with")
        needs, before, after = (found.get(part, {}).get(scenario, {}) for part in parts)
        details = before | after  # a crash that the patches turn into wrong text is worse
        return {
            family: HeldCell(
                scenario,
                pair,
                words.severity_of(scenario, details.get(family, "")) == words.CRASH,
                (*needs.get(family, ()),),
            )
            for family, pair in _pairs(found, scenario).items()
        }

    return _read("solo", release, convert)


def _cells(found: Mapping[str, Any], kind: str) -> tuple[HeldCell, ...]:
    needs, crashes = (found.get(part, {}).get(kind, {}) for part in ("needs", "crash"))
    # A cell that ran only with the patches needs those without which an earlier one is red.
    earlier = dict.fromkeys(id_ for name, ids in needs.items() if name != SAVED for id_ in ids)
    return tuple(
        HeldCell(
            name, pair, name in crashes, (*needs.get(name, earlier if pair[0] == "n" else ()),)
        )
        for name, pair in _pairs(found, kind).items()
    )


def _pairs(found: Mapping[str, Any], key: str) -> dict[str, str]:
    """The letters of a key's cells that are green or red, without the patches and with them."""
    before, after = (found.get(part, {}).get(key, {}) for part in ("without", "with"))
    # Some families are built, and some configs are loaded, only with the patches.
    pairs = {name: before.get(name, "n") + after.get(name, "") for name in {**before, **after}}
    return {name: pair for name, pair in pairs.items() if set(pair) & {"g", "r"}}


def list_configs(cells: Sequence[HeldCell]) -> str:
    """The descriptions of these cells' configs, each once, as a list."""
    found = dict.fromkeys(cell.words for cell in cells)
    ropes = [name.removeprefix(_ROPE) for name in found if name.startswith(_ROPE)]
    others = [name for name in found if not name.startswith(_ROPE)]
    return ", ".join([*([_ROPE + "/".join(ropes)] if ropes else []), *others])


def _find_values(config: Mapping[str, Any] | None, path: str) -> list[Any]:
    """The values of a field in a config and in its text model; ``a.b``: in the part ``a``."""
    *parts, name = path.split(".")
    own = functools.reduce(_part, parts, config or {})
    return [one.get(name) for one in (own, _part(own, "text_config"))]


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _rope_type(config: Mapping[str, Any]) -> str:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    return str(rope.get("rope_type") or rope.get("type") or "") if isinstance(rope, dict) else ""
