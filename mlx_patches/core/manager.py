"""Applies and removes patches: plan, compose, write, check, roll back.

Factories run outside the lock, since they may import, and an import may wait for another thread
that needs the lock. Their result is written under the lock if no other thread has changed the site
since; if one has, it is composed again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from . import distributions
from .errors import MlxPatchesError
from .failures import LIMIT, Failures, describe, locate
from .foreign import other_holders
from .guard import Failure, Policy
from .handed import MANAGERS
from .imports import find_module, is_imported, runs_in_copy
from .outcome import IN_EFFECT, NOT_NEEDED, Outcome, Status, Verdict
from .patch import Patch, Target
from .record import Record
from .registry import Registry
from .resolve import Found, in_process
from .site import Aliases, Composed, Layer, Site, current_owner

if TYPE_CHECKING:  # at start-up a protocol costs 0.4 ms
    from typing import Protocol

    class Gate(Protocol):
        """Decides whether a target needs its patch; ``matrix.gate.Gate`` implements it."""

        def decide(self, patch: Patch, target: Target, found: Found | None) -> Verdict:
            """The verdict on a target; ``found`` is None if its module is not imported."""


logger = logging.getLogger("mlx_patches")

# How many seconds a fork waits for a thread that is writing.
FORK_SECONDS = 5.0
# A target that will be patched, as it was found, and why it needs the patch.
_Ready = tuple[Target, Found, str]


class _StaleError(Exception):
    """Another thread reloaded a module during a write; the patch must be planned again."""


class _Change(Record):
    """A site and the composition to write to it.

    ``before`` is the site's composition, and ``known`` the path's site, at the time of composing:
    another thread may have changed either since.
    """

    site: Site
    composed: Composed
    before: Composed
    known: Site | None


class Manager:
    """The patches in effect in this process, and the sites that they share.

    Thread-safe. Never imports a target's module: a target whose module is not imported stays
    ``pending`` until ``apply`` is called again.

    Args:
        registry: ranks the patches at a site, and completes the targets of patches whose module is
            not imported. By default patches stack in order of application, and targets are
            complete.
        strict: raise a layer's failure to the host.
        on_failure: called after the first failure of each kind, and after a withdrawal.
    """

    def __init__(
        self,
        gate: Gate,
        registry: Registry | None = None,
        strict: bool = False,
        on_failure: Callable[[], None] = lambda: None,
    ):
        self.gate = gate
        self.strict = strict
        self._on_failure = on_failure
        self._registry = registry
        self.lock = threading.RLock()
        self._rank = registry.rank if registry else self._by_arrival
        self._arrivals: dict[str, int] = {}
        # They stay when their layers are removed: other modules may hold their functions.
        self._sites: dict[str, Site] = {}
        # Sites that were superseded: a module was reloaded, or another package's object is below
        # the newer site. Whoever wrapped a former one's object may put it back.
        self._former: list[Site] = []
        self._aliases = Aliases()
        self._patches: dict[str, Patch] = {}
        self._ledger: dict[tuple[str, str], Outcome] = {}
        # The module object for which a settled outcome was decided.
        self._decided_for: dict[tuple[str, str], ModuleType | None] = {}
        # By patch id: its failures in calls, and why it was withdrawn. ``restore`` clears both.
        self.failures: dict[str, Failures] = {}
        self.withdrawn: dict[str, str] = {}
        # The (patch, path) pairs of layers with which a call has succeeded.
        self._worked: set[tuple[str, str]] = set()
        MANAGERS.add(self)

    def apply(
        self,
        patch: Patch,
        *,
        strict: bool = False,
        dry_run: bool = False,
        wanted: Callable[[], bool] = lambda: True,
        rebind: bool = True,
    ) -> list[Outcome]:
        """Apply a patch to its imported modules.

        Args:
            patch: the patch. Applying it again covers modules that were imported since.
            strict: raise if a target that may need the patch did not get it.
            dry_run: decide everything, change nothing.
            wanted: called just before the write; False cancels it. Another thread may have
                restored the patch meanwhile.
            rebind: also patch the modules that imported a target by name; False leaves them to
                ``rebind``, which handles several patches at once.

        Raises:
            MlxPatchesError: with ``strict`` only.
        """
        self._recall_sites()
        outcomes, ready = self._plan(patch)
        if dry_run:
            outcomes += [
                _outcome(patch, target, Status.PENDING, f"would be applied: {reason}")
                for target, _, reason in ready
            ]
            outcomes = _order(patch, outcomes)
        else:
            outcomes = self._commit(patch, outcomes, ready, wanted, rebind)
        if strict:
            for outcome in outcomes:
                if outcome.finding:
                    raise MlxPatchesError(
                        f"{outcome.patch} is not in effect: {outcome.target}: "
                        f"{outcome.status}: {outcome.reason}{_owner(outcome.reason)}"
                    )
        return outcomes

    def rebind(self) -> None:
        """Update the modules that imported a changed value by name."""
        with self.lock:
            self._aliases.rebind()

    def restore(
        self,
        patches: Iterable[str] | None = None,
        kept: Callable[[str], bool] = lambda patch_id: False,
    ) -> list[Outcome]:
        """Remove patches, all by default, the outermost first.

        Once a site has no layer left, its attribute holds the original object again. A third-party
        wrapper on top of ours stays. ``kept``: called just before each write; True cancels it.
        Another thread may have requested the patch meanwhile.
        """
        self._recall_sites()
        with self.lock:
            wanted = set(self._patches if patches is None else patches)
            wanted = {patch_id for patch_id in wanted if not kept(patch_id)}
            for patch_id in wanted:
                self.withdrawn.pop(patch_id, None)
                self.failures.pop(patch_id, None)
            self._worked = {one for one in self._worked if one[0] not in wanted}
            held = [
                (layer, site)
                for site in reversed(self.sites())
                for layer in reversed(site.layers)
                if layer.patch in wanted
            ]
        held.sort(key=lambda one: self._place(one[0]), reverse=True)
        outcomes = []
        try:
            for layer, site in held:
                problem = self._remove(site, layer.patch, kept)
                if problem is None:
                    continue
                status = Status.APPLIED if problem else Status.DISABLED
                outcome = _outcome(
                    self._patches[layer.patch], layer.target, status, problem or "restored"
                )._replace(by_choice=not problem)
                if self._sites.get(site.path) is not site:
                    continue
                outcomes.append(outcome)
                with self.lock:
                    self._ledger[layer.patch, site.path] = outcome
            for site in [*self._former, *self._sites.values()]:
                if not site.layers and site.is_in_place():  # the end of a mock put it back
                    self._remove(site, "")
        finally:
            self.rebind()
        with self.lock:
            self._former = [
                one for one in self._former if one.layers or one.owner is current_owner(one.path)
            ]
            for key, outcome in list(self._ledger.items()):
                pending = outcome.status is Status.PENDING
                if key[0] in wanted and pending and not kept(key[0]):
                    del self._ledger[key]
            # Copied at once: other threads decide targets without the lock.
            for key in [key for key in list(self._decided_for) if key[0] in wanted]:
                del self._decided_for[key]
        return outcomes

    def status(self, held_elsewhere: bool = False) -> list[Outcome]:
        """The state of each target, read from the live attributes.

        ``held_elsewhere``: search the heap for other references to the originals, and report their
        targets as ``late``. Takes up to a second in a large process.
        """
        self._recall_sites()
        with self.lock:
            sites = dict(self._sites)
        held: dict[str, str] = {}
        if held_elsewhere:
            mine = [s for s in sites.values() if s.layers and isinstance(s.owner, ModuleType)]
            originals = {site.path: site.original for site in mine if callable(site.original)}
            held = other_holders(originals, (cell for site in mine for cell in site.cells()))
        with self.lock:  # a layer and its record change together
            return [self._check(one, self._sites, held) for one in self._ledger.values()]

    def sites(self) -> list[Site]:
        """The sites that have a layer, in order of creation."""
        with self.lock:
            return [site for site in (*self._former, *self._sites.values()) if site.layers]

    def _recall_sites(self) -> None:
        """Make a former site current again if its object was put back."""
        with self.lock:
            for site in reversed(self._former[:]):
                newer = self._sites[site.path]
                if site.is_in_place() and not newer.is_in_place():
                    self._former.remove(site)
                    self._former.append(newer)
                    self._sites[site.path] = site

    def before_fork(self) -> None:
        """Wait until no thread is writing: a child would inherit a half-written patch."""
        if self.lock.acquire(timeout=FORK_SECONDS):
            self._aliases.rebind()

    def after_fork(self, in_child: bool) -> None:
        """Release the lock; make a new one in a child, in which its holder may not exist."""
        if in_child:
            self.lock = threading.RLock()
        else:
            with contextlib.suppress(RuntimeError):  # it was not acquired in time
                self.lock.release()

    def _check(self, outcome: Outcome, sites: dict[str, Site], held: dict[str, str]) -> Outcome:
        """An outcome, with its status corrected by the live attribute."""
        site = sites.get(outcome.target)
        layer = site.layer_of(outcome.patch) if site else None
        if outcome.status in IN_EFFECT:
            module = outcome.target.partition(":")[0]
            if runs_in_copy(module):
                reason = f"{module} runs as __main__ in a copy of its code: start it by its command"
                return outcome._replace(status=Status.LOST, reason=reason)
            if layer is None and outcome.status is Status.PENDING and is_imported(module):
                return outcome._replace(status=Status.LOST, reason=unseen(module))
        if site is None or layer is None:
            if outcome.status is Status.APPLIED:
                reason = f"{outcome.target} is the release's own again"
                return outcome._replace(status=Status.LOST, reason=reason)
            return outcome
        problem = site.problem()
        if problem:
            return outcome._replace(status=Status.LOST, reason=problem, by_choice=False)
        if outcome.target in held:
            reason = f"the original is still held by {held[outcome.target]}; apply earlier"
            return outcome._replace(status=Status.LATE, reason=reason)
        failures = self.failures.get(outcome.patch)
        if failures is None:
            return outcome._replace(status=Status.APPLIED, reason=layer.reason)
        never = (outcome.patch, outcome.target) not in self._worked
        status = Status.FAILED if never and failures.at(outcome.target) >= LIMIT else Status.APPLIED
        return outcome._replace(status=status, reason=f"{layer.reason}; it {failures}")

    def _by_arrival(self, patch: str) -> int:
        return self._arrivals.setdefault(patch, len(self._arrivals))

    def _place(self, layer: Layer) -> tuple[int, int]:
        paths = [target.path for target in self._patches[layer.patch].targets]
        return layer.rank, paths.index(layer.target.path)

    def _plan(self, patch: Patch) -> tuple[list[Outcome], list[_Ready]]:
        """Decide every target; one that cannot be patched holds back those that depend on it."""
        decided = [(target, self._decide(patch, target)) for target in patch.targets]
        settled = [(target, one) for target, one in decided if isinstance(one, Outcome)]
        outcomes = [one for _, one in settled]
        ready: list[_Ready] = []
        for target, one in decided:
            if isinstance(one, Outcome):
                continue
            if reason := explain_held_back(target, settled):
                outcomes.append(_outcome(patch, target, Status.DRIFTED, reason))
            else:
                ready.append(one)
        return outcomes, ready

    def _decide(self, patch: Patch, target: Target) -> Outcome | _Ready:
        path = target.path
        key = (patch.id, path)
        module = find_module(target.module)
        known = self._ledger.get(key)
        site = self._sites.get(path)
        layer = site.layer_of(patch.id) if site else None
        if site is not None and layer is not None and not site.problem():
            return _outcome(patch, target, Status.APPLIED, layer.reason)
        if (
            known
            and layer is None
            and known.status in NOT_NEEDED
            and self._decided_for.get(key, self) is module
        ):
            return known  # valid until the module object changes
        if module is None:
            verdict = self.gate.decide(patch, target, None)
            if verdict.ok:
                return _outcome(patch, target, Status.PENDING, _explain_pending(target.module))
        else:
            originals = {path: site.original} if site and site.is_in_place() else {}
            found = in_process(module, target, originals)
            verdict = self.gate.decide(patch, target, found)
            if verdict.ok:
                return target, found, verdict.reason
        self._decided_for[key] = module
        return _outcome(patch, target, verdict.status, verdict.reason)

    def _commit(
        self,
        patch: Patch,
        outcomes: list[Outcome],
        ready: list[_Ready],
        wanted: Callable[[], bool],
        rebind: bool,
    ) -> list[Outcome]:
        """Write and check all targets, then record them; on an error remove the whole patch."""
        try:
            while True:
                changes = [self._compose(patch, *one) for one in ready]
                with self.lock:
                    if not wanted():
                        return outcomes
                    self._patches[patch.id] = patch
                    if withdrawn := self.withdrawn.get(patch.id):
                        open_ = (Status.PENDING, Status.APPLIED)
                        settled = [o for o in outcomes if o.status not in open_]
                        return self._record(patch, _others_failed(patch, settled, withdrawn))
                    if all(map(self._is_current, changes)):
                        with contextlib.suppress(_StaleError):
                            self._write(changes, rebind)
                            done = [
                                _outcome(patch, target, Status.APPLIED, reason)
                                for target, _, reason in ready
                            ]
                            return self._record(patch, [*outcomes, *done])
                outcomes, ready = self._plan(patch)
        except BaseException as error:
            for site in self.sites():
                if site.layer_of(patch.id):
                    self._remove(site, patch.id)
            self.rebind()
            reason = f"rolled back: {describe(error)}"
            outcomes = _others_failed(
                patch, [o for o in outcomes if o.status is not Status.APPLIED], reason
            )
            with self.lock:
                self._patches[patch.id] = patch
                outcomes = self._record(patch, outcomes)
            if isinstance(error, KeyboardInterrupt):
                raise
            where = locate(error)
            logger.warning("mlx_patches: %s failed and was %s (%s)", patch.id, reason, where)
            return outcomes

    def _record(self, patch: Patch, outcomes: list[Outcome]) -> list[Outcome]:
        ordered = _order(patch, outcomes)
        self._ledger |= {(patch.id, outcome.target): outcome for outcome in ordered}
        return ordered

    def _compose(self, patch: Patch, target: Target, found: Found, reason: str) -> _Change:
        """Compose the patch's layer into its target's site, without writing it."""
        with self.lock:
            known = self._sites.get(target.path)
        site = self._site(target, found, known)
        before = site.composed
        if self._registry:
            target = self._registry.complete(patch.id, target)
        layer = Layer(patch.id, target, self._rank(patch.id), reason, patch.security)
        return _Change(site, site.compose_without(patch.id, layer), before, known)

    def _site(self, target: Target, found: Found, known: Site | None) -> Site:
        """The site of a target: the known one, unless its owner or original has changed."""
        if known and known.owner is found.owner and known.original is found.original:
            return known
        path, owner, original = target.path, found.owner, found.original
        failed = functools.partial(self.note_failure, path)
        succeeded = functools.partial(self._note_success, path)
        policy = Policy(failed, succeeded, self.strict, path)
        # Importers of the same module keep the former object, which has its layers.
        lost = known if known and known.layers and known.owner is not owner else None
        return Site(path, owner, original, policy, self._aliases, lost)

    def _is_current(self, change: _Change) -> bool:
        """Whether no other thread has changed the site or reloaded its module meanwhile."""
        site, known = change.site, change.known
        # A new site's original was read without the lock: it must not be another site's function.
        ours = site is not known and known and known.layers and site.original is known.live
        return bool(
            site.composed is change.before
            and self._sites.get(site.path) is known
            and current_owner(site.path) is site.owner
            and not ours
            and (site.layers or site.current() is site.original or site.is_in_place())
        )

    def _write(self, changes: list[_Change], rebind: bool) -> None:
        """Write all changes and check that they are in effect; on an error, undo them all."""
        replaced = {change.site.path: self._sites.get(change.site.path) for change in changes}
        written: list[_Change] = []
        try:
            for change in changes:
                written.append(change)
                self._sites[change.site.path] = change.site
                change.site.install(change.composed)
            for change in changes:
                problem = change.site.problem()
                if problem:
                    gone = current_owner(change.site.path) is not change.site.owner
                    raise _StaleError if gone else MlxPatchesError(problem)
            if rebind:
                self._aliases.rebind()
            self._former += [
                old
                for change in changes
                if (old := replaced[change.site.path]) not in (None, change.site)
            ]
        except BaseException:
            for change in reversed(written):
                change.site.install(change.before)
                old = replaced[change.site.path]
                if old is None:
                    self._sites.pop(change.site.path, None)
                else:
                    self._sites[change.site.path] = old
            raise

    def _remove(
        self, site: Site, patch: str, kept: Callable[[str], bool] = lambda patch_id: False
    ) -> str | None:
        """Remove a patch's layer; returns why that failed, None if the patch is ``kept``."""
        while True:
            before = site.composed
            composed = site.compose_without(patch)
            with self.lock:
                if kept(patch):
                    return None
                if site.composed is not before:
                    continue
                done = self._ledger.get((patch, site.path))
                if done and self._sites.get(site.path) is site:  # the caller adds the reason
                    self._ledger[patch, site.path] = done._replace(
                        status=Status.DISABLED, by_choice=True
                    )
                if composed.parts:
                    if site.problem():  # leave a third-party replacement in place
                        site.swap_layers(composed)
                    else:
                        site.install(composed)
                    return ""
                return site.uninstall()

    def _note_success(self, path: str, patches: Sequence[str]) -> None:
        self._worked.update((patch, path) for patch in patches)

    def note_failure(self, path: str, failure: Failure) -> None:
        """Count a failure, and log the first of its kind; see ``failures`` for withdrawals."""
        with self.lock:
            patch = self._patches.get(failure.patch)
            if patch is None or failure.patch in self.withdrawn:
                return
            failures = self.failures.setdefault(failure.patch, Failures())
            is_new = failures.add(path, failure)
            withdraw = (
                failure.reached_host
                and (failure.patch, path) not in self._worked
                and not patch.security
            )
            if withdraw:
                reason = f"withdrawn, since it {failures}"
                self.withdrawn[failure.patch] = reason
        if withdraw:
            self._withdraw(patch, reason)
        elif is_new:
            logger.warning(
                "mlx_patches: %s failed in this call of %s; %s: %s (%s)",
                *(patch.id, path, failure.answer, describe(failure.error), locate(failure.error)),
            )
        if withdraw or is_new:
            with contextlib.suppress(Exception):  # the host must not see it
                self._on_failure()

    def _withdraw(self, patch: Patch, reason: str) -> None:
        for site in self.sites():
            layer = site.layer_of(patch.id)
            if layer is not None:
                with contextlib.suppress(Exception):  # the host must not see it
                    self._remove(site, patch.id)
                failed = _outcome(patch, layer.target, Status.FAILED, reason)
                with self.lock:
                    self._ledger[patch.id, site.path] = failed
        self.rebind()
        logger.warning(
            "mlx_patches: %s was %s. Later calls run the release's own code: %s",
            *(patch.id, reason, patch.summary),
        )


def explain_held_back(target: Target, decided: Iterable[tuple[Target, Outcome]]) -> str:
    """Why other targets of its patch hold a target back; empty if none does."""
    for other, outcome in decided:
        if outcome.status in (Status.DRIFTED, Status.CONFLICT) and other.holds_back(target):
            return f"held back: {outcome.target} is {outcome.status}: {outcome.reason}"
    return ""


def _owner(reason: str) -> str:
    """Which distributions installed the function that replaced a target, for an error."""
    package = reason.partition(" was replaced by ")[2].partition(":")[0].partition(".")[0]
    names = distributions.installers().get(package) if package else None
    return f" ({package} is installed by {', '.join(names)})" if names else ""


def unseen(module: str) -> str:
    return f"{module} was imported without the import hook: call mlx_patches.apply() again"


def _explain_pending(module: str) -> str:
    there = sys.modules.get(module)
    if there is None:
        return f"{module} is not imported yet"
    if isinstance(there, ModuleType):
        return f"{module} is being imported"
    return f"{module} in sys.modules is not a module but a {type(there).__name__}"


def _others_failed(patch: Patch, settled: list[Outcome], reason: str) -> list[Outcome]:
    """The outcomes of a removed patch: failed unless they are settled."""
    decided = {outcome.target for outcome in settled}
    failed = [
        _outcome(patch, target, Status.FAILED, reason)
        for target in patch.targets
        if target.path not in decided
    ]
    return [*settled, *failed]


def _order(patch: Patch, outcomes: list[Outcome]) -> list[Outcome]:
    if len(outcomes) < 2:
        return outcomes
    by_target = {outcome.target: outcome for outcome in outcomes}
    return [by_target[path] for target in patch.targets if (path := target.path) in by_target]


def _outcome(patch: Patch, target: Target, status: Status, reason: str) -> Outcome:
    return Outcome(patch.id, target.distribution, target.path, status, reason)
