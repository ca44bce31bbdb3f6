"""The vocabulary of cells, shared by the lab, its evidence and their readers.

A cell is one scenario of one family. It has two *results*, without the patches and, if measured,
with them; the evidence stores a pair of letters. A red cell has a *severity*. The cells of a family
determine its result, and the result its *verdict*, which users read.
"""

import logging
import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple

from ..core.errors import MlxPatchesError

logger = logging.getLogger("mlx_patches")

GREEN, RED = "green", "red"
INSENSITIVE, NOT_BUILT = "insensitive", "not-built"
NOT_RUN, NOT_EMULATED = "not-run", "not-emulated"

# Where a cell was measured: the dtype of the weights, and the device that MLX computed on.
FLOAT32, BFLOAT16 = "float32", "bfloat16"
DTYPES = (FLOAT32, BFLOAT16)
CPU, CUDA, METAL = "cpu", "cuda", "metal"
# Metal-only code with emulated kernels on a CPU, which never counts as Metal.
METAL_EMULATED = "metal-emulated"
DEVICES = {
    CPU: "a CPU",
    CUDA: "CUDA",
    METAL: "Metal",
    METAL_EMULATED: "Metal-only code, emulated on a CPU",
}

# The variants of tiny configs, described in ``lab.variants``.
VARIANTS = (
    *("linear", "dynamic", "llama3", "yarn", "longrope", "full-attention", "own-keys"),
    *("tied", "untied", "sinks", "dense", "experts"),
)

# The results of a cell, the worst first, and their letters in the evidence. Two have none: of
# ``NOT_RUN`` the environment is at fault, and no evidence is written; of ``NOT_EMULATED`` a kernel,
# and the evidence lacks the cell.
NOT_APPLICABLE = "n/a"
RESULTS = (RED, NOT_RUN, NOT_EMULATED, NOT_BUILT, INSENSITIVE, GREEN, NOT_APPLICABLE)
LETTERS = {GREEN: "g", RED: "r", NOT_APPLICABLE: "n", INSENSITIVE: "i", NOT_BUILT: "x"}

# The results of a family in a release set: ``repaired`` is red without the patches, green with
# them. ``cannot-batch``: no scenario with several rows applies.
REPAIRED, CANNOT_BATCH = "repaired", "cannot-batch"
FAMILY_RESULTS = (GREEN, REPAIRED, RED, CANNOT_BATCH, INSENSITIVE, NOT_BUILT)

# The verdict for each of them, in the audit, the recommendation and the report page.
RIGHT, WRONG, NOT_MEASURED = "right", "wrong", "not measured"
VERDICTS = {GREEN: RIGHT, REPAIRED: "repaired", RED: WRONG, CANNOT_BATCH: "cannot batch"}

# The effect of a defect on users, the worst first; ``feature``: something is rejected or slow, or
# a rarely used setting does not work in a batch.
SEVERITIES = ("wrong-text", "crash", "memory", "security", "feature")
WRONG_TEXT, CRASH, MEMORY, SECURITY, FEATURE = SEVERITIES
FAIL_ON = frozenset({WRONG_TEXT, CRASH, SECURITY})


def choose_severities(names: Collection[str]) -> frozenset[str]:
    """These severities; ``any`` stands for all of them."""
    if unknown := [one for one in names if one not in (*SEVERITIES, "any")]:
        raise MlxPatchesError(f"no severity {unknown[0]!r}; use {', '.join(SEVERITIES)} or any")
    return frozenset(SEVERITIES if "any" in names else names)


# How a cell's detail starts if the cell raised.
_RAISED = re.compile(r"\w+(Error|Exception|Interrupt|Warning)\b")


class Scenario(NamedTuple):
    """A scenario of the lab, as described to users.

    Args:
        words: what a server does in it.
        severity: the severity of a red cell; a red cell with an exception is a ``crash``.
        batch: several rows run together.
        engine: it tests the release's own engine or batch functions, which a host may not use.
    """

    words: str
    severity: str = WRONG_TEXT
    batch: bool = True
    engine: bool = False


SCENARIOS = {
    "left-padded": Scenario("unequal prompts, left-padded"),
    "right-padded": Scenario("unequal prompts, right-padded"),
    "equal-lengths": Scenario("equal prompts"),
    "chunked-solo": Scenario("a single prompt, chunked prefill", batch=False),
    "chunked-batch": Scenario("chunked prefill"),
    "merge": Scenario("prompts merged into a batch"),
    "extend": Scenario("a request that joins"),
    "filter": Scenario("a request that leaves"),
    "extract-early": Scenario("a row extracted early"),
    "extract-late": Scenario("a row extracted late"),
    "trim": Scenario("a trimmed batch"),
    "state": Scenario("a saved and restored batch"),
    "history": Scenario("prompts with a cached prefix"),
    "last-chunk": Scenario("prompts with a cached prefix, chunked prefill"),
    "rope-deltas": Scenario("image and text prompts"),
    "images": Scenario("several images"),
    "quantized-8": Scenario("8-bit keys and values"),
    "quantized-4": Scenario("4-bit keys and values"),
    "engine": Scenario("the release's own batch engine", engine=True),
    "processors": Scenario("logits processors for some requests", engine=True),
    "samplers": Scenario("samplers for some requests", engine=True),
    "leaves": Scenario("a request cancelled in the engine", engine=True),
    "engine-images": Scenario("several images in the engine", engine=True),
    "max-kv-size": Scenario("max_kv_size in a batch", FEATURE, engine=True),
    "growth": Scenario("memory growth over many tokens", MEMORY),
    "cache-dtype": Scenario("the cache dtype when a request joins", MEMORY),
    "batch-generate": Scenario("batch_generate", engine=True),
    "batch-generate-images": Scenario("batch_generate with images", engine=True),
    # The lab's process exited before all scenarios had run.
    "process": Scenario("the whole run", CRASH, batch=False),
}
# Former ids of scenarios, which commands and files may still have, to the current ones.
FORMERLY = {
    "last-piece": "last-chunk",
    "features-in-pieces": "features-chunked",
    "features-alone": "features-solo",
}


@cache  # one line per id
def current_id(name: str) -> str:
    """The current id for a former one, with a warning; any other name unchanged."""
    if name in FORMERLY:
        logger.warning("mlx_patches: the scenario %s was renamed to %s", name, FORMERLY[name])
    return FORMERLY.get(name, name)


@cache
def scenario(name: str) -> Scenario:
    """The scenario of a cell's name; an unknown one is described by its name."""
    base, _, place = name.partition("@")
    found = SCENARIOS.get(base, Scenario(base))
    return found._replace(words=f"{found.words} ({place})") if place else found


def scenario_order(name: str) -> tuple[int, str]:
    """A sort key for cells: the order of ``SCENARIOS``, a CPU in float32 first."""
    base, _, place = name.partition("@")
    known = list(SCENARIOS)
    return known.index(base) if base in SCENARIOS else len(known), place


def cell_name(scenario: str, device: str, dtype: str) -> str:
    """The name of a cell: its scenario, and the device and dtype if not a CPU in float32.

    ``left-padded``, ``left-padded@bfloat16``, ``left-padded@metal``, ``left-padded@cuda bfloat16``.
    """
    place = [one for one, plain in ((device, CPU), (dtype, FLOAT32)) if one != plain]
    return f"{scenario}@{' '.join(place)}" if place else scenario


@cache
def place_of(name: str) -> tuple[str, str, str]:
    """The scenario, the device and the dtype in a cell's name."""
    base, _, place = name.partition("@")
    parts = place.split()
    device = next((one for one in parts if one in DEVICES), CPU)
    return base, device, next((one for one in parts if one in DTYPES), FLOAT32)


def is_red(pair: str) -> bool:
    """Whether a cell is red with the patches, or is red and was not measured with them."""
    return pair in ("r", "rr", "gr", "nr")


def severity_of(name: str, detail: str) -> str:
    """The severity of a red cell, by its scenario, and by its detail if it raised."""
    own = scenario(name).severity
    return CRASH if own in (WRONG_TEXT, MEMORY) and _RAISED.match(detail) else own


def family_result(pairs: Mapping[str, str]) -> str:
    """The result of a family, by its cells.

    Scenarios of severity ``feature`` are ignored: a family that is right in all others is right,
    and the verdict names these scenarios.
    """
    if any(pair[0] == "x" for pair in pairs.values()):
        return NOT_BUILT
    counted = [pair for name, pair in pairs.items() if scenario(name).severity != FEATURE]
    if any(map(is_red, counted)):
        return RED
    # The release or a patch refuses the batch.
    refused = all(pair[-1] == "n" for name, pair in pairs.items() if scenario(name).batch)
    if refused and not any(pair == "rg" for pair in counted):
        return CANNOT_BATCH
    if any(pair[0] == "r" for pair in counted):
        return REPAIRED
    return INSENSITIVE if any(pair[0] == "i" for pair in counted) else GREEN


def verdict_of(result: str) -> str:
    return VERDICTS.get(result, NOT_MEASURED)
