"""Which patches this process asks for, and when: the session behind ``mlx_patches.apply``."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Iterable
from types import ModuleType

from ..core.errors import MlxPatchesError
from ..core.manager import Manager
from ..core.outcome import Outcome, Report, Status
from ..core.patch import Patch
from ..core.registry import Registry
from ..matrix.matrix import CompatMatrix, declared_rules
from ..patches import catalogue
from . import contributions, git_hosts, settings
from .import_hook import Watcher, complete

logger = logging.getLogger("mlx_patches")

# The package of models of each distribution.
MODEL_PACKAGES = {"mlx_lm.models": "mlx-lm", "mlx_vlm.models": "mlx-vlm"}
PACKAGES = ("mlx_lm", "mlx_vlm")


class Session:
    """One process's requests. Patches are asked for once; asking again changes nothing."""

    def __init__(self, registry: Registry, matrix: CompatMatrix):
        self.registry = registry
        self.matrix = matrix
        self.disabled = settings.disabled()
        self.strict = settings.strict()
        self.manager = Manager(matrix, strict=self.strict)
        self.by_model = False
        self._contribute()
        self.unknown = self._unknown()
        for problem in self.unknown:
            logger.warning("mlx_patches: %s", problem)
        self.enabled = self._known(settings.enabled())
        self._asked: dict[str, Patch] = {}
        self._rows: set[tuple[str, str]] = set()
        # Taken out by the user: not asked for again by a model's row.
        self._out: set[str] = set()
        self._watcher: Watcher | None = None

    @property
    def active(self) -> bool:
        """True where modules are watched as they get imported."""
        return self._watcher is not None and self._watcher in sys.meta_path

    def _contribute(self) -> None:
        """Add the patches that the matrix has no word on; one that cannot be added is left out."""
        ours = [("", one) for one in git_hosts.contributions(self.manager.installed)]
        for origin, one in [*ours, *contributions.contributions(self.disabled)]:
            note = "; ".join(filter(None, (origin and f"declared by {origin}", one.note)))
            try:
                rules = declared_rules(one.patch.id, one.affected, one.fixed, note)
                self.registry.add(one.patch, origin)
                self.matrix.contribute(one.patch.id, rules, one.patch.optional)
            except Exception as error:
                logger.warning("mlx_patches: a patch of %s is left out: %s", origin, error)

    def _unknown(self) -> tuple[str, ...]:
        """What ``MLX_PATCHES_DISABLE`` names and nobody has, a sentence each."""
        strange = self.disabled - {*self.registry.ids(), settings.ALL}
        return tuple(
            f"{settings.DISABLE} names {name!r}, which is no patch and no distribution that"
            f" contributes one{self.registry.hint(name)}"
            for name in sorted(strange)
            if not contributions.is_known(name)
        )

    def _known(self, ids: Iterable[str]) -> tuple[str, ...]:
        """The ids that there are; another one is a warning, for no host may die of it."""
        known = []
        for id_ in ids:
            try:
                known.append(self.registry.get(id_).id)
            except MlxPatchesError as error:
                logger.warning("mlx_patches: %s: %s", settings.ENABLE, error)
        return tuple(known)

    def apply(
        self,
        patches: Iterable[str] | None,
        models: Iterable[str] | None,
        strict: bool,
        dry_run: bool,
    ) -> Report:
        """See ``mlx_patches.apply``."""
        ids = None if patches is None else [self.registry.get(name).id for name in patches]
        rows = None if models is None else list(models)
        for model in rows or ():
            if model != "default" and model not in self.matrix.models:
                logger.info("mlx_patches: no row for model %r; the default row holds", model)
        wanted = self._wanted(ids, rows)
        strict = strict or (self.strict and not dry_run)
        with self.manager.lock:
            by_model = ids is None and rows is None
            if not dry_run:
                self._out -= self._out if by_model else {patch.id for patch in wanted}
                self._watch({t.module.partition(".")[0] for p in wanted for t in p.targets})
                self.by_model |= by_model
            outcomes = []
            for patch in wanted:
                outcomes += self._ask(patch, strict, dry_run)
            for row in _models_imported() if by_model else ():
                outcomes += self._activate(row, strict, dry_run)
        return Report(tuple({(o.patch, o.target): o for o in outcomes}.values()))

    def restore(self, patches: Iterable[str] | None) -> Report:
        """See ``mlx_patches.restore``."""
        ids = None if patches is None else [self.registry.get(name).id for name in patches]
        with self.manager.lock:
            if ids is None:
                self.by_model = False
                self._rows.clear()
                self._out.clear()
                if self._watcher is not None:
                    self._watcher.uninstall()
            self._out |= set(ids or ())
            for patch_id in self._asked.copy() if ids is None else ids:
                self._asked.pop(patch_id, None)
            return Report(tuple(self.manager.restore(ids)))

    def status(self) -> Report:
        """See ``mlx_patches.status``."""
        return Report(tuple(self.manager.status()))

    def switched_off(self, patch_id: str) -> bool:
        """True where ``MLX_PATCHES_DISABLE`` names the patch, or all."""
        return bool(self.disabled & {patch_id, settings.ALL})

    def asked(self, patch_id: str) -> bool:
        """True where the patch was asked for in this process."""
        return patch_id in self._asked

    def relevant(self, patch_id: str) -> bool:
        """False for a patch of a host that is not installed."""
        core = set(MODEL_PACKAGES.values())
        if self.registry.distribution(patch_id) not in (None, *core):
            return self.has_code(patch_id)
        patch = self.registry.get(patch_id)
        return any(
            t.distribution in core or self.manager.installed(t.distribution) for t in patch.targets
        )

    def has_code(self, patch_id: str) -> bool:
        """False for one of our patches whose only distribution is not installed."""
        package = self.registry.distribution(patch_id)
        return package is None or self.manager.installed(package) is not None

    def _wanted(self, ids: list[str] | None, models: list[str] | None) -> list[Patch]:
        if ids is None:
            rows = [
                id_
                for model in models or ()
                for distribution in MODEL_PACKAGES.values()
                for id_ in self.matrix.patches_for(model, distribution)
            ]
            always = filter(self.has_code, (*self.matrix.always, *self.enabled))
            ids = [*filter(self.relevant, always), *rows]
        elif models is not None:
            rows = [
                id_
                for model in models
                for distribution in MODEL_PACKAGES.values()
                for id_ in self.matrix.patches_for(model, distribution)
            ]
            ids = [id_ for id_ in ids if id_ in rows or id_ in self.matrix.always]
        order = self.registry.ids()
        return sorted(map(self.registry.get, set(ids)), key=lambda patch: order.index(patch.id))

    def _watch(self, packages: set[str]) -> None:
        wanted = packages | set(PACKAGES)
        if self._watcher is None:
            self._watcher = Watcher(wanted, self._imported, self.strict)
        self._watcher.packages |= wanted
        self._watcher.install()

    def _ask(self, patch: Patch, strict: bool, dry_run: bool) -> list[Outcome]:
        if self.switched_off(patch.id):
            reason = f"switched off by {settings.DISABLE}"
            return [
                Outcome(patch.id, t.distribution, t.path, Status.DISABLED, reason, by_choice=True)
                for t in patch.targets
            ]
        if dry_run:
            return self.manager.apply(patch, dry_run=True)
        self._asked[patch.id] = patch
        return self.manager.apply(patch, strict=strict)

    def _imported(self, module: ModuleType) -> None:
        name = module.__name__
        with self.manager.lock:
            for patch in list(self._asked.values()):
                if any(target.module == name for target in patch.targets):
                    self.manager.apply(patch, strict=self.strict)
            row = model_of(name) if self.by_model else None
            if row is not None and row not in self._rows:
                self._activate(row, self.strict, dry_run=False)

    def _activate(self, row: tuple[str, str], strict: bool, dry_run: bool) -> list[Outcome]:
        """Ask for what a model's row names."""
        if not dry_run:
            self._rows.add(row)
        distribution, model = row
        outcomes = []
        for patch_id in self.matrix.patches_for(model, distribution):
            if patch_id not in self._out:
                outcomes += self._ask(self.registry.get(patch_id), strict, dry_run)
        return outcomes


def _models_imported() -> list[tuple[str, str]]:
    """What ``model_of`` says of the modules that are there, each model once."""
    inside = tuple(f"{package}." for package in MODEL_PACKAGES)
    names = [
        name
        for name, module in list(sys.modules.items())
        if name.startswith(inside) and isinstance(module, ModuleType) and complete(module)
    ]
    return list(dict.fromkeys(row for row in map(model_of, names) if row is not None))


def model_of(module: str) -> tuple[str, str] | None:
    """(distribution, model) that a module belongs to; None for what is no model.

    A flat module is a model where it defines ``Model`` or ``LanguageModel``; everything in a
    package of its own under ``models`` belongs to that model.
    """
    package, _, rest = module.partition(".models.")
    distribution = MODEL_PACKAGES.get(f"{package}.models")
    if distribution is None or not rest:
        return None
    model, _, inner = rest.partition(".")
    loaded = sys.modules.get(module)
    in_package = bool(inner) or hasattr(loaded, "__path__")
    if not (in_package or hasattr(loaded, "Model") or hasattr(loaded, "LanguageModel")):
        return None
    return distribution, model


_session: Session | None = None
_making = threading.Lock()


def session() -> Session:
    """The process's session, made on first use."""
    global _session
    with _making:
        if _session is None:
            _session = Session(catalogue.builtin(), CompatMatrix.builtin())
        return _session


def _before_fork() -> None:
    if _session is not None:
        _session.manager.before_fork()


def _after_fork(in_child: bool) -> None:
    global _making
    if in_child:
        _making = threading.Lock()  # a thread that does not run here may hold it
    if _session is not None:
        _session.manager.after_fork(in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=functools.partial(_after_fork, in_child=False),
        after_in_child=functools.partial(_after_fork, in_child=True),
    )
