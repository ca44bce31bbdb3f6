"""mlx_lm.server drops or garbles tool calls of LFM2 and LFM2.5.

Why: These models write tool calls in Python syntax: ``[look(city='Rome', days=[1, 2])]``. The
    release cuts an argument at a comma, a bracket or a quote, parses only the first of several
    calls, and misses a tool with a dot in its name. If the chat template does not contain the
    tokens of tool calls, as LFM2.5's does not, the release picks no parser: the call stays text.
How: A call that is valid Python is parsed as Python, and never run; everything else goes to the
    release's parser. A tokenizer without a parser whose vocabulary has both tokens gets this one.
Upstream: mlx-lm 0.32.0 parses calls as Python, and looks for the tokens in the vocabulary too.
Retire when: No supported release is older than mlx-lm 0.32.
"""

import ast
import importlib
from typing import Any

from ....core.verbs import Function, Patch, wrap

Call = dict[str, Any]
_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"
# Templates write nested values as JSON.
_JSON = {"true": True, "false": False, "null": None}


def parse_python(parse: Function, text: str, *args: Any, **kwargs: Any) -> Any:
    calls = find_calls(text)
    if not calls:
        return parse(text, *args, **kwargs)
    return calls[0] if len(calls) == 1 else calls


def find_calls(text: str) -> list[Call]:
    """The calls in a text; none if one of them is not valid Python."""
    start, end = text.find("["), text.rfind("]")
    try:
        body = ast.parse(text[start : end + 1], mode="eval").body
        return list(map(read_call, body.elts)) if start >= 0 and isinstance(body, ast.List) else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def read_call(node: ast.expr) -> Call:
    """The name and the arguments of a call.

    Raises:
        ValueError: the node is not a call by name, or an argument has no name or is not a literal.
    """
    if not isinstance(node, ast.Call) or node.args or not all(one.arg for one in node.keywords):
        raise ValueError("not a call with named arguments")
    part = node.func
    while isinstance(part, ast.Attribute):  # a name with dots
        part = part.value
    if not isinstance(part, ast.Name):
        raise ValueError("not a name")
    arguments = {one.arg: ast.literal_eval(_Literals().visit(one.value)) for one in node.keywords}
    return {"name": ast.unparse(node.func), "arguments": arguments}


class _Literals(ast.NodeTransformer):
    """Replaces JSON's constants by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON[node.id]) if node.id in _JSON else node


def add_parser(init: Function, wrapper: Any, tokenizer: Any, *args: Any, **kw: Any) -> None:
    """Construct a tokenizer's wrapper, with this parser if the vocabulary has both tokens."""
    if len(args) < 4 and not kw.get("tool_parser") and not kw.get("tool_call_start"):
        vocabulary = tokenizer.get_vocab()
        if _START in vocabulary and _END in vocabulary:
            parse = importlib.import_module("mlx_lm.tool_parsers.pythonic").parse_tool_call
            kw |= {"tool_call_start": _START, "tool_call_end": _END, "tool_parser": parse}
    init(wrapper, tokenizer, *args, **kw)


PATCH = Patch(
    id="server-pythonic-calls",
    formerly="pythonic-calls",
    targets=(
        *wrap("mlx_lm.tool_parsers.pythonic:parse_tool_call", parse_python),
        *wrap(
            "mlx_lm.tokenizer_utils:TokenizerWrapper.__init__",
            add_parser,
            fingerprint_of=("TokenizerWrapper.__init__", "_infer_tool_parser"),
        ),
    ),
)
