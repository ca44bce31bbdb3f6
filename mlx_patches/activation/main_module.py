"""Runs a watched module as ``__main__``, for ``python -m`` and ``runpy``.

Python would execute a second copy of the module's code, which no patch reaches. Instead, the module
is imported under its own name, as its console script does, and then only the body of its
``if __name__ == "__main__":`` is executed in the module's namespace.
"""

import ast
from importlib import import_module
from types import CodeType
from typing import Any

_GUARDS = ("__name__ == '__main__'", "'__main__' == __name__")
# A module's name to the code of its guarded statements.
_mains: dict[str, CodeType] = {}


def code_of(name: str, loader: Any) -> CodeType | None:
    """The code to execute in place of a module's; None if it has no source or no guard."""
    try:
        body = ast.parse(loader.get_source(name) or "").body
    except Exception:  # not text, or not Python: the module's loader reports it
        return None
    found = [
        statement
        for node in body
        if isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) in _GUARDS
        for statement in node.body
    ]
    if not found:
        return None
    path = loader.get_filename(name)
    _mains[name] = compile(ast.Module(found, []), path, "exec", dont_inherit=True)
    call = f"__import__({__name__!r}, fromlist=['run']).run({name!r}, globals())"
    return compile(call, "<mlx_patches>", "exec")


def run(name: str, scope: dict[str, Any]) -> None:
    """Import a module, and execute its guarded statements if ``scope`` is that of ``__main__``."""
    module = import_module(name)
    # Programs and pickles look for the module's names in ``__main__``.
    scope.update({key: value for key, value in vars(module).items() if key not in scope})
    if scope["__name__"] == "__main__":
        exec(_mains[name], vars(module))
