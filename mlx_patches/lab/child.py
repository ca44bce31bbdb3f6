"""Run one family in a separate process: ``python -m mlx_patches.lab.child FAMILY``.

Prints a JSON line after each scenario, so that a crash or a hang loses only the rest. If the
family cannot be built, prints one line with the scenario ``build``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..core.model_files import read_config
from ..evidence import words
from ..evidence.results import BrokenEnvironment, find_fault
from . import RELEASE, Cell, Family, LabModel, NotBuilt

if TYPE_CHECKING:
    from .metal_emulated.journal import Journal

BUILD = "build"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m mlx_patches.lab.child")
    parser.add_argument("family", help="DISTRIBUTION:NAME")
    parser.add_argument("--patched", action="store_true", help="apply the patches first")
    parser.add_argument("--every-patch", action="store_true", help="not only the model's")
    parser.add_argument("--scenario", action="append", help="only this one")
    parser.add_argument("--config", type=Path, help="a model's folder, whose config gets shrunk")
    parser.add_argument("--weights", type=Path, help="a model's folder, whose weights are used")
    parser.add_argument(
        "--dtype", choices=words.DTYPES, default=words.FLOAT32, help="dtype of the weights"
    )
    emulated = "run the branch that Metal takes, and its kernels, on a CPU"
    parser.add_argument("--device", choices=(words.METAL_EMULATED,), help=emulated)
    parser.add_argument("--variant", default="", help="a variant of the family's tiny config")
    parser.add_argument("--reference", help="a scenario that compares it with transformers")
    options = parser.parse_args(argv)
    # Only JSON lines go to stdout; what packages print goes to stderr.
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        run(Family(*options.family.split(":", 1)), options, out)


def run(family: Family, options: argparse.Namespace, out: TextIO) -> None:
    emulate(options.device)
    if options.patched:
        apply(options.every_patch)
    if options.reference:
        from . import reference
        from .images import scenario as images

        of_images = options.reference == images.NAME
        for name, cell in (images.cells if of_images else reference.cells)(family):
            print_cell(out, name, unless_failed(cell, options.patched), device=device())
        return
    if family.name == RELEASE:
        from .release_scenarios import cells as cells_of

        for scenario in options.scenario:
            for name, cell in cells_of(scenario, family.distribution, options.patched):
                print_cell(out, name, unless_failed(cell, options.patched), device=device())
        return
    from .named_scenarios import NAMED
    from .scenarios import SCENARIOS

    scenarios = SCENARIOS | NAMED
    names, place = options.scenario or list(SCENARIOS), {"device": device()}
    try:
        model, blunt = build_family(
            family, options.config, options.weights, options.dtype, options.variant
        )
    except (NotBuilt, BrokenEnvironment) as reason:
        fault = find_fault(reason)
        cell, facts = of_kernels(
            Cell(words.NOT_RUN, fault) if fault else Cell(words.NOT_BUILT, str(reason))
        )
        print_cell(out, BUILD, cell, **place, **facts, dtype=options.dtype)
        return
    for name in names:
        cell, facts = of_kernels(scenarios[name](model))
        if blunt and cell.verdict == words.GREEN:
            cell = replace(cell, verdict=words.INSENSITIVE, detail=blunt)
        cell = unless_failed(cell, options.patched)
        print_cell(out, name, cell, **place, **facts, dtype=model.dtype)


def emulate(device: str | None) -> None:
    """Emulate Metal in this process if it is measured as ``METAL_EMULATED``."""
    if device:
        from .metal_emulated.mac import install

        install()


def apply(every: bool) -> None:
    import mlx_patches

    mlx_patches.apply(patches=every_patch() if every else None)


def device() -> str:
    import mlx.core as mx

    if mx.default_device() == mx.cpu:
        return words.CPU
    if emulate_metal() is not None:
        return words.METAL_EMULATED
    return words.METAL if mx.metal.is_available() else words.CUDA


def emulate_metal() -> Journal | None:
    """The journal of emulated kernels; None if Metal is not emulated."""
    mac = sys.modules.get("mlx_patches.lab.metal_emulated.mac")
    if mac is None or not mac.is_installed():
        return None
    from .metal_emulated.journal import JOURNAL

    return JOURNAL


def of_kernels(cell: Cell) -> tuple[Cell, dict[str, str]]:
    """The cell adjusted for its emulated kernels, and the call sites of the kernels that ran.

    The verdict is ``NOT_EMULATED`` if a kernel could not be emulated, and red if one had undefined
    behavior, even if the output is right. Elements that a kernel never writes stay NaN; reported
    only for red cells, since masked elements may stay unwritten.
    """
    journal = emulate_metal()
    if journal is None:
        return cell, {}
    facts = {"kernels": " ".join(sorted(journal.launched))}
    detail = "; ".join([cell.detail, *(one for one in journal.faults if one not in cell.detail)])
    if journal.not_run:
        cell = Cell(words.NOT_EMULATED, next(iter(journal.not_run)))
    elif journal.faults:
        cell = replace(cell, verdict=words.RED, detail=detail)
    elif journal.unwritten and cell.verdict == words.RED:
        cell = replace(cell, detail=f"{cell.detail}; {next(iter(journal.unwritten))}")
    journal.clear()
    return cell, facts


def first_failure() -> str:
    """The first patch failure in this process; empty if there is none."""
    from ..activation.session import session

    return next((f"{id_} {one}" for id_, one in session().manager.failures.items()), "")


def unless_failed(cell: Cell, patched: bool) -> Cell:
    """The cell; a green one turns red if a patch failed in this process."""
    if patched and cell.verdict == words.GREEN and (failed := first_failure()):
        return replace(cell, verdict=words.RED, detail=failed)
    return cell


def every_patch() -> list[str]:
    """The ids of all patches; the gate still checks each against the installed release."""
    from ..activation.session import session

    return list(session().registry.ids())


def build_family(
    family: Family,
    folder: Path | None = None,
    weights: Path | None = None,
    dtype: str = words.FLOAT32,
    variant: str = "",
) -> tuple[LabModel, str]:
    """The model, and why its green cells prove nothing; empty if they are meaningful."""
    from . import EXACT, engine
    from .build import build, differ, sensitivity
    from .weights import load, run_own_code

    if weights is not None:
        return load(family, weights), ""
    try:
        config = read_config(folder) if folder else None
        if folder and config:
            run_own_code(family, folder, config)
        model = build(family, config=config, dtype=dtype, variant=variant)
        if variant and not differ(model, build(family, dtype=dtype)):
            raise NotBuilt(f"{variant} changes nothing in this family")
        moved = sensitivity(model)
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(engine.where(error)) from error
    # If a token moves the logits by less than the tolerance, a green cell proves nothing.
    if moved > max(10 * EXACT.logits, model.tolerance.logits):
        return model, ""
    return model, f"the logits hardly depend on earlier tokens: {moved:.2g} of their scale"


def print_cell(out: TextIO, name: str, cell: Cell, **place: str) -> None:
    figure = cell.figure if cell.figure is None or math.isfinite(cell.figure) else None
    line: dict[str, Any] = {"scenario": name, "verdict": cell.verdict}
    line.update(detail=cell.detail, figure=figure, **place)
    print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()
