"""Renders a template that reaches Python's modules, compiled as mlx-vlm compiles it."""

from __future__ import annotations

from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import imported, require

# A name in Python's ``os``, as a template gets it.
_TEMPLATE = "{{ cycler.__init__.__globals__.os.sep }}"
# A call as code of mlx-vlm makes it.
_CALL = "lambda jinja2, text: jinja2.Template(text).render()"


def probe(target: Target) -> Result:
    """Red if the template reads an attribute of the module."""
    require(target)
    jinja2: Any = imported("jinja2")
    try:
        text = eval(_CALL, {"__name__": "mlx_vlm.probe"})(jinja2, _TEMPLATE)
    except Exception as error:
        return Result(False, f"{type(error).__name__}: {error}"[:200])
    return Result(True, f"the template read os.sep: {text!r}")
