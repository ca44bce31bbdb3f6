"""Evidence that was measured on one Python holds on the others: fingerprints are the same.

The nox session `pythons` runs this file: it names the interpreters, and the releases' folders.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# A Python version to the start of its command line.
PYTHONS = json.loads(os.environ["MLX_PATCHES_PYTHONS"])
FOLDERS = os.environ["MLX_PATCHES_SOURCES"].split(os.pathsep)
# The tests without MLX that need no process, no thread and no network, which Pyodide lacks.
UNITS = ("fingerprint", "gate", "store", "verbs")


def run(command, *arguments):
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def hash_files(command):
    return json.loads(run(command, str(HERE / "hashes.py"), str(ROOT), *FOLDERS))


@pytest.fixture(scope="module")
def here():
    return hash_files([sys.executable])


@pytest.mark.parametrize("version", PYTHONS)
def test_fingerprints_are_the_same(here, version):
    found = hash_files(PYTHONS[version])
    assert found["python"].startswith(f"{version}.")
    assert found["functions"] == here["functions"] > 10_000
    assert found["files"] == here["files"]


@pytest.mark.parametrize("version", PYTHONS)
def test_units(version):
    tests = [str(ROOT / "tests" / "unit" / f"test_{name}.py") for name in UNITS]
    printed = run(PYTHONS[version], str(HERE / "units.py"), str(ROOT), *tests)
    assert " passed" in printed, printed
