"""Environment variables, with right, unusual and mistyped values."""

from __future__ import annotations

from ..condition import (
    EMPTY,
    NO_END,
    OLDER,
    VLLM_MLX,
    WITH_MLX,
    Condition,
    command,
    journey,
    python,
    sampled,
    shell,
    step,
)
from ..samples import SECURITY, SOME, TYPO
from ..things import release

ON, OFF = ("1", "true", "Yes", " on "), ("0", "false", "No", "OFF", "off ")
JUNK = ("n", "none", "banana", "2")
# What an enabled environment runs at the start of a process.
BOOT = "import mlx_patches.activation.boot as boot; boot.start(); "
ACTIVE = f"{BOOT}print(boot.active())"
NAMED = "MLX_PATCHES is {!r}, an unknown value; use 1 or 0"


def starts(says: str, value: str, active: bool) -> Condition:
    """Whether an enabled environment waits for the import of MLX."""
    return python(
        f"{says} {value!r} in an enabled environment",
        ACTIVE,
        env={"MLX_PATCHES": value},
        first=f"{active}$",
        rows=1,
    )


CONDITIONS = [
    *(starts("patches are on by MLX_PATCHES of", value, True) for value in ON),
    *(starts("patches are off by MLX_PATCHES of", value, False) for value in OFF),
    *(starts("junk means off, MLX_PATCHES of", value, False) for value in JUNK),
    starts("an empty setting is none, MLX_PATCHES of", "", True),
    *sampled(
        2,
        (
            python(
                f"junk is warned of as MLX is imported, MLX_PATCHES of {value!r}",
                f"{BOOT}import mlx_lm; print('done')",
                env={"MLX_PATCHES": value},
                first="done",
                note=NAMED.format(value),
                where=[EMPTY],
                files=release("mlx-lm", "0.31.3", generate=""),
                imports_mlx=True,
            )
            for value in JUNK
        ),
    ),
    *(
        python(
            f"auto does nothing with MLX_PATCHES of {value!r}",
            "import mlx_patches.auto; from mlx_patches.activation import session as s;"
            "print(s._session is None)",
            env={"MLX_PATCHES": value},
            first="True",
            **({"note": NAMED.format(value)} if value in JUNK else {}),
        )
        for value in ("off ", "n", "banana")
    ),
    *(
        command(
            f"an audit says that MLX_PATCHES of {value!r} is junk",
            "audit",
            code=1,
            env={"MLX_PATCHES": value},
            also=NAMED.format(value),
            note=NAMED.format(value),
            where=WITH_MLX,
        )
        for value in JUNK
    ),
    command(
        "an audit where patches are switched off says by what",
        "audit",
        env={"MLX_PATCHES": "off "},
        first=".*not repaired here, by choice",
        also="switched off by MLX_PATCHES",
        where=WITH_MLX,
    ),
    command(
        "a strict audit counts what is switched off",
        "audit -q --strict",
        code=1,
        env={"MLX_PATCHES": "0"},
        first=".*by choice",
        where=WITH_MLX,
    ),
    command(
        "an audit where all patches are disabled says by what",
        "audit",
        env={"MLX_PATCHES_DISABLE": "all"},
        also="unset MLX_PATCHES_DISABLE",
        where=WITH_MLX,
    ),
    command(
        "a patch that nobody has is told of by the audit",
        "audit",
        code=1,
        env={"MLX_PATCHES_DISABLE": TYPO},
        also=f"names {TYPO!r}",
        note=f"{TYPO!r}.*did you mean {SOME!r}",
        where=WITH_MLX,
    ),
    command(
        "a patch that nobody has is warned of where it is enabled",
        "list",
        env={"MLX_PATCHES_ENABLE": f"{SECURITY}x"},
        rows=NO_END,
        note=f"MLX_PATCHES_ENABLE: no patch '{SECURITY}x'; did you mean {SECURITY!r}",
    ),
    command(
        "a name of 5000 characters in MLX_PATCHES_DISABLE is cut",
        "audit -q",
        code=(1, 2),
        env={"MLX_PATCHES_DISABLE": "x" * 5000},
        note=r"MLX_PATCHES_DISABLE names 'x+\.\.\.'",
    ),
    command(
        "a profile that is none is warned of by the audit",
        "audit -q",
        code=(1, 2),
        env={"MLX_PATCHES_PROFILE": "junk"},
        note="MLX_PATCHES_PROFILE: no profile 'junk'; choose from batch, server",
    ),
    command(
        "a profile that is none is warned of once",
        "list",
        rows=NO_END,
        env={"MLX_PATCHES_PROFILE": "junk"},
        note="^(?!.*junk.*junk).*no profile 'junk'",
    ),
    python(
        "a profile that is none means safe",
        "import mlx_patches as m; print(m.apply().ok)",
        env={"MLX_PATCHES_PROFILE": "junk"},
        first="True",
        note="no profile 'junk'",
    ),
    command(
        "a profile of blanks is none at all",
        "audit -q",
        code=(1, 2),
        env={"MLX_PATCHES_PROFILE": "  "},
        first=".*known defects|Nothing could be audited",
        rows=3,
        slow=True,
    ),
    command(
        "security asked for in capitals is told of",
        "audit -q",
        code=(1, 2),
        env={"MLX_PATCHES_PROFILE": "SECURITY"},
        note="no profile 'SECURITY'",
        slow=True,
    ),
    command(
        "security in MLX_PATCHES_PROFILE counts in the audit",
        "audit",
        code=1,
        env={"MLX_PATCHES_PROFILE": "safe,security"},
        never="more repairs? of security",
        first=".*known defects",
        where=WITH_MLX,
    ),
    python(
        "strict off by a word with a blank is off",
        "from mlx_patches.activation import settings; print(settings.strict())",
        env={"MLX_PATCHES_STRICT": "off "},
        first="False",
    ),
    python(
        "strict applies where all is well",
        "import mlx_patches as m; print(m.apply().ok)",
        env={"MLX_PATCHES_STRICT": "1"},
        first="True",
        where=WITH_MLX,
    ),
    # -- the environment around it
    *sampled(
        2,
        (
            command(
                f"an audit works with {name}={value}",
                "audit -q",
                code=(1, 2),
                env={name: value},
                first=".*known defects|Nothing could be audited",
                rows=3,
            )
            for name, value in (
                ("PYTHONOPTIMIZE", "2"),
                ("PYTHONWARNINGS", "error"),
                ("HOME", "/nonexistent"),
                ("TMPDIR", "/nonexistent"),
                ("LANG", "C"),
                ("PYTHONIOENCODING", "ascii"),
                ("COLUMNS", "1"),
                ("COLUMNS", "junk"),
                ("TERM", "dumb"),
                ("PYTHONHASHSEED", "7"),
            )
        ),
    ),
    command(
        "help has its words without docstrings",
        "audit --help",
        rows=45,
        env={"PYTHONOPTIMIZE": "2"},
        first="Usage",
        also="--fail-on",
    ),
    command(
        "ascii alone is enough for explain",
        f"explain {SOME}",
        rows=60,
        env={"PYTHONIOENCODING": "ascii"},
        first=f"{SOME}: ",
    ),
    command(
        "ascii alone is enough for the page",
        "audit --html -",
        code=(1, 2),
        rows=NO_END,
        env={"PYTHONIOENCODING": "ascii"},
        first="<!doctype html>",
        slow=True,
    ),
    command(
        "colours are left out where nobody can see them",
        "list",
        rows=NO_END,
        never=r"\x1b",
        first="patch",
    ),
    command(
        "NO_COLOR takes the colours of a terminal",
        "audit -q",
        code=(1, 2),
        terminal=True,
        env={"NO_COLOR": "1"},
        first="\\d+ known|Nothing",
        never=r"\x1b",
        rows=3,
        slow=True,
    ),
    shell(
        "a site module that shadows ours is not run",
        "cd theirs && mlx-patches --version",
        first="mlx-patches, version",
        files={"theirs/mlx_patches.py": "raise SystemExit(9)\n"},
    ),
    # -- what comes first
    python(
        "MLX_PATCHES_DISABLE outranks apply by name",
        f"import mlx_patches as m; print(sorted({{str(o.status) for o in m.apply([{SOME!r}])}}))",
        env={"MLX_PATCHES_DISABLE": SOME},
        first=".*'disabled'",
        never="applied|pending",
        where=[OLDER, VLLM_MLX],
    ),
    python(
        "apply by hand outranks MLX_PATCHES",
        "import mlx_patches as m; print(m.apply().with_status('pending') != ())",
        env={"MLX_PATCHES": "0"},
        first="True",
        where=WITH_MLX,
    ),
    journey(
        "strict, an enabled environment tells at once that it is junk",
        step("mlx-patches enable", first="enabled: "),
        step(
            "python -c",
            "print('started')",
            env={"MLX_PATCHES": "off ", "MLX_PATCHES_STRICT": "1"},
            first="started",
        ),
        where=[EMPTY],
    ),
]
