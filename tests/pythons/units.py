"""Runs tests: python units.py ROOT TEST...."""

import os
import sys
from pathlib import Path

root, *tests = sys.argv[1:]
site = Path(__file__).parents[2] / ".nox" / "pyodide" / "site"
sys.path[:0] = [root, f"{root}/tools"]
if sys.platform == "emscripten":
    sys.path.append(str(site))
os.chdir(root)

import pytest  # noqa: E402

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
