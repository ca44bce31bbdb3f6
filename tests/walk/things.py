"""Files that a newcomer may have: broken, hostile, or a stand-in for a release."""

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from .condition import Content

# A Llama with sliding layers, whose batches mlx-lm 0.32.2 gets wrong, and one without.
LLAMA = '{"model_type": "llama", "eos_token_id": 1, "sliding_window": 64}'
FULL = '{"model_type": "llama", "eos_token_id": 1}'


def pipe(path: Path) -> None:
    """A named pipe; reading it hangs."""
    os.mkfifo(path)


def link(target: str) -> Callable[[Path], None]:
    """A symbolic link; a link to itself is a loop."""

    def make(path: Path) -> None:
        path.symlink_to(target)

    return make


def script(text: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(text)
        path.chmod(0o755)

    return make


def release(name: str, version: str, **broken: Content) -> dict[str, Content]:
    """An installed stand-in for a release, below ``site``.

    Args:
        name: the distribution.
        version: its version.
        broken: a module's name, or METADATA, to the content that replaces the right one; None omits
        the file.
    """
    package, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    files: dict[str, Content] = {
        f"site/{package}/__init__.py": "",
        f"site/{package}/generate.py": "",
        f"site/{package}/models/__init__.py": "",
        f"site/{package}/models/cache.py": "",
        f"site/{package}/models/llama.py": "class Model:\n    pass\n",
        f"site/{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "site/mlx-0.32.4.dist-info/PKG-INFO": "Version: 0.32.4\n",
    }
    for file, content in broken.items():
        (path,) = (one for one in files if Path(one).stem == file)
        files[path] = content
    return {path: content for path, content in files.items() if content is not None}


def copy_package(
    package: str,
    version: str = "",
    change: Callable[[Path], object] = lambda path: None,
    **edits: tuple[str, str],
) -> dict[str, Content]:
    """A copy of an installed package, below ``site``: an edited build, or another version.

    Args:
        package: the package.
        version: the copy's version; empty for the installed one.
        change: further changes to the copy's folder.
        edits: a file's name to a text and its replacement.
    """

    def copy(path: Path) -> None:
        source = find_spec(package).submodule_search_locations[0]
        shutil.copytree(source, path, ignore=shutil.ignore_patterns("__pycache__"))
        for name, (old, new) in edits.items():
            (file,) = path.rglob(f"{name}.py")
            text = file.read_text()
            assert old in text, file
            file.write_text(text.replace(old, new, 1))
        change(path)

    name = package.replace("_", "-")
    number = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    info = {f"site/{package}-{version}.dist-info/METADATA": number} if version else {}
    return {f"site/{package}": copy, **info}


def make(root: Path, files: dict[str, Content]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
