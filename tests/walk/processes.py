"""Processes: enable, run and ps, a user's own program, and broken standard streams."""

from .condition import (
    MLX_LM,
    NO_END,
    VLLM_MLX,
    WITH_MLX,
    WITH_MLX_LM,
    Condition,
    command,
    journey,
    python,
    shell,
    step,
)
from .samples import REGISTRY, SOME, list_needed
from .things import LLAMA, script

ENABLE = step(
    "mlx-patches enable",
    first=r"enabled: /.*/mlx_patches_boot\.pth$",
    also="Restart running servers",
    rows=5,
)
DISABLE = step("mlx-patches disable", first=r"disabled: removed /.*/mlx_patches_boot\.pth$", rows=4)
NOT_ENABLED = step("mlx-patches disable", first="not enabled here", rows=1)
WAITS = "import mlx_patches.activation.boot as boot; print(boot.active())"
WAITING = step("python -c", WAITS, first="True")
SILENT = step("python -c", WAITS, first="False")
STATUS = "import mlx_patches as m; print(m.status())"
PRINTS = "import mlx_patches.activation.boot as boot\nprint(boot.active())\n"
HOST = script(f"#!/usr/bin/env python\n{PRINTS}")
SERVER = script("#!/usr/bin/env python\nimport mlx_lm\nprint('ready')\n")
ON = "^mlx-patches: patches of profile {} are active$"


def runs(name: str, line: str, *last: str, **more: object) -> Condition:
    """A command that ``run`` starts, and that prints whether it has the patches."""
    more = {"first": "True$", "rows": 2, "note": "^mlx-patches: patches .* are active", **more}
    return command(name, f"run -- {line}", *last, **more)


# -- enable, disable, run, ps
ACTIVATION = [
    journey(
        "enable and disable",
        NOT_ENABLED,
        SILENT,
        ENABLE,
        ENABLE,
        WAITING,
        DISABLE,
        SILENT,
        NOT_ENABLED,
    ),
    journey(
        "audit of enabled environment",
        ENABLE,
        step(
            "mlx-patches audit",
            first="Nothing to do: all .* known defects are repaired here",
            also=(r"Environment: .*\(enabled\)", "Undo: +mlx-patches disable"),
            never="Fix: ",
        ),
        step(
            "mlx-patches audit",
            env={"MLX_PATCHES": "off "},
            first=".*by choice",
            also="Fix: +unset MLX_PATCHES",
        ),
        step("mlx-patches audit -v", first="Nothing to do", also="pending", rows=NO_END),
        DISABLE,
        step("mlx-patches audit -q", code=1, first=".*not repaired here"),
        where=WITH_MLX,
    ),
    *(
        journey(
            f"enabled environment: {what}",
            ENABLE,
            step("sh -c", line, first="ready", imports_mlx=True, **more),
            where=[MLX_LM],
            files={"mlx_lm.server": SERVER, "other": SERVER},
        )
        for what, line, more in (
            ("server logs one line", "./mlx_lm.server", {"note": ON.format("safe")}),
            (
                "server logs profile",
                "MLX_PATCHES_PROFILE=batch ./mlx_lm.server",
                {"note": ON.format("batch")},
            ),
            ("server that is switched off is silent", "MLX_PATCHES=0 ./mlx_lm.server", {}),
            ("other program is silent", "./other", {}),
            (
                "server started by run logs once",
                "mlx-patches run -- ./mlx_lm.server",
                {"note": ON.format("safe")},
            ),
        )
    ),
    journey(
        "enabled environment repairs unmodified program",
        ENABLE,
        step(
            "python -c",
            f"import mlx_lm.models.cache; {STATUS}",
            also=r"applied +[\w-]+ ",
            rows=NO_END,
            imports_mlx=True,
        ),
        DISABLE,
        step(
            "python -c",
            "import mlx_lm.models.cache, sys;print('mlx_patches' in sys.modules)",
            first="False",
            imports_mlx=True,
        ),
        where=WITH_MLX_LM,
    ),
    journey(
        "enable --host",
        step("mlx-patches enable --host vllm-mlx", first=r"enabled for .*vllm-mlx.*: /.*\.pth"),
        SILENT,
        step("sh -c 'cp host vllm-mlx; python vllm-mlx; rm vllm-mlx'", first="True"),
        step("mlx-patches audit --host vllm-mlx -q", first="vllm-mlx 0.6.0: Nothing to do"),
        step("mlx-patches audit -q", first="Nothing to do: .* only in vllm-mlx processes"),
        DISABLE,
        where=[VLLM_MLX],
        files={"host": HOST},
    ),
    runs("run keeps the exit code", "python -c", f"{WAITS}; raise SystemExit(7)", code=7),
    shell(
        "ps lists a process while it runs",
        "mkfifo wait; python -c 'import mlx_lm.models.cache, mlx_patches as m; m.apply();"
        ' print(1, flush=True); open("wait").read()\' > printed & '
        "until [ -s printed ]; do sleep 0.1; done; mlx-patches ps; echo > wait; wait;"
        " mlx-patches ps; rm printed wait",
        first="pid +host +patched",
        where=WITH_MLX_LM,
        rows=8,
        also=(r"\d+ +-c +.*mlx-lm 0.3\d.\d +\d+ +none", "no patched processes"),
    ),
]

# -- a user's own program
USE = "import mlx_patches as m\n"
PROGRAMS = [
    python(
        "status takes less than 50 ms",
        USE + "import time, mlx_lm.models.cache; m.apply(); m.status(); t = time.perf_counter();"
        "m.status(); print(time.perf_counter() - t < 0.05)",
        first="True",
        imports_mlx=True,
        where=WITH_MLX_LM,
    )
]

# -- standard streams and interrupts
FULL = r"mlx-patches: cannot write to standard output \(No space left on device\)"
NEEDED = list_needed("llama")
STREAMS = [
    *(
        shell(
            f"full standard output of {line}",
            f"mlx-patches {line} > /dev/full; echo exit $?",
            first="exit 2",
            note=f"^{FULL} *$",
        )
        for line in ("audit --html -", "list", "--help")
    ),
    shell(
        "closed standard output",
        f"mlx-patches explain {SOME} >&-; echo exit $?",
        first="exit 0$",
        rows=1,
    ),
    shell(
        "full standard output and error",
        "mlx-patches list >/dev/full 2>/dev/full; echo exit $?",
        first="exit 2$",
        rows=1,
    ),
    shell(
        "reader that leaves",
        "{ mlx-patches list --json; echo exit $? >&2; } 2>err | head -c 1; echo; cat err",
        first=".",
        also="exit 141",
        writes=("err",),
        rows=3,
    ),
    *(
        command(
            f"no escapes with {name}={value}",
            "audit -v --model llama",
            code=1,
            first="llama crashes",
            also=[rf"{id_} +{REGISTRY.get(id_).summary}" for id_ in NEEDED],
            never="\x1b",
            env={name: value, "COLUMNS": "200"},
            terminal=True,
            rows=NO_END,
            where=[MLX_LM],
        )
        for name, value in (("NO_COLOR", "1"), ("TERM", "dumb"))
    ),
    command(
        "Ctrl-C while printing",
        "audit --html -",
        code=130,
        interrupted=True,
        error="interrupted",
        rows=NO_END,
    ),
    shell(
        "Ctrl-C in the lab leaves no process",
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
CONDITIONS = [*ACTIVATION, *PROGRAMS, *STREAMS]
