"""A stand-in for omlx, which has no release: the interface that the patch uses."""

from pathlib import Path

VERSION = "0.3.12"
SOURCE = '''
class Scheduler:
    """Keeps the caches at a boundary, those that can be cut later left out."""

    def __init__(self):
        self.snapshots = {}

    def _emit_prefill_boundary_snapshot(self, request, prompt_cache, total_tokens):
        kept = [None if type(c).__name__ == "KVCache" else c for c in prompt_cache]
        self._on_prefill_boundary_snapshot(request, kept, total_tokens)

    def _on_prefill_boundary_snapshot(self, request, kept, total_tokens):
        self.snapshots[total_tokens] = kept
'''


def install(folder: Path) -> None:
    """Write the package and its metadata into a folder of ``sys.path``."""
    files = {
        "omlx/__init__.py": "",
        "omlx/scheduler.py": SOURCE,
        f"omlx-{VERSION}.dist-info/METADATA": f"Name: omlx\nVersion: {VERSION}\n",
        f"omlx-{VERSION}.dist-info/direct_url.json": (
            '{"url": "https://example.org/omlx", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}'
        ),
    }
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
