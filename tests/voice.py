"""The words that our sentences avoid, and the names that functions avoid."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

RULES = {
    r"\b(says?|said|told|tell|tells(?! you)|asks|hears?)\b": "report, print, log, check",
    r"(?<![\w-])pieces?\b": "chunk, chunked prefill",
    r"(?<![\w-])alone\b": "single request, only",
    r"\botherwise\b": "differently, if not, or else",
    r"\bof (its|their|your) own\b": "its own, their own, separate",
    r"\bby (itself|themselves)\b": "automatically, separately, or nothing",
    r"\b(token|number|line|call|step|node|row) a (layer|row|rank|token|step|call|family)\b": "per",
    r"\b(leaves?|leaving|left) out\b": "skip, omit, drop",
    r"\btakes? no\b|\bgives? nothing\b": "does not accept, ignores",
    r"\b(held|holds?) (it |them |\S+ \S+ )?against\b": "compare with",
    r"\brotate[sd]? (to|by|its|their|apart)\b": "RoPE positions, RoPE frequencies",
    r"\ban?other texts?\b|\bother text\b": "wrong output, garbled text",
    r"\bfor ever\b|\bnever ends?\b": "hang",
    r"\bgoes? on from\b": "continue from",
    r"\bconfigs? as released\b": "published config",
    r"\bnot with the patches\b": "repaired by the patches",
    r"\bread in (pieces|chunks)\b": "chunked prefill",
}
_RULES = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in RULES.items()}

# Participles that do not end in -ed, without those that are also verbs in the present (read, cut).
_IRREGULAR = re.compile(
    "begun|bound|brought|built|caught|chosen|done|drawn|driven|fed|felt|found|given|gone|grown|heard"
    "|held|hidden|kept|known|laid|led|left|lent|lost|made|meant|met|paid|said|seen|sent|shown|spent"
    "|stood|taken|taught|thought|thrown|told|torn|understood|won|worn|written"
)
# Words in -ed that are verbs or nouns.
_NOT_PARTICIPLES = re.compile("embed|exceed|feed|need|proceed|seed|shed|speed|succeed|red|bed")


def faults(text: str) -> list[str]:
    """Each forbidden phrase of a text, with its replacement."""
    found = ((pattern.search(text), instead) for pattern, instead in _RULES.items())
    return [f"{match[0]!r}: write {instead}" for match, instead in found if match]


def is_participle(name: str) -> bool:
    """Whether a function's name begins with a participle: ``rotated``, ``built_masks``."""
    first = name.strip("_").partition("_")[0]
    if _IRREGULAR.fullmatch(first):
        return True
    return first.islower() and first.endswith("ed") and not _NOT_PARTICIPLES.fullmatch(first)


def functions(source: str) -> Iterator[tuple[int, str]]:
    """The line and name of each function of a module; properties and fixtures are values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = (getattr(one, "func", one) for one in node.decorator_list)
            marks = {ast.unparse(one).rpartition(".")[2] for one in decorators}
            if not marks & {"property", "cached_property", "setter", "fixture"}:
                yield node.lineno, node.name


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The line and text of each paragraph, list item and table row of a page, without its code."""
    page = re.sub(
        r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page, flags=re.S | re.M
    )
    page = re.sub(r"`[^`\n]+`|\]\([^)]*\)", "code", page)
    for block in re.finditer(r"^[^\n]*\S.*(?:\n(?!\s*(?:[-|#]|$)).+)*", page, re.MULTILINE):
        yield page.count("\n", 0, block.start()) + 1, " ".join(block[0].split())


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """The line and text of each string of two words or more in a module, without docstrings."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in skipped:
                continue
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield node.lineno, " ".join(text.split())


def faulty(path: Path, texts: Iterator[tuple[int, str]]) -> list[str]:
    """The faults of a file's texts, one line each."""
    return [
        f"{path}:{line}: {fault}: {text[:90]}" for line, text in texts for fault in faults(text)
    ]
