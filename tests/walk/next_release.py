"""Code under another number, and other code under a known number: the code decides."""

from dataclasses import replace
from pathlib import Path

from .condition import MLX_LM, command, journey, python, step
from .things import copy_package

HELIUM = ("class Model(", "CHANGED = True\n\n\nclass Model(")
RENUMBERED = copy_package("mlx_lm", "0.33.0")
CACHE = ("def make_prompt_cache(", "CHANGED = True\n\n\ndef make_prompt_cache(")
EDITED = copy_package("mlx_lm", cache=CACHE)
MAMBA = (
    "def __call__(self, inputs: mx.array, cache=None):",
    "def __call__(self, inputs, cache=None):",
)


def split(package: Path) -> None:
    """Move the batch caches into another file, as a release may."""
    file = package / "models" / "cache.py"
    lines = file.read_text().splitlines()
    heads = {line: number for number, line in enumerate(lines)}
    first, last = heads["class BatchKVCache(_BaseCache):"], heads["@dataclass"]
    imports = lines[: heads["def make_prompt_cache("]]
    names = "KVCache, QuantizedKVCache, RotatingKVCache, _BaseCache, create_attention_mask"
    moved = [*imports, f"from .cache import {names}, dynamic_roll", *lines[first:last]]
    lines[first:last] = ["from .batches import BatchKVCache, BatchRotatingKVCache"]
    file.write_text("\n".join(lines))
    file.with_name("batches.py").write_text("\n".join(moved))


def rename_class(package: Path) -> None:
    """Give a class another name, wherever it is used."""
    for file in package.rglob("*.py"):
        text = file.read_text()
        file.write_text(text.replace("BatchRotatingKVCache", "BatchWindowKVCache"))


APPLIED = """
import warnings
warnings.simplefilter("error")
import mlx_patches
mlx_patches.apply()
import mlx_lm.server, mlx_lm.models.mamba, mlx_lm.models.jamba
found = {}
for one in mlx_patches.status():
    found.setdefault(str(one.status), set()).add(one.target)
for name in ("mamba", "jamba"):
    path = f"mlx_lm.models.{name}:Model.__call__"
    print(name, [status for status, targets in found.items() if path in targets])
"""

AGREE = """
import importlib, sys, mlx_patches
mlx_patches.apply()
read = {(o.patch, o.target): str(o.status) for o in mlx_patches.audit().outcomes}
for module in sorted({target.partition(":")[0] for _, target in read}):
    try:
        importlib.import_module(module)
    except ImportError:
        pass
count = 0
for one in mlx_patches.status():
    by_file = read[one.patch, one.target]
    count += one.status == "applied"
    known = one.target.partition(":")[0] in sys.modules
    if known and by_file != str(one.status).replace("applied", "pending"):
        print("differs:", one.patch, one.target, one.status, one.reason, "and by its file", by_file)
print("applied", count)
"""

_CONDITIONS = [
    command(
        "known code under a new number",
        "audit",
        code=1,
        first="52 known defects",
        also=r"mlx-lm 0\.33\.0: 53 of 126 model families wrong as released .*all repaired",
        never=("drifted", "different code"),
        files=RENUMBERED,
    ),
    python(
        "process with an edited model",
        APPLIED,
        also=(r"mamba \['drifted'\]", r"jamba \['applied'\]"),
        files=copy_package("mlx_lm", "0.33.0", mamba=MAMBA),
        imports_mlx=True,
        seconds=60.0,
    ),
    *(
        python(
            f"audit and process agree: {what}",
            AGREE,
            also=rf"applied {count}\b",
            never="differs",
            files=files,
            imports_mlx=True,
            seconds=60.0,
        )
        for what, count, files in (
            ("release", 130, {}),
            ("known code under a new number", 139, RENUMBERED),
            ("file split in two", r"\d{2,3}", copy_package("mlx_lm", "0.33.0", split)),
            ("renamed class", r"\d{2,3}", copy_package("mlx_lm", "0.33.0", rename_class)),
            ("edited caches under a known number", r"\d{2,3}", EDITED),
        )
    ),
    command(
        "patch without its class is named",
        "audit",
        code=1,
        also=(
            r"mlx-lm 0\.33\.0: not measured; .*; it lacks the code that [\w-]+, ",
            r"Next: +install mlx-lm 0\.32\.2, or upgrade mlx-patches",
        ),
        never="drifted",
        files=copy_package("mlx_lm", "0.33.0", rename_class),
    ),
    journey(
        "edited model in an enabled environment",
        step("mlx-patches enable", first="enabled: "),
        step(
            "mlx-patches audit",
            code=2,
            first=r"1 of \d+ known defects of the installed releases is not repaired here",
            also=(
                r"\d+ famil(?:y|ies) not measured \(1 with different code\)",
                r" [\w-]+ +drifted: ",
                r"Next: +install mlx-lm 0\.32\.2, or upgrade mlx-patches",
            ),
        ),
        step(
            "mlx-patches audit --model mamba",
            code=2,
            first=r"mamba was not measured in mlx-lm 0\.33\.0: its code is new: mlx_lm\.models\.m",
            also=r" [\w-]+ +drifted: ",
        ),
        step("mlx-patches audit --model qwen3", first="qwen3 is right"),
        files=copy_package("mlx_lm", "0.33.0", mamba=MAMBA),
    ),
    journey(
        "edited model without defects in an enabled environment",
        step("mlx-patches enable", first="enabled: "),
        step(
            "mlx-patches audit",
            code=2,
            first="All 54 known defects are repaired here, but some of the code was not measured",
            also=r"\d+ famil(?:y|ies) not measured \(1 with different code\)",
        ),
        files=copy_package("mlx_lm", helium=HELIUM),
    ),
]
# Each is a copy of this release, or the release itself.
CONDITIONS = [replace(one, where=[MLX_LM]) for one in _CONDITIONS]
