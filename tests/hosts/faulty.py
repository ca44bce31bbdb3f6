"""Contributed patches that fail in every call; test_faults.py installs them next to hosts.

The module is copied to a separate folder. An environment variable has each patch's failure and
target.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from mlx_patches.plugin import Contribution, Patch, Target, around

Call = Callable[..., Any]
# The variable: a JSON list with [id, way to fail, distribution, module, attribute] of each patch.
FAULTS = "TESTS_FAULTS"


def before(original: Call, *args: Any, **kwargs: Any) -> Any:
    raise ValueError("before the original")


def after(original: Call, *args: Any, **kwargs: Any) -> Any:
    original(*args, **kwargs)
    raise ValueError("after the original")


def twice(original: Call, *args: Any, **kwargs: Any) -> Any:
    original(*args, **kwargs)
    original(*args, **kwargs)
    raise ValueError("after the original, twice")


def change(original: Call, instance: Any, *args: Any) -> Any:
    original(instance, *reversed(args))
    raise ValueError("after the original, with other arguments")


def none(original: Call, *args: Any, **kwargs: Any) -> Any:
    return None


def leave(original: Call, *args: Any, **kwargs: Any) -> Any:
    raise SystemExit("before the original")


def recurse(original: Call, *args: Any, **kwargs: Any) -> Any:
    return recurse(original, *args, **kwargs)


def enter_again(name: str) -> Call:
    """A layer that calls the patched method again, and so itself, without end."""

    def layer(original: Call, instance: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(instance, name)(*args, **kwargs)

    return layer


def contribution(id_: str, how: str, distribution: str, module: str, name: str) -> Contribution:
    method = name.rpartition(".")[2]
    wrapper = enter_again(method) if how == "enter_again" else globals()[how]
    patch = Patch(
        id=id_,
        summary="the fault of a test",
        targets=(Target(distribution, module, name, around(wrapper)),),
        probe=f"{__name__}:probe",
        module=__name__,
    )
    return Contribution(patch, affected={distribution: ">=0"})


REQUEST, STEP = (contribution(*one) for one in json.loads(os.environ[FAULTS]))
