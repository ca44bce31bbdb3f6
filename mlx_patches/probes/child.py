"""Runs probes in their own process: ``python -m mlx_patches.probes.child``.

Prints one JSON line. ``--patched`` applies the patch first if the matrix admits it. ``--force``
always applies it, so that a range can be measured before the matrix has it. With several patches,
each is removed before the next is applied.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
from typing import Any

from ..activation import session as activation
from ..core import fingerprint
from ..core.manager import Manager
from ..core.patch import Patch, Target
from ..evidence.results import find_fault, is_absent
from ..evidence.words import GREEN, NOT_APPLICABLE, NOT_RUN, RED
from ..lab import engine
from ..matrix.gate import Gate
from ..matrix.matrix import CompatMatrix
from . import NotApplicable


def main(argv: list[str] | None = None) -> None:
    """Probe every target of the given patches, or only one distribution's; print the results."""
    parser = argparse.ArgumentParser(prog="python -m mlx_patches.probes.child")
    parser.add_argument(
        "--patch", action="append", default=[], help="probe the targets of this patch"
    )
    parser.add_argument("--distribution", help="only the targets of this distribution")
    parser.add_argument("--code", action="store_true", help="only the fingerprint of each target")
    parser.add_argument("--patched", action="store_true")
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # releases print while they run
        rows = list_rows(options)
    json.dump(rows, sys.stdout)
    print()


def list_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    session = activation.session()
    for patch in map(session.registry.get, options.patch):
        manager = Manager(open_gate(patch)) if options.force else session.manager
        # As in apply(), a patch that the user switched off stays off.
        applied = options.patched and (options.force or not session.why_off(patch.id))
        for target in patch.targets:
            if options.distribution not in (None, target.distribution):
                continue
            if options.code:
                rows.append({"patch": patch.id, "target": target.path, "body": _body(target)})
            else:
                rows.append(probe_target(patch, target, manager if applied else None))
        manager.restore([patch.id])
    return rows


def probe_target(patch: Patch, target: Target, manager: Manager | None = None) -> dict[str, Any]:
    """One result: ``verdict`` (red, green, n/a or not-run), ``detail``, ``figure`` and ``body``.

    With a manager, the patch is applied first.
    """
    row: dict[str, Any] = {"patch": patch.id, "target": target.path}
    row["distribution"] = target.distribution
    try:
        row["body"] = _body(target)
        if manager is not None:
            row["applied"] = _apply(patch, target, manager)
        module, name = patch.probe_place
        result = getattr(importlib.import_module(module), name)(target)
        verdict = RED if result.red else GREEN
        row.update(verdict=verdict, detail=result.detail, figure=result.figure)
    except Exception as error:
        package = target.module.partition(".")[0]
        fault = find_fault(error, package)
        is_lacking = isinstance(error, NotApplicable) or is_absent(error, package)
        # mlx-vlm 0.6.0 to 0.6.3 create Metal kernels when they are imported.
        is_other = is_lacking or "No Metal back-end" in str(error)
        verdict = NOT_RUN if fault else NOT_APPLICABLE if is_other else RED
        detail = str(error) if is_lacking else fault or engine.where(error)
        row.update(verdict=verdict, detail=detail, figure=None)
    if manager is not None and patch.id in manager.failures:  # the probe ran unpatched code
        row.update(verdict=RED, detail=manager.failures[patch.id].last, figure=None)
    return row


def _apply(patch: Patch, target: Target, manager: Manager) -> list[str]:
    importlib.import_module(target.module)
    for other in patch.targets:  # a probe may import them later, and they would stay as they are
        if other.distribution == target.distribution:
            with contextlib.suppress(Exception):  # one that needs Metal is not probed here
                importlib.import_module(other.module)
    outcomes = manager.apply(patch)
    failed = [o for o in outcomes if o.status == "failed"]
    if failed:
        raise RuntimeError(failed[0].reason)
    return [str(o.status) for o in outcomes]


def open_gate(*patches: Patch) -> Gate:
    rules = {
        patch.id: {t.distribution: {"affected": ">=0"} for t in patch.targets} for patch in patches
    }
    document = {
        "schema": 1,
        "releases": {},
        "always": [],
        "patches": rules,
        "models": {"default": {}},
        "broken_sets": [],
    }
    return Gate(CompatMatrix(document))


def _body(target: Target) -> str | None:
    """The fingerprint of the release's own code, computed from its file."""
    from ..core.distributions import source_file

    path = source_file(target.module)
    prints = fingerprint.hash_file(path, target.bodies) if path else {}
    ordered = {name: prints[name] for name in target.bodies if name in prints}
    return fingerprint.combine(ordered) if ordered else None


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a thread of MLX that still runs would crash the interpreter's end
