"""Incomplete releases: the audit never reports them as right, and names what to reinstall."""

from __future__ import annotations

from ..condition import EMPTY, NO_END, Condition, command, python, refused, replace, sampled
from ..samples import SOME
from ..things import folder, link, release, unreadable

LM, VLM = "mlx-lm", "mlx-vlm"
AGAIN = "install mlx-lm again"


def half(says: str, files: dict[str, object], *patterns: str) -> Condition:
    """An audit of an incomplete release."""
    return command(
        f"a release {says} is no all-clear",
        "audit",
        code=2,
        first="Nothing could be audited:",
        also=patterns,
        never="Nothing to do",
        files=files,
    )  # type: ignore[arg-type]


_CONDITIONS = [
    command(
        "a stand-in of a release is not taken for it",
        "audit",
        code=2,
        also="mlx-lm 0.32.2: not measured",
        files=release(LM, "0.32.2"),
    ),
    command(
        "a release without MLX is no list of defects",
        "audit",
        code=2,
        first="Nothing could be audited: mlx is not installed in",
        also="mlx is not installed in [^ ]+: install mlx Environment: ",
        never="Fix:",
        files={k: v for k, v in release(LM, "0.32.2").items() if "mlx-0" not in k},
    ),
    *sampled(
        3,
        [
            half(
                "without metadata", release(LM, "0.32.2", METADATA=None), "has no metadata", AGAIN
            ),
            half(
                "with empty metadata", release(LM, "0.32.2", METADATA=""), "has no metadata", AGAIN
            ),
            half("whose metadata is blanks", release(LM, "0.32.2", METADATA="\n\n"), AGAIN),
            half(
                "whose version is none",
                release(LM, "0.32.2", METADATA="Name: mlx-lm\nVersion: soon\n"),
                "has no valid version: 'soon'",
                AGAIN,
            ),
            half(
                "whose version is 5000 characters",
                release(LM, "0.32.2", METADATA=f"Name: mlx-lm\nVersion: {'1.' * 2500}\n"),
                AGAIN,
            ),
            half(
                "whose models/cache.py is missing",
                release(LM, "0.32.2", cache=None),
                "mlx_lm.models.cache is missing",
                AGAIN,
            ),
            half(
                "whose models/cache.py is not Python",
                release(LM, "0.32.2", cache="def ("),
                "models/cache.py is not *Python",
                AGAIN,
            ),
            half(
                "whose models/cache.py is binary",
                release(LM, "0.32.2", cache=b"\0\xff\xfe"),
                "cache.py is not *Python",
                AGAIN,
            ),
            half("whose models/cache.py is a folder", release(LM, "0.32.2", cache=folder), AGAIN),
            half(
                "whose models/cache.py is a link to nothing",
                release(LM, "0.32.2", cache=link("no")),
                AGAIN,
            ),
            half(
                "whose models/cache.py cannot be read",
                release(LM, "0.32.2", cache=unreadable),
                AGAIN,
            ),
            half("whose generate.py is not Python", release(LM, "0.32.2", generate="def ("), AGAIN),
        ],
    ),
    *(
        refused(
            f"{line} where metadata is binary is refused",
            line,
            error="metadata of .* is not text .*install its package again",
            files=release(LM, "0.32.2", METADATA=b"\xff\xfe\x00Version: 1\n"),
            slow=line not in ("audit", "lab"),
        )
        for line in ("audit", "list", f"explain {SOME}", "lab")
    ),
    refused(
        "enable for a host where metadata is binary is refused",
        "enable --host mlx-lm",
        own=True,
        error="metadata .*is not text.*again|installs no command",
        files=release(LM, "0.32.2", METADATA=b"\xff\xfe\x00Version: 1\n"),
    ),
    command(
        "a model of a release whose file is not Python is no all-clear",
        "audit --model llama",
        code=2,
        first="Nothing could be audited:",
        files=release(LM, "0.32.2", llama="def ("),
        also=("llama.py is not Python", AGAIN),
    ),
    command(
        "a release of tomorrow is not called right",
        "audit",
        code=2,
        also="mlx-lm 99.0: not measured",
        files=release(LM, "99.0"),
    ),
    command(
        "a model of a release of tomorrow is not measured",
        "audit --model llama",
        code=2,
        first="llama was not measured",
        files=release(LM, "99.0"),
    ),
    command(
        "a development release is not measured",
        "audit",
        code=2,
        also="mlx-lm 0.33.0.dev1: not measured",
        files=release(LM, "0.33.0.dev1"),
        slow=True,
    ),
    command(
        "two releases that cannot work together are told",
        "audit",
        code=1,
        first=".*mlx",
        also="install mlx>=0.31.2",
        files={**release(LM, "0.31.3"), **release("mlx", "0.31.1")},
    ),
    command(
        "a package without a release beside a good one is no all-clear",
        "audit",
        code=2,
        first="Nothing could be audited:",
        also="install mlx-vlm again",
        files={**release(LM, "0.32.2"), **release(VLM, "0.7.10", METADATA=None)},
    ),
    command(
        "a bug report of a half release says so",
        "report",
        rows=110,
        also="Nothing could be audited: .*install mlx-lm again",
        files=release(LM, "0.32.2", cache=None),
    ),
    command(
        "an audit of a half release as JSON says so",
        "audit --json",
        code=2,
        rows=NO_END,
        also='"unaudited": \\[ +"mlx_lm.models.cache is missing',
        files=release(LM, "0.32.2", cache=None),
    ),
    python(
        "status of a half release is a report",
        "import mlx_patches as m; m.apply(); print(repr(m.status()))",
        first="<Report: 0 patches in effect",
        files=release(LM, "0.32.2", cache=None),
    ),
]
# Elsewhere a release is installed.
CONDITIONS = [replace(one, where=[EMPTY]) for one in _CONDITIONS]
