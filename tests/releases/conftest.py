"""Tests that need a real release: each environment runs them on its installed releases."""

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

import mlx_patches
from mlx_patches.activation.session import Session
from mlx_patches.auditing.audit import judge_file
from mlx_patches.core.distributions import source_file
from mlx_patches.core.manager import Manager
from mlx_patches.core.outcome import Verdict
from mlx_patches.core.patch import Attribute, Patch, Target
from mlx_patches.lab import child
from mlx_patches.lab.kernels import kernel_folder
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue
from mlx_patches.probes import NotApplicable, Result
from mlx_patches.probes.child import open_gate

# Each worker compiles MLX's kernels in its own temporary folder.
KERNELS = ExitStack()
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["TMPDIR"] = str(KERNELS.enter_context(kernel_folder()))
ONLY = "MLX_PATCHES_TEST_ONLY"
# The number of a patch's targets that `make test-all` tries in one release; the evidence of the
# patch has all of them, and the session `whole` tries the remaining ones.
SAMPLE = 3
OURS = str(Path(mlx_patches.__file__).parent)
REMAINING = [pytest.mark.slow, pytest.mark.remaining]
# Their probes take as long as those of all others: `make test` leaves them to `make test-rest`.
SLOW = (
    *("aya-masks", "command-vision-norm", "cross-attention-rows", "deepstack-rows"),
    *("granite4-features", "granite4-images", "image-prompts", "image-rows", "images-apart"),
    *("minimax-m3-batch", "mistral-row-scale", "omni-positions", "ring-cache-batching"),
    *("rope-deltas", "vlm-model-swap", "vlm-request-adapter"),
)


@functools.cache
def is_installed(distribution: str) -> bool:
    return importlib.util.find_spec(distribution.replace("-", "_")) is not None


def is_tested(distribution: str) -> bool:
    """Whether targets of a distribution are tested here.

    ``MLX_PATCHES_TEST_ONLY`` names the only distribution to test; others have their own sets.
    """
    return is_installed(distribution) and distribution == os.environ.get(ONLY, distribution)


@functools.cache
def sample_targets(patch: Patch) -> list[Target]:
    """The targets at which `make test-all` tries a patch: the first few that this release has."""
    here = [t for t in patch.targets if is_tested(t.distribution) and source_file(t.module)]
    return here[:SAMPLE]


def every_target() -> list[ParameterSet]:
    """(patch, target) for each target of a tested distribution, as pytest parameters."""
    return [
        pytest.param(
            patch,
            target,
            id=f"{patch.id}-{target.path}",
            marks=list_marks(patch) if target in sample else REMAINING,
        )
        for patch in catalogue.builtin()
        for sample in [sample_targets(patch)]
        for target in patch.targets
        if is_tested(target.distribution)
    ]


def list_marks(patch: Patch) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if patch.id in SLOW else []


def targets_of_patches() -> list[ParameterSet]:
    """(patch, targets) as pytest parameters, up to two for each patch.

    One has the sampled targets, the other the remaining targets of tested distributions.
    """
    found = []
    for patch in catalogue.builtin():
        sample = sample_targets(patch)
        others = [t for t in patch.targets if is_tested(t.distribution) and t not in sample]
        if sample:
            found.append(pytest.param(patch, sample, id=patch.id, marks=list_marks(patch)))
        if others:
            name = f"{patch.id}-others"
            found.append(pytest.param(patch, others, id=name, marks=REMAINING))
    return found


def every_patch() -> list[ParameterSet]:
    return [
        pytest.param(patch, id=patch.id)
        for patch in catalogue.builtin()
        if any(is_tested(target.distribution) for target in patch.targets)
    ]


def run_probe(patch: Patch, target: Target) -> Result | NotApplicable:
    """A probe's result in this process; an exception is red."""
    module, name = patch.probe_place
    try:
        return getattr(importlib.import_module(module), name)(target)
    except (NotApplicable, ModuleNotFoundError) as answer:
        return NotApplicable(str(answer))
    except Exception as error:
        return Result(True, f"{type(error).__name__}: {error}")


def verdict(patch: Patch, target: Target) -> Verdict:
    """The gate's verdict on a target, by the committed matrix."""
    return judge_file(Session(catalogue.builtin(), CompatMatrix.builtin()), patch, target)


def is_needed(patch_id: str, distribution: str = "") -> bool:
    """Whether a release here, or that of one distribution, needs a patch.

    None needs a patch that was deleted.
    """
    if patch_id not in catalogue.builtin():
        return False
    patch = catalogue.builtin().get(patch_id)
    own = [t for t in patch.targets if distribution in ("", t.distribution)]
    return any(verdict(patch, target).ok for target in own)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers in every test, whichever tests ran before."""
    if "mlx.core" in sys.modules:
        sys.modules["mlx.core"].random.seed(0)


@functools.cache
def places() -> list[tuple[str, str]]:
    """The module and the name of each target of each patch."""
    targets = (target for patch in catalogue.builtin().each_declared() for target in patch.targets)
    return sorted({(t.module, t.name) for t in targets if is_installed(t.distribution)})


def list_patched() -> list[str]:
    """The targets at which code of ours is in effect."""
    found = []
    for module, name in places():
        here: object = sys.modules.get(module)
        for part in name.split("."):
            here = getattr(here, "__dict__", {}).get(part)
        here = getattr(here, "fget", None) or getattr(here, "__func__", here)
        code = getattr(here, "__code__", None)
        if isinstance(here, Attribute) or (code and code.co_filename.startswith(OURS)):
            found.append(f"{module}:{name}")
    return found


# Patches that a failed test left: later tests need not fail too.
_left: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A test that leaves a patch in effect fails: another test would meet it."""
    yield
    new = set(list_patched()) - _left
    _left.update(new)
    assert not new


@pytest.fixture
def ungated() -> Iterator[Callable[..., Manager]]:
    """Applies patches, or patch ids, without the gate, and removes them after the test."""
    managers: list[Manager] = []
    registry = catalogue.builtin()

    def apply(*given: Patch | str) -> Manager:
        patches = [registry.get(one) if isinstance(one, str) else one for one in given]
        managers.append(Manager(open_gate(*patches), registry))
        for patch in patches:
            for target in patch.targets:
                if is_installed(target.distribution) and source_file(target.module):
                    importlib.import_module(target.module)
            managers[-1].apply(patch)
        return managers[-1]

    yield apply
    # Two patches may have a layer at one attribute: the one applied last is taken out first.
    for manager in reversed(managers):
        manager.restore()


@pytest.fixture
def beside(ungated: Callable[..., Manager]) -> Callable[..., Manager]:
    """Applies the patches of other defects that a test would meet; deleted ones are skipped."""
    registry = catalogue.builtin()
    return lambda *ids: ungated(*(id_ for id_ in ids if id_ in registry))


@pytest.fixture(params=["mlx-lm", "mlx-vlm"])
def distribution(request: pytest.FixtureRequest) -> str:
    """Each of the two packages that is tested here."""
    if not is_tested(request.param):
        pytest.skip("this set tests another package")
    return str(request.param)


@pytest.fixture
def patched() -> Iterator[None]:
    """Has every patch of the lab in effect that the installed releases need."""
    mlx_patches.apply(patches=child.every_patch())
    yield
    mlx_patches.restore()


@pytest.fixture
def device_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places from which ``tolist`` and ``item`` of an array are called during the test."""
    import mlx.core as mx

    reads: list[str] = []

    def counting(original: Callable[..., object]) -> Callable[..., object]:
        def read(array: object) -> object:
            frame = sys._getframe(1)
            reads.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            return original(array)

        return read

    for name in ("tolist", "item"):
        monkeypatch.setattr(mx.array, name, counting(getattr(mx.array, name)))
    return reads
