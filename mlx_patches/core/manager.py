"""Puts patches in effect and takes them out: plan, verify, commit, post-check, roll back."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

from ..activation.import_hook import complete
from ..matrix import decide
from ..matrix.matrix import CompatMatrix
from . import distributions, effect, files, fingerprint, guard
from .distributions import Installed, source_file
from .errors import MlxPatchesError
from .outcome import Outcome, Status
from .patch import MISSING, Patch, Target

logger = logging.getLogger("mlx_patches")

# How long a fork waits for another thread that is applying or restoring.
FORK_SECONDS = 5.0
# A sibling in one of these states leaves the release's code in doubt.
_BLOCKING = frozenset({Status.DRIFTED, Status.CONFLICT})


class Site(NamedTuple):
    """One replaced attribute: all that is needed to look at it and to put it back."""

    target: Target
    owner: Any
    attribute: str
    original: Any
    replacement: Any
    reason: str
    switch_off: Callable[[], None] = lambda: None


class _Found(NamedTuple):
    """A target as it stands in the running process."""

    owner: Any
    attribute: str
    original: Any
    body: str | None


class Manager:
    """The patches in effect in this process.

    Thread-safe. Never imports a target's module: what is not imported yet stays ``pending``
    until ``apply`` is called again for it.
    """

    def __init__(
        self,
        matrix: CompatMatrix,
        find: Callable[[str], Installed | None] = distributions.find,
        strict: bool = False,
    ):
        self.matrix = matrix
        self.strict = strict
        self.lock = threading.RLock()
        self.installed = functools.cache(find)
        self._sites: dict[tuple[str, str], Site] = {}
        self._patches: dict[str, Patch] = {}
        self._ledger: dict[tuple[str, str], Outcome] = {}
        # Patches that raised in a call, with the reason: out until they are restored.
        self.withdrawn: dict[str, str] = {}

    def apply(self, patch: Patch, *, strict: bool = False, dry_run: bool = False) -> list[Outcome]:
        """Put a patch in effect wherever its modules are imported.

        Args:
            strict: raise where a target that may need the patch did not get it.
            dry_run: decide everything, change nothing.

        Raises:
            MlxPatchesError: with ``strict`` only.
        """
        order = {target.path: index for index, target in enumerate(patch.targets)}
        with self.lock:
            outcomes: list[Outcome] = []
            ready: list[tuple[Target, _Found, str]] = []
            for distribution in dict.fromkeys(t.distribution for t in patch.targets):
                targets = [t for t in patch.targets if t.distribution == distribution]
                group, group_ready = self._plan(patch, targets)
                outcomes += group
                ready += group_ready
            if withdrawn := self.withdrawn.get(patch.id):
                outcomes = [o for o in outcomes if o.status is not Status.PENDING]
                decided = {o.target for o in outcomes}
                out = [t for t in patch.targets if t.path not in decided]
                outcomes += [_outcome(patch, t, Status.FAILED, withdrawn) for t in out]
                ready = []
            ready.sort(key=lambda item: order[item[0].path])
            if dry_run:
                outcomes += [
                    _outcome(patch, t, Status.PENDING, f"would be applied: {reason}")
                    for t, _, reason in ready
                ]
            else:
                self._patches[patch.id] = patch
                outcomes += self._commit(patch, ready)
                if any(outcome.status is Status.FAILED for outcome in outcomes):
                    outcomes = [
                        o if o.status is not Status.APPLIED else self._ledger[o.patch, o.target]
                        for o in outcomes
                    ]
                for outcome in sorted(outcomes, key=lambda o: order[o.target]):
                    self._ledger[outcome.patch, outcome.target] = outcome
        outcomes.sort(key=lambda outcome: order[outcome.target])
        if strict:
            for outcome in outcomes:
                if outcome.finding:
                    raise MlxPatchesError(
                        f"{outcome.patch} is not in effect: {outcome.target} is "
                        f"{outcome.status}: {outcome.reason}"
                    )
        return outcomes

    def restore(self, patches: Iterable[str] | None = None) -> list[Outcome]:
        """Give back the original objects, in reverse order.

        A wrapper that somebody put on top of ours stays. Where that wrapper is a plain
        closure, ours cannot be taken out from under it: the outcome says so.
        """
        with self.lock:
            wanted = set(self._patches if patches is None else patches)
            for patch_id in wanted & self.withdrawn.keys():
                del self.withdrawn[patch_id]
            outcomes = []
            for key, site in reversed(list(self._sites.items())):
                patch_id, path = key
                if patch_id not in wanted:
                    continue
                same = {i: s for (i, at), s in self._sites.items() if at == path and i != patch_id}
                problem = effect.take_out(site, same)
                if problem:
                    outcome = _outcome(
                        self._patches[patch_id], site.target, Status.APPLIED, problem
                    )
                else:
                    del self._sites[key]
                    outcome = _outcome(
                        self._patches[patch_id], site.target, Status.DISABLED, "restored"
                    )._replace(by_choice=True)
                self._ledger[patch_id, path] = outcome
                outcomes.append(outcome)
            for key, outcome in list(self._ledger.items()):
                if key[0] in wanted and outcome.status is Status.PENDING:
                    del self._ledger[key]
            return outcomes

    def status(self) -> list[Outcome]:
        """The ledger as the live objects bear it out."""
        with self.lock:
            checked = []
            held = effect.other_holders(self._sites.values())
            for key, outcome in self._ledger.items():
                site = self._sites.get(key)
                if site is None:
                    checked.append(outcome)
                    continue
                patch = self._patches[key[0]]
                problem = effect.problem(site)
                if problem:
                    checked.append(_outcome(patch, site.target, Status.LOST, problem))
                elif key[1] in held:
                    reason = f"the original is still held by {held[key[1]]}; apply earlier"
                    checked.append(_outcome(patch, site.target, Status.LATE, reason))
                else:
                    checked.append(_outcome(patch, site.target, Status.APPLIED, site.reason))
            return checked

    def before_fork(self) -> None:
        """Wait until no thread is in the middle of a patch: a child would inherit that."""
        self.lock.acquire(timeout=FORK_SECONDS)

    def after_fork(self, in_child: bool) -> None:
        """Go on. A child's lock is new: whoever may hold the old one does not run there."""
        if in_child:
            self.lock = threading.RLock()
        else:
            with contextlib.suppress(RuntimeError):  # it was not to be had in time
                self.lock.release()

    # -- plan and verify ---------------------------------------------------------------

    def _plan(
        self, patch: Patch, targets: list[Target]
    ) -> tuple[list[Outcome], list[tuple[Target, _Found, str]]]:
        """Decide the targets of one distribution; all that need the patch are ready, or none."""
        outcomes: list[Outcome] = []
        ready: list[tuple[Target, _Found, str]] = []
        for target in targets:
            site = self._sites.get((patch.id, target.path))
            if site is not None and not effect.problem(site):
                outcomes.append(_outcome(patch, target, Status.APPLIED, site.reason))
                continue
            decided = self._decide(patch, target)
            if isinstance(decided, Outcome):
                outcomes.append(decided)
            else:
                ready.append((target, *decided))
        blocker = next((o for o in outcomes if o.status in _BLOCKING), None)
        if blocker and ready:
            reason = f"held back: {blocker.target} is {blocker.status}"
            outcomes += [_outcome(patch, t, Status.DRIFTED, reason) for t, _, _ in ready]
            ready = []
        return outcomes, ready

    def _decide(self, patch: Patch, target: Target) -> Outcome | tuple[_Found, str]:
        rule = decide.find_rule(self.matrix, patch, target, self.installed)
        installed = self.installed(target.distribution)
        module = sys.modules.get(target.module)
        module = module if isinstance(module, ModuleType) else None
        if installed is None or rule is None or module is None or not complete(module):
            verdict = decide.judge(rule, installed, target.name, None)
            if verdict.ok:
                state = "not imported yet" if module is None else "being imported"
                return _outcome(patch, target, Status.PENDING, f"{target.module} is {state}")
            return _outcome(patch, target, verdict.status, verdict.reason)
        found = _resolve(module, target)
        stranger = "" if isinstance(found, str) else effect.stranger(found.original, module)
        if stranger and not target.adds and not _defined(target):
            found, stranger = f"{target.name} comes from {stranger}", ""
        if not isinstance(found, str) and target.adds and found.original is not MISSING:
            found = f"{stranger or 'the release'} defines {target.path} itself"
        if isinstance(found, str):
            verdict = decide.judge(rule, installed, target.name, None)
            status = Status.CONFLICT if stranger else Status.ABSENT
            status = status if verdict.ok else verdict.status
            return _outcome(patch, target, status, found if verdict.ok else verdict.reason)
        verdict = decide.judge(rule, installed, target.name, found.body)
        if stranger and (verdict.ok or verdict.status is Status.DRIFTED):
            reason = (
                f"{target.name} was replaced by {stranger}, whose repair is unknown to us: activate"
                " mlx_patches before it, or leave it out"
            )
            return _outcome(patch, target, Status.CONFLICT, reason)
        if verdict.ok:
            return found, verdict.reason
        return _outcome(patch, target, verdict.status, verdict.reason)

    # -- commit, post-check, roll back -------------------------------------------------

    def _commit(self, patch: Patch, ready: list[tuple[Target, _Found, str]]) -> list[Outcome]:
        """Write all, check all, and only then say so; on any error nothing stays, old or new."""
        written: list[Site] = []
        try:
            built = [self._site(patch, target, found, reason) for target, found, reason in ready]
            for site in built:
                written.append(site)
                effect.put_in(site, self._sites.pop((patch.id, site.target.path), None))
            for site in built:
                problem = effect.problem(site)
                if problem:
                    raise MlxPatchesError(problem)
            for site in built:
                self._sites[patch.id, site.target.path] = site
        except BaseException as error:
            for site in reversed(written):
                effect.take_out(site)
            for key in [key for key in self._sites if key[0] == patch.id]:
                effect.take_out(self._sites.pop(key))
            reason = f"rolled back: {type(error).__name__}: {error}"
            for target in patch.targets:
                old = self._ledger.get((patch.id, target.path))
                if old and old.status is Status.APPLIED:
                    failed = _outcome(patch, target, Status.FAILED, reason)
                    self._ledger[patch.id, target.path] = failed
            if not isinstance(error, Exception):
                raise
            logger.warning("mlx_patches: %s failed and was %s", patch.id, reason)
            return [_outcome(patch, t, Status.FAILED, reason) for t, _, _ in ready]
        return [_outcome(patch, s.target, Status.APPLIED, s.reason) for s in built]

    def _site(self, patch: Patch, target: Target, found: _Found, reason: str) -> Site:
        policy = guard.Policy(
            functools.partial(self._failed_in_a_call, patch, target),
            self.strict,
            f"the patch {patch.id} of mlx_patches in {target.path}",
        )
        made = guard.build(target.factory, found.original, found.owner, policy)
        return Site(
            target,
            found.owner,
            found.attribute,
            found.original,
            made.replacement,
            reason,
            made.switch_off,
        )

    def _failed_in_a_call(
        self, patch: Patch, target: Target, error: Exception, entered: bool
    ) -> None:
        """Take a patch out that raised in a call, and say so once."""
        with self.lock:
            if patch.id in self.withdrawn:
                return
            said = f"{type(error).__name__}: {files.quoted(error)}"
            reason = f"taken out: raised in {target.path}: {said}"
            self.withdrawn[patch.id] = reason
            for key, site in reversed(list(self._sites.items())):
                if key[0] == patch.id:
                    site.switch_off()
                    with contextlib.suppress(Exception):  # the host must not see it: it is off
                        effect.take_out(site)
                    del self._sites[key]
                    self._ledger[key] = _outcome(patch, site.target, Status.FAILED, reason)
        goes_on = "this call fails, later ones run" if entered else "the host goes on with"
        message = "mlx_patches: %s was %s; %s the release's own code"
        logger.warning(message, patch.id, reason, goes_on, exc_info=error)


def _resolve(module: ModuleType, target: Target) -> _Found | str:
    """Find a target in its module, or say why it is not there."""
    owner: Any = module
    *parents, attribute = target.name.split(".")
    for name in parents:
        owner = vars(owner).get(name, MISSING)
        if not isinstance(owner, type):
            return f"{target.module} has no class {name}"
        if owner.__module__ != module.__name__:
            return f"{name} comes from {owner.__module__} and is patched there"
    original = vars(owner).get(attribute, MISSING)
    if original is MISSING and not target.adds:
        return f"{target.path} does not exist in this release"
    bodies = {name: _lookup(module, name) for name in target.bodies}
    prints = {n: fingerprint.of_object(b) for n, b in bodies.items() if b is not MISSING}
    if not prints:
        return f"{target.module} has none of {', '.join(target.bodies)}"
    return _Found(owner, attribute, original, fingerprint.combined(prints))


def _defined(target: Target) -> bool:
    """Whether the release's file defines a target, and does not take it from another module."""
    path = source_file(target.module)
    try:
        return path is None or bool(fingerprint.of_file(path, [target.name]))
    except (OSError, SyntaxError):
        return True


def _lookup(module: ModuleType, name: str) -> Any:
    scope: Any = module
    for part in name.split("."):
        scope = vars(scope).get(part, MISSING) if hasattr(scope, "__dict__") else MISSING
    return scope


def _outcome(patch: Patch, target: Target, status: Status, reason: str) -> Outcome:
    return Outcome(patch.id, target.distribution, target.path, status, reason)
