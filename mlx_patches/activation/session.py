"""The session behind ``mlx_patches.apply``: holds this process's requests and follows its imports.

Our locks are not held while entry points load, hooks run or factories run: each of them may import,
and an import may wait for another thread that needs the lock.
"""

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from types import ModuleType

from .. import __version__
from ..core.errors import MlxPatchesError
from ..core.imports import find_module, is_imported, name_of_main, runs_in_copy
from ..core.manager import Manager, unseen
from ..core.model_types import implementations
from ..core.outcome import Outcome, Report, Status
from ..core.packages import HOST_MODELS, MODEL_PACKAGES, MODELS
from ..core.patch import Patch
from ..core.registry import Registry, did_you_mean
from ..core.site import Layer
from ..matrix.gate import Gate
from ..matrix.matrix import CompatMatrix
from ..patches import catalogue
from . import boot, contributions, git_hosts, presence, profiles, settings, started
from .import_hook import Watcher
from .requests import Request, Requests

logger = logging.getLogger("mlx_patches")


# The start of a reason: the profile of `enable` or `run` omits a patch.
LEFT_OUT = "not in the profile "


class Session:
    """The patches that this process requested. Repeated requests have no effect.

    ``contribute`` adds the patches of other packages.
    """

    def __init__(self, registry: Registry, matrix: CompatMatrix):
        self.registry = registry
        self.matrix = matrix
        self.disabled = frozenset(map(registry.today, settings.read_disabled()))
        # The patches that ``apply(without=...)`` named.
        self.without: frozenset[str] = frozenset()
        self.strict = settings.strict()
        self.gate = Gate(matrix)
        self.installed = self.gate.installed
        self.manager = Manager(self.gate, registry, self.strict, self._show_presence)
        self._presence: presence.Presence | None = None
        self.unknown: tuple[str, ...] = ()
        self._contributed = False
        self._requests = Requests()
        self._watcher: Watcher | None = None
        # The distributions and modules that were logged, and the ids that ``mlx-patches ps`` lists.
        self._logged: set[str] = set()
        self._published: set[str] = set()

    @property
    def active(self) -> bool:
        return self._watcher is not None and self._watcher in sys.meta_path

    @property
    def by_model(self) -> bool:
        """Whether importing a model activates the patches of its entry."""
        return bool(self._requests.by_model())

    @functools.cached_property
    def enabled(self) -> tuple[str, ...]:
        """The optional patches that ``MLX_PATCHES_ENABLE`` names; a typo is only logged."""
        known = []
        for id_ in settings.read_enabled():
            try:
                known.append(self.registry.find_declared(id_).id)
            except MlxPatchesError as error:
                logger.warning("mlx_patches: %s: %s", settings.ENABLE, error)
        return tuple(known)

    def contribute(self) -> None:
        """Add the patches of git-only hosts and of other packages, once; log invalid ones.

        Loads entry points, which may import anything. A call that arrives meanwhile, from this
        thread or another, proceeds without these patches.
        """
        with self.manager.lock:
            if self._contributed:
                return
            self._contributed = True
        known = set(self.registry.ids())
        ours = [(None, one) for one in git_hosts.contributions(self.installed)]
        for declared, one in [*ours, *contributions.contributions(self.disabled)]:
            origin = declared.distribution if declared else ""
            note = "; ".join(filter(None, (origin and f"declared by {origin}", one.note)))
            try:
                from ..matrix.declared import build_rules

                rules = build_rules(one.patch.id, one.affected, one.fixed, note)
                module = one.patch.module or (declared.module if declared else "")
                self.registry.add(one.patch._replace(module=module), origin)
                self.matrix.contribute(one.patch.id, rules, one.patch.optional)
            except BaseException as error:
                if declared:
                    declared.skip(error)
                else:
                    logger.warning("mlx_patches: a patch of mlx_patches was skipped: %s", error)
        self.unknown = self._unknown()
        for problem in self.unknown:
            logger.warning("mlx_patches: %s", problem)
        late = [id_ for id_ in self.matrix.always if id_ not in known]
        for request in self._requests.by_model():  # apply() was called meanwhile
            try:
                for patch in map(self.registry.find_declared, filter(self.relevant, late)):
                    self._add(request, patch, self.strict)
            finally:
                self.manager.rebind()

    def _unknown(self) -> tuple[str, ...]:
        """A sentence for each unknown value in ``MLX_PATCHES`` and ``MLX_PATCHES_DISABLE``."""
        strange = self.disabled - {*self.registry.ids(), settings.ALL}
        if strange:
            from ..core.files import quote  # not at start-up
        names = (
            f"{settings.DISABLE} names {quote(name)!r}, which is neither a patch nor a"
            f" distribution that contributes one{self.registry.hint(name)}"
            for name in sorted(strange)
            if not contributions.is_known(name)
        )
        return tuple(filter(None, (settings.junk(), *names)))

    def apply(
        self,
        patches: Iterable[str] | None = None,
        models: Iterable[str] | None = None,
        strict: bool = False,
        dry_run: bool = False,
        profile: str | None = None,
        without: Iterable[str] = (),
    ) -> Report:
        wanted, by_model = self._find_wanted(patches, models, profile)
        ids = self._ids(without, "without") or []
        if dry_run:
            named = self._entries_of(_models_imported()) if by_model else ()
            left = [patch for patch in (*wanted, *named) if patch.id not in ids]
            return _report(one for patch in left for one in self._preview(patch))
        if ids:
            self.without |= {*ids}
            self.restore(ids)
        request = Request(by_model)
        report = self._activate(request, wanted, strict or self.strict)
        with self.manager.lock:
            self._requests.keep(request)
        return report

    def restore(self, patches: Iterable[str] | None = None) -> Report:
        ids = self._ids(patches)
        if ids is None:
            self.without = frozenset()
            boot.stop()
        with self.manager.lock:
            if ids is not None:
                self._requests.take_out(ids)
            else:
                self._requests = Requests()
                self._unwatch()
        report = Report(tuple(self.manager.restore(ids, self._is_requested)))
        self._log_once()
        return report

    def patched(
        self,
        patches: Iterable[str] | None = None,
        models: Iterable[str] | None = None,
        profile: str | None = None,
    ) -> "Block":
        return Block(self, *self._find_wanted(patches, models, profile))

    def status(self, held_elsewhere: bool = False) -> Report:
        """See ``mlx_patches.status``; ``held_elsewhere`` as in ``Manager.status``."""
        if self._watcher is not None and self._watcher.lost:
            logger.warning(
                "mlx_patches: restored the import hook that was removed from sys.meta_path"
            )
            self._watcher.install()
        outcomes = self.manager.status(held_elsewhere)
        for request in self._requests.by_model():
            missed = [one for one in _models_imported(is_imported) if one not in request.entries]
            for patch in self._entries_of(missed, request.taken_out):
                for one in self._preview(patch):
                    module = one.target.partition(":")[0]
                    if one.status is Status.PENDING and is_imported(module):
                        outcomes.append(one._replace(status=Status.LOST, reason=unseen(module)))
        return _report(outcomes)

    def after_fork(self, in_child: bool) -> None:
        self.manager.after_fork(in_child)
        if in_child and self._presence is not None:
            self._presence.after_fork_in_child()

    def _activate(self, request: Request, wanted: list[Patch], strict: bool) -> Report:
        """Hold a request, and apply its patches; drop it if that raises."""
        names = [*MODELS, *HOST_MODELS, *(t.module for patch in wanted for t in patch.targets)]
        with self.manager.lock:
            self._requests.held += (request,)
            if self._watcher is None:
                self._watcher = Watcher((), self._apply_to_import, self.strict, self._in_copy)
            self._watcher.packages |= {name.partition(".")[0] for name in names}
            self._watcher.install()
        outcomes = []
        try:
            for patch in wanted:
                outcomes += self._add(request, patch, strict)
            for entry in _models_imported() if request.by_model else ():
                outcomes += self._add_entry(request, entry, strict)
        except MlxPatchesError:
            self._drop(request)
            raise
        finally:
            self.manager.rebind()
        self._log_once()
        return _report(outcomes)

    def _drop(self, request: Request) -> None:
        with self.manager.lock:
            self._requests.drop(request)
            self._unwatch()
        self.manager.restore(list(request.patches), self._is_requested)
        self._log_once()

    def _is_requested(self, patch_id: str) -> bool:
        return any(patch_id in request.patches for request in self._requests.held)

    def _unwatch(self) -> None:
        """Stop watching imports if nothing is requested."""
        if self._watcher is not None and not self._requests.held:
            self._watcher.uninstall()

    def _ids(self, patches: Iterable[str] | None, argument: str = "patches") -> list[str] | None:
        if patches is None:
            return None
        names = check_names(argument, "ids", patches)
        return [self.registry.find_declared(name).id for name in names]

    def _models(self, models: Iterable[str] | None) -> list[tuple[str, str]] | None:
        """The (model, distribution) of each model type that a caller named."""
        if models is None:
            return None
        entries = []
        for name in check_names("models", "model types", models):
            found = implementations(name)
            if not found and name != "default" and name not in self.matrix.models:
                raise MlxPatchesError(
                    f"no model type {name!r} in the matrix or the installed packages"
                    f"{did_you_mean(name, self.matrix.models)}"
                )
            entries += [(found.get(where, name), where) for where in MODEL_PACKAGES.values()]
        return entries

    def _profile(self, name: str | None, named: bool) -> profiles.Profile | None:
        if name is None:
            return None if named else self._choose(settings.profile() or profiles.DEFAULT)
        if named:
            raise MlxPatchesError("give either a profile or patches and models, not both")
        if not isinstance(name, str):
            raise MlxPatchesError(f"profile must be the name of a profile, not {name!r}")
        return profiles.choose(name)

    def _choose(self, names: str) -> profiles.Profile:
        """The union of the profiles that the environment names; ``safe`` if one is unknown."""
        try:
            return profiles.choose(names)
        except MlxPatchesError as error:
            # A typo must neither stop a host nor leave it without patches.
            logger.warning("mlx_patches: %s: %s", settings.PROFILE, error)
            return profiles.choose(settings.SAFE)

    def optional_requested(self) -> frozenset[str]:
        """The optional patches that this environment requests, by id or by a profile."""
        names = settings.profile() or started.profile or profiles.DEFAULT
        return frozenset(self.enabled) | self.registry.in_profiles(self._choose(names).names)

    def why_left_out(self, patch_id: str) -> str:
        """Why patched processes here lack a patch: nothing requests it; else empty."""
        always = patch_id in self.matrix.always
        if self.active:
            followed = not always and any(request.by_model for request in self._requests.held)
            return "" if followed or self._is_requested(patch_id) else "not requested here"
        names = settings.profile() or started.profile or profiles.DEFAULT
        chosen = self._choose(names)
        has = chosen.has_area(self.registry.area(patch_id)) if always else chosen.models
        if has or patch_id in self.optional_requested():
            return ""
        return f"switched off by {settings.PROFILE}" if settings.profile() else LEFT_OUT + names

    def _log_once(self) -> None:
        layers = self._layers()
        ids = {layer.patch for layer in layers}
        used = {layer.target.distribution for layer in layers}
        if ids != self._published:
            self._published = ids
            self._show_presence()
        if used <= self._logged:
            return
        self._logged |= used
        releases = ", ".join(str(self.installed(name)) for name in sorted(used))
        logger.info("mlx_patches %s: %d patches in effect for %s", __version__, len(ids), releases)

    def _show_presence(self) -> None:
        """Update or remove the file that ``mlx-patches ps`` reads for this process."""
        if not settings.presence():
            return
        if not self._published:
            if self._presence is not None:
                self._presence.forget()
            return
        layers = self._layers()
        used = sorted({layer.target.distribution for layer in layers})
        if self._presence is None:
            self._presence = presence.Presence()
        self._presence.write(
            {
                "version": __version__,
                "releases": [str(self.installed(name)) for name in used],
                "patches": sorted({layer.patch for layer in layers}),
                "withdrawn": dict(self.manager.withdrawn),
                "failures": {id_: str(one) for id_, one in self.manager.failures.items()},
            }
        )

    def _layers(self) -> list[Layer]:
        return [layer for site in self.manager.sites() for layer in site.layers]

    def why_off(self, patch_id: str) -> str:
        """What switched a patch off: ``MLX_PATCHES_DISABLE`` or the program; else empty."""
        if self.disabled & {patch_id, settings.ALL}:
            return f"switched off by {settings.DISABLE}"
        return "skipped by apply(without=...)" if patch_id in self.without else ""

    def has_restored(self, patch_id: str) -> bool:
        """Whether the program took a patch out of its requests: no import applies it again."""
        taken_out = any(patch_id in request.taken_out for request in self._requests.held)
        return taken_out and not self._is_requested(patch_id)

    def relevant(self, patch_id: str) -> bool:
        """False for a patch of a host that is not installed."""
        core = set(MODEL_PACKAGES.values())
        if self.registry.distribution(patch_id) not in (None, *core):
            return self.has_code(patch_id)
        patch = self.registry.find_declared(patch_id)
        return any(t.distribution in core or self.installed(t.distribution) for t in patch.targets)

    def has_code(self, patch_id: str) -> bool:
        """False for one of our patches if its only distribution is not installed."""
        package = self.registry.distribution(patch_id)
        return package is None or self.installed(package) is not None

    def _find_wanted(
        self, patches: Iterable[str] | None, models: Iterable[str] | None, profile: str | None
    ) -> tuple[list[Patch], bool]:
        """The patches that a call requests, and whether it follows the models' entries."""
        ids, types = self._ids(patches), self._models(models)
        chosen = self._profile(profile, named=ids is not None or types is not None)
        named = [id_ for entry in types or () for id_ in self.gate.patches_for(*entry)]
        if ids is None:
            always: Iterable[str] = self.matrix.always
            if chosen is not None:
                always = [id_ for id_ in always if chosen.has_area(self.registry.area(id_))]
                always += sorted(self.registry.in_profiles(chosen.names))
            code = filter(self.has_code, (*always, *self.enabled))
            ids = [*filter(self.relevant, code), *named]
        elif types is not None:
            ids = [id_ for id_ in ids if id_ in named or id_ in self.matrix.always]
        found = map(self.registry.find_declared, set(ids))
        by_model = chosen is not None and chosen.models
        return sorted(found, key=lambda patch: self.registry.rank(patch.id)), by_model

    def _preview(self, patch: Patch) -> list[Outcome]:
        return self._list_switched_off(patch) or self.manager.apply(patch, dry_run=True)

    def _list_switched_off(self, patch: Patch) -> list[Outcome]:
        reason = self.why_off(patch.id)
        return [
            Outcome(patch.id, t.distribution, t.path, Status.DISABLED, reason, by_choice=True)
            for t in (patch.targets if reason else ())
        ]

    def _add(self, request: Request, patch: Patch, strict: bool) -> list[Outcome]:
        """Add a patch to a request, and apply it; the caller rebinds."""
        if outcomes := self._list_switched_off(patch):
            return outcomes
        with self.manager.lock:
            if request not in self._requests.held:
                return []  # another thread has restored meanwhile
            request.patches[patch.id] = patch
        return self._apply(patch, strict)

    def _apply(self, patch: Patch, strict: bool) -> list[Outcome]:
        """Apply a patch; the caller rebinds."""
        return self.manager.apply(
            patch, strict=strict, wanted=lambda: self._is_requested(patch.id), rebind=False
        )

    def _apply_to_import(self, module: ModuleType) -> None:
        name = module.__name__
        try:
            for patch in self._requests.patches():
                if any(target.module == name for target in patch.targets):
                    self._apply(patch, self.strict)
            for request in self._requests.by_model():
                if entry := model_of(name):
                    self._add_entry(request, entry, self.strict)
        finally:
            self.manager.rebind()
        self._log_once()
        self._in_copy(name_of_main())

    def _in_copy(self, name: str) -> None:
        """Report once that a module runs as ``__main__`` without its patches."""
        watched = self._watcher is not None and self._watcher.watches(name)
        if not watched or name in self._logged or not runs_in_copy(name):
            return
        gone = (one for one in self.manager.status() if one.status is Status.LOST)
        if lost := [one for one in gone if one.target.partition(":")[0] == name]:
            self._logged.add(name)
            failure = f"{lost[0].reason}; patches not in effect: {len(lost)}"
            if self.strict:
                raise ImportError(f"mlx_patches: {failure}")
            logger.warning("mlx_patches: %s", failure)

    def _add_entry(self, request: Request, entry: tuple[str, str], strict: bool) -> list[Outcome]:
        """Add the patches that a model's entry names, once; the caller rebinds."""
        if entry in request.entries:
            return []
        request.entries.add(entry)
        patches = self._entries_of([entry], request.taken_out)
        return [one for patch in patches for one in self._add(request, patch, strict)]

    def _entries_of(
        self, entries: Iterable[tuple[str, str]], taken_out: Collection[str] = ()
    ) -> list[Patch]:
        ids = [id_ for name, model in entries for id_ in self.gate.patches_for(model, name)]
        return [self.registry.find_declared(id_) for id_ in ids if id_ not in taken_out]


class Block(contextlib.ContextDecorator, contextlib.AbstractContextManager[Report]):
    """The ``with`` block of ``patched``. It may be entered again, also while it is entered."""

    def __init__(self, current: Session, wanted: list[Patch], by_model: bool):
        self._session, self._wanted, self._by_model = current, wanted, by_model
        self._entered: list[Request] = []

    def __enter__(self) -> Report:
        request = Request(self._by_model)
        try:
            report = self._session._activate(request, self._wanted, self._session.strict)
        except BaseException:
            self._session._drop(request)
            raise
        self._entered.append(request)
        return report

    def __exit__(self, *error: object) -> None:
        self._session._drop(self._entered.pop())


def _report(outcomes: Iterable[Outcome]) -> Report:
    return Report(tuple({(one.patch, one.target): one for one in outcomes}.values()))


def check_names(argument: str, what: str, names: Iterable[str]) -> list[str]:
    """The names that a caller passed."""
    if isinstance(names, str):
        raise MlxPatchesError(f"{argument} must be a list of {what}: write [{names!r}]")
    listed: list[str] = list(names) if isinstance(names, Iterable) else [names]
    if strange := [name for name in listed if not isinstance(name, str)]:
        raise MlxPatchesError(f"{argument} must be a list of {what} as strings, not {strange[0]!r}")
    return listed


def _models_imported(is_done: Callable[[str], object] = find_module) -> list[tuple[str, str]]:
    """The (distribution, model) of each imported module that belongs to a model, once."""
    inside = tuple(f"{package}." for package in (*MODEL_PACKAGES, *HOST_MODELS))
    names = [name for name in list(sys.modules) if name.startswith(inside) and is_done(name)]
    return list(dict.fromkeys(entry for entry in map(model_of, names) if entry is not None))


def model_of(module: str) -> tuple[str, str] | None:
    """The (distribution, model) that a module belongs to; None if it belongs to no model.

    A flat module is a model if it defines ``Model`` or ``LanguageModel``; every module in a
    package below ``models`` belongs to the model of that name. A host's own model is ``default``.
    """
    package, _, rest = module.partition(".models.")
    place = f"{package}.models"
    if not rest or not (place in MODEL_PACKAGES or place in HOST_MODELS):
        return None
    model, _, inner = rest.partition(".")
    loaded = sys.modules.get(module)
    is_model = hasattr(loaded, "Model") or hasattr(loaded, "LanguageModel")
    if place in HOST_MODELS:
        return (MODEL_PACKAGES["mlx_lm.models"], "default") if is_model else None
    in_package = bool(inner) or hasattr(loaded, "__path__")
    return (MODEL_PACKAGES[place], model) if in_package or is_model else None


_session: Session | None = None
_making = threading.Lock()


def session() -> Session:
    global _session
    with _making:
        if _session is None:
            _session = Session(catalogue.builtin(), CompatMatrix.builtin())
        made = _session
    made.contribute()  # outside the lock: it imports
    return made


def _before_fork() -> None:
    if _session is not None:
        _session.manager.before_fork()


def _after_fork(in_child: bool) -> None:
    global _making
    if in_child:
        _making = threading.Lock()  # a thread that does not exist in the child may hold it
    if _session is not None:
        _session.after_fork(in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=functools.partial(_after_fork, in_child=False),
        after_in_child=functools.partial(_after_fork, in_child=True),
    )
