"""Prints a digest of the fingerprints of each file's functions: python hashes.py ROOT FOLDER..."""

import ast
import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from mlx_patches.core import fingerprint


def names(scope, before=""):
    """The qualified names of the functions in a scope."""
    for node in fingerprint._definitions(scope):
        if not isinstance(node, ast.ClassDef):
            yield before + node.name
        yield from names(node, f"{before}{node.name}.")


def main():
    found, count = {}, 0
    for file in (file for folder in sys.argv[2:] for file in sorted(Path(folder).rglob("*.py"))):
        content = file.read_bytes()
        own = [*dict.fromkeys(names(ast.parse(content)))]
        count += len(own)
        entry = fingerprint.describe_file(content, own)
        found[str(file)] = hashlib.sha256(repr(entry).encode()).hexdigest()[:16]
    print(json.dumps({"python": sys.version.split()[0], "functions": count, "files": found}))


main()
