"""Renders a template that reaches Python's modules, compiled as mlx-vlm compiles it."""

from typing import Any

from ....probes.kit import Result, Target, require, require_module

# A name in Python's ``os``, as a template gets it.
_TEMPLATE = "{{ cycler.__init__.__globals__.os.sep }}"
# A call as code of mlx-vlm makes it.
_CALL = "lambda jinja2, text: jinja2.Template(text).render()"


def probe(target: Target) -> Result:
    """Red if the template reads an attribute of the module."""
    require(target)
    jinja2: Any = require_module("jinja2")
    try:
        text = eval(_CALL, {"__name__": "mlx_vlm.probe"})(jinja2, _TEMPLATE)
    except Exception as error:
        return Result(False, f"{type(error).__name__}: {error}"[:200])
    return Result(True, f"the template read os.sep: {text!r}")
