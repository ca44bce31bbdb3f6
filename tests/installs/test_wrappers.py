"""Tracers wrap the patched functions: with the oldest wrapt, the last 1.x, and the newest."""

from pathlib import Path

import pytest

from .conftest import UV, run

TRACERS = ("ddtrace", "opentelemetry-instrumentation")
SETS = {
    "oldest": ("wrapt==1.14.1", "setuptools", "opentelemetry-instrumentation==0.50b0"),
    "last 1.x": ("ddtrace==2.21.0", "opentelemetry-instrumentation==0.50b0", "aiobotocore==2.13.0"),
    "newest": TRACERS,
}
CODE = """
import sys
import mlx_patches, wrapt
from mlx_lm.models.cache import BatchRotatingKVCache as Cache

NAME, ID = "_update_in_place", "rotating-last-chunk"
original = vars(Cache)[NAME]
calls = []

def trace(wrapped, instance, args, kwargs):
    calls.append(1)
    return wrapped(*args, **kwargs)

def wrap():
    if sys.argv[1] == "ddtrace":
        try:
            from ddtrace.contrib.internal.trace_utils import wrap
        except ImportError:
            from ddtrace.contrib.trace_utils import wrap
        wrap(Cache, NAME, trace)
    else:
        wrapt.wrap_function_wrapper(Cache.__module__, f"{Cache.__name__}.{NAME}", trace)

steps = [wrap, lambda: mlx_patches.apply([ID], strict=True)]
for step in steps[:: 1 if sys.argv[2] == "theirs first" else -1]:
    step()
print(sorted({str(one.status) for one in mlx_patches.status() if one.distribution == "mlx-lm"}))
mlx_patches.restore()
if sys.argv[1] == "ddtrace":
    try:
        from ddtrace.contrib.internal.trace_utils import unwrap
    except ImportError:
        from ddtrace.contrib.trace_utils import unwrap
else:
    from opentelemetry.instrumentation.utils import unwrap
unwrap(Cache, NAME)
print(vars(Cache)[NAME] is original)
"""


@pytest.mark.parametrize("name", SETS)
def test_tracers(name, wheel, tmp_path):
    environment = tmp_path / "env"
    python = environment / "bin" / "python"
    run(*UV, "venv", "--quiet", str(environment))
    packages = ("mlx-lm==0.31.3", "mlx[cpu]", wheel, *SETS[name])
    run(*UV, "pip", "install", "--quiet", "--python", str(python), *packages)
    code = Path(tmp_path, "code.py")
    code.write_text(CODE)
    for tracer in TRACERS:
        for order in ("theirs first", "ours first"):
            if tracer in " ".join(SETS[name]):
                out = run(str(python), str(code), tracer, order, DD_TRACE_ENABLED="false")
                assert out.split("\n")[:2] == ["['applied']", "True"], (tracer, order)
