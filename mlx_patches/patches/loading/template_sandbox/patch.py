"""mlx-lm, mlx-vlm: a chat template runs Python code (six families) or hangs.

Why: A chat template is a program in jinja2. transformers compiles it in a sandbox. The processors
    of Kimi-VL, Phi-3 Vision, Molmo, Molmo2, ERNIE 4.5 VL and LocateAnything in mlx-vlm do not:
    their templates reach ``os.system``, without any consent. And nothing bounds a template, in
    transformers either: nested loops freeze a server on its first request.
How: A template that a release, a host or transformers compiles is compiled with the same settings
    in jinja2's immutable sandbox, whether code of the folder has consent or not. A render may use a
    second of processor time and make 1 MiB of text, and 100 seconds and 16 MB more per MB that it
    is given. Beyond these, or if the sandbox refuses an attribute, it raises jinja2's
    SecurityError, and servers answer 400. This depends on the name of one function of jinja2, so it
    holds in every release. Templates that other packages compile do not change.
Upstream: Not fixed in mlx-vlm 0.7.10 and transformers 5.20.2.
Retire when: No supported release compiles a template outside of a sandbox, and transformers bounds
    them.
"""

import sys
from typing import Any

from ....core.errors import is_refusal
from ....core.verbs import Function, Patch, wrap
from ..._shared.callers import RELEASES, callers
from ..._shared.targets import SAFE_LIMIT
from .bounds import ID, stop_error_class

# Between jinja2's function and the code that compiles a template.
_BETWEEN = frozenset({"jinja2", "mlx_patches"})
# transformers compiles the templates of most models, and runs the code of folders.
_COMPILE = RELEASES | {"transformers", "transformers_modules"}


def compile_in_sandbox(
    compile_template: Function, environment: Any, source: Any, *args: Any, **kwargs: Any
) -> Any:
    """jinja2's ``Environment.from_string``, which ``Template(...)`` calls as well."""
    if not is_chat_template():
        return compile_template(environment, source, *args, **kwargs)
    from .environment import limit_render, make_sandbox

    template = compile_template(make_sandbox(environment), source, *args, **kwargs)
    return limit_render(template, source)


def is_chat_template() -> bool:
    """Whether the code that compiles the current template is a release's or transformers'."""
    packages = (module.partition(".")[0] for module, _ in callers())
    return next((one for one in packages if one not in _BETWEEN), "") in _COMPILE


def answer_refusal(put: Function, handler: Any, status_code: int = 200) -> Any:
    """mlx_lm.server answers each error of a request with 404; a stopped template gets 400."""
    error = sys.exc_info()[1]
    if error is not None and is_refusal(error) and isinstance(error, stop_error_class()):
        status_code = 400
    return put(handler, status_code)


PATCH = Patch(
    id=ID,
    **SAFE_LIMIT,
    targets=(
        *wrap("jinja2.environment:Environment.from_string", compile_in_sandbox),
        *wrap("mlx_lm.server:APIHandler._set_completion_headers", answer_refusal, supports=True),
    ),
)
