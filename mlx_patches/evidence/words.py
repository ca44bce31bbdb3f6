"""The words for cells and families that the lab, its evidence and their readers share."""

from __future__ import annotations

from typing import NamedTuple

GREEN, RED = "green", "red"
INSENSITIVE, NOT_BUILT = "insensitive", "not-built"

# Where a cell was measured: the dtype of the weights, and the device that MLX computed on.
FLOAT32, BFLOAT16 = "float32", "bfloat16"
DTYPES = (FLOAT32, BFLOAT16)
CPU, CUDA, METAL = "cpu", "cuda", "metal"
DEVICES = {CPU: "a CPU", CUDA: "CUDA", METAL: "Metal"}

# The variants of tiny configs; ``lab.variants`` says what each changes.
VARIANTS = (
    "linear",
    "dynamic",
    "llama3",
    "yarn",
    "longrope",
    "full-attention",
    "own-keys",
    "tied",
    "untied",
    "sinks",
    "dense",
    "experts",
)

# The verdict on one scenario, the worst first: a family has the verdict of its worst cell.
NOT_APPLICABLE = "n/a"
VERDICTS = (RED, NOT_BUILT, INSENSITIVE, GREEN, NOT_APPLICABLE)
# A cell of the evidence is a letter.
LETTERS = {GREEN: "g", RED: "r", NOT_APPLICABLE: "n", INSENSITIVE: "i", NOT_BUILT: "x"}

# A family's fate in a release set: ``repaired`` is red without the patches, green with them.
# ``cannot-batch``: no scenario with several rows applies to it.
REPAIRED, CANNOT_BATCH = "repaired", "cannot-batch"
FATES = (GREEN, REPAIRED, RED, CANNOT_BATCH, INSENSITIVE, NOT_BUILT)

# The word for each fate in the audit, the recommendation and the report page.
RIGHT, WRONG, NOT_MEASURED = "right", "wrong", "not measured"
WORDS = {
    GREEN: RIGHT,
    REPAIRED: "repaired",
    RED: WRONG,
    CANNOT_BATCH: "cannot batch",
    INSENSITIVE: NOT_MEASURED,
    NOT_BUILT: NOT_MEASURED,
}

# What a defect does to a user, the worst first; ``feature``: something is refused or slow, or a
# setting that few use does not work in a batch.
WRONG_TEXT, CRASH, MEMORY, SECURITY, FEATURE = (
    "wrong-text",
    "crash",
    "memory",
    "security",
    "feature",
)
SEVERITIES = (WRONG_TEXT, CRASH, MEMORY, SECURITY, FEATURE)
FAIL_ON = frozenset({WRONG_TEXT, CRASH, SECURITY})


class Scenario(NamedTuple):
    """A scenario of the lab, as it is described to users.

    Args:
        words: what a server does in it.
        severity: the severity of a red cell; a red cell with an exception is a ``crash``.
        batch: several rows run together.
    """

    words: str
    severity: str = WRONG_TEXT
    batch: bool = True


SCENARIOS = {
    "left-padded": Scenario("unequal prompts, left-padded"),
    "right-padded": Scenario("unequal prompts, right-padded"),
    "equal-lengths": Scenario("equal prompts"),
    "chunked-solo": Scenario("one prompt alone, in pieces", batch=False),
    "chunked-batch": Scenario("prompts in pieces"),
    "merge": Scenario("prompts merged into a batch"),
    "extend": Scenario("a request that joins"),
    "filter": Scenario("a request that leaves"),
    "extract-early": Scenario("a request taken out early"),
    "extract-late": Scenario("a request taken out late"),
    "trim": Scenario("a batch that steps back"),
    "state": Scenario("a saved and restored batch"),
    "history": Scenario("prompts on top of cached ones"),
    "last-piece": Scenario("prompts on top of cached ones, in pieces"),
    "rope-deltas": Scenario("an image beside text"),
    "images": Scenario("several images"),
    "quantized-8": Scenario("8-bit keys and values"),
    "quantized-4": Scenario("4-bit keys and values"),
    "engine": Scenario("the release's own batch engine"),
    "processors": Scenario("logits processors of some requests"),
    "samplers": Scenario("samplers of some requests"),
    "leaves": Scenario("a client that leaves the engine"),
    "engine-images": Scenario("several images in the engine"),
    "max-kv-size": Scenario("max_kv_size in a batch", FEATURE),
    "growth": Scenario("memory over many tokens", MEMORY),
    "cache-dtype": Scenario("the caches' dtype as a request joins", MEMORY),
    "batch-generate": Scenario("batch_generate"),
    "batch-generate-images": Scenario("batch_generate with images"),
    # The lab's process ended before all scenarios had run.
    "process": Scenario("the whole run", CRASH, batch=False),
}


# The scenarios of the release's own engine and batch functions, which a host may not use.
ENGINE = frozenset(
    {
        *("engine", "engine-images", "processors", "samplers", "leaves", "max-kv-size"),
        *("batch-generate", "batch-generate-images"),
    }
)


def scenario(name: str) -> Scenario:
    """The scenario of a cell's name; an unknown one is described by its name."""
    base, _, place = name.partition("@")
    found = SCENARIOS.get(base, Scenario(base))
    return found._replace(words=f"{found.words} ({place})") if place else found


def scenario_order(name: str) -> tuple[int, str]:
    """A sort key for cells: in the order of ``SCENARIOS``, a CPU's in float32 first."""
    base, _, place = name.partition("@")
    known = list(SCENARIOS)
    return known.index(base) if base in SCENARIOS else len(known), place


def cell_name(scenario: str, device: str, dtype: str) -> str:
    """The name of a cell: its scenario, and the device and dtype if not a CPU in float32.

    ``left-padded``, ``left-padded@bfloat16``, ``left-padded@metal``, ``left-padded@cuda bfloat16``.
    """
    place = [one for one, plain in ((device, CPU), (dtype, FLOAT32)) if one != plain]
    return f"{scenario}@{' '.join(place)}" if place else scenario


def place_of(name: str) -> tuple[str, str, str]:
    """The scenario, the device and the dtype in a cell's name."""
    base, _, place = name.partition("@")
    parts = place.split()
    device = next((one for one in parts if one in DEVICES), CPU)
    return base, device, next((one for one in parts if one in DTYPES), FLOAT32)


def word_of(fate: str) -> str:
    """The word for a family's fate; "not measured" for an unknown one."""
    return WORDS.get(fate, NOT_MEASURED)
