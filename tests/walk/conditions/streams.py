"""Standard output that is full, closed, or not read to its end; Ctrl-C."""

from __future__ import annotations

from ..condition import EMPTY, MLX_LM, NO_END, Condition, command, sampled, shell
from ..samples import REGISTRY, SOME, needed_by
from ..things import LLAMA

FULL = r"mlx-patches: cannot write to standard output \(No space left on device\)"
COMMANDS = (
    "audit",
    "audit --json",
    "audit --format sarif",
    "audit --html -",
    "report",
    "list",
    "list --json",
    f"explain {SOME}",
    "recommend --model gemma4",
    "ps",
    "--help",
    "--version",
)
DONE = "echo exit $?"
NEEDED = needed_by("llama")
WHOLE = [rf"{id_} +{REGISTRY.get(id_).summary}" for id_ in NEEDED]


def full(line: str) -> Condition:
    """A command whose standard output is a full device."""
    return shell(
        f"a full standard output is told by mlx-patches {line}",
        f"mlx-patches {line} > /dev/full; {DONE}",
        first="exit 2",
        note=f"^{FULL} *$",
    )


CONDITIONS = [
    # -- a terminal
    *(
        command(
            f"a terminal with {name}={value} gets no escape",
            "audit -v --model llama",
            code=1,
            first="llama crashes",
            never="\x1b",
            env={name: value},
            terminal=True,
            rows=NO_END,
            where=[MLX_LM],
        )
        for name, value in (("NO_COLOR", "1"), ("TERM", "dumb"))
    ),
    command(
        "a wide terminal has whole sentences",
        "audit --model llama",
        code=1,
        also=WHOLE,
        env={"COLUMNS": "200"},
        terminal=True,
        rows=24,
        where=[MLX_LM],
    ),
    command(
        "a verbose audit has whole sentences",
        "audit -v --model llama",
        code=1,
        also=WHOLE,
        rows=NO_END,
        where=[MLX_LM],
    ),
    command(
        "a narrow terminal has several patches with their sentences",
        "audit",
        code=1,
        also=[rf"{id_} [\w-]+ [\w-]+ " for id_ in NEEDED],
        env={"COLUMNS": "40"},
        terminal=True,
        where=[MLX_LM],
    ),
    *sampled(2, map(full, COMMANDS)),
    *sampled(
        1,
        (
            shell(
                f"a closed standard output leaves the exit code to mlx-patches {line}",
                f"mlx-patches {line} >&-; {DONE}",
                first=f"exit {code}$",
                rows=1,
                where=[EMPTY],
            )
            for line, code in (
                ("audit", 2),
                ("list", 0),
                (f"explain {SOME}", 0),
                ("--help", 0),
            )
        ),
    ),
    *(
        shell(
            f"a reader that leaves is no error of mlx-patches {line}",
            f"{{ mlx-patches {line}; echo exit $? >&2; }} 2>err | head -c 1; echo; cat err",
            first=".",
            also="exit 141",
            writes=("err",),
            rows=3,
        )
        for line in ("list --json", "audit --html -")
    ),
    shell(
        "a closed standard error loses the words alone",
        f"mlx-patches explain nonsense 2>&-; {DONE}",
        first="exit 2$",
        rows=1,
    ),
    shell(
        "a full standard error is no finding",
        f"mlx-patches explain nonsense 2>/dev/full; {DONE}",
        first="exit 2$",
        rows=1,
    ),
    shell(
        "a full standard error at a wrong usage is no finding",
        f"mlx-patches nonsense 2>/dev/full; {DONE}",
        first="exit 2$",
        rows=1,
        slow=True,
    ),
    shell(
        "both full is no finding",
        f"mlx-patches list >/dev/full 2>/dev/full; {DONE}",
        first="exit 2$",
        rows=1,
    ),
    shell(
        "a closed standard input does not disturb",
        f"mlx-patches --version <&-; {DONE}",
        first="mlx-patches, version",
        also="exit 0",
        rows=2,
        slow=True,
    ),
    shell(
        "three closed streams do not disturb",
        f"sh -c 'mlx-patches explain nonsense <&- >&- 2>&-'; {DONE}",
        first="exit 2$",
        rows=1,
        slow=True,
    ),
    shell(
        "a name that is no text is printed",
        f"mlx-patches audit --model \"$(printf 'f\\377')\"/x 2>&1; {DONE}",
        first="mlx-patches: f.*: no such folder",
        also="exit 2",
        rows=6,
    ),
    command(
        "Ctrl-C while it prints is an interruption",
        "audit --html -",
        code=130,
        interrupted=True,
        error="interrupted",
        rows=10**9,
    ),
    command(
        "Ctrl-C in a list is an interruption",
        "list --json",
        code=130,
        interrupted=True,
        error="interrupted",
        rows=10**9,
        where=[MLX_LM],
    ),
    shell(
        "Ctrl-C in the lab is an interruption and leaves no process behind",
        "timeout --preserve-status -s INT 1.5 mlx-patches lab --config $PWD/m >out; echo exit $?;"
        ' rm out; sleep 0.5; echo left $(ps -e -o args | grep -c "[l]ab.child.*$PWD/m")',
        first="exit 130$",
        also="left 0$",
        note="mlx-patches: interrupted",
        files={"m/config.json": LLAMA},
        where=[MLX_LM],
        slow=True,
    ),
]
