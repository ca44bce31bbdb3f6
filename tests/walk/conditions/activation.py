"""Fix it, and undo it: enable, disable, run, ps, each in a throw-away environment."""

from __future__ import annotations

from ..condition import (
    EMPTY,
    MLX_LM,
    NO_END,
    OLDER,
    VLLM_MLX,
    WITH_MLX,
    WITH_MLX_LM,
    Condition,
    command,
    journey,
    refused,
    replace,
    sampled,
    shell,
    step,
)
from ..things import release, script

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
HOST = script(
    "#!/usr/bin/env python\nimport mlx_patches.activation.boot as boot\nprint(boot.active())\n"
)
SERVER = script("#!/usr/bin/env python\nimport mlx_lm\nprint('ready')\n")
ON = "mlx-patches: patches of profile safe are active"
BASH = "#!/bin/bash\nexec python -c 'import mlx_patches.activation.boot as b; print(b.active())'\n"


def runs(says: str, line: str, *last: str, **more: object) -> Condition:
    """A command that ``run`` starts, and that prints whether it has the patches."""
    more = {"first": "True$", "rows": 2, "note": "^mlx-patches: patches .* are active", **more}
    return command(says, f"run -- {line}", *last, **more)


CONDITIONS = [
    # -- enable and disable
    journey("disable where nothing was enabled says so", NOT_ENABLED),
    journey(
        "enable can be undone, and undone once",
        SILENT,
        ENABLE,
        WAITING,
        DISABLE,
        SILENT,
        NOT_ENABLED,
    ),
    journey("enable twice is enable once", ENABLE, ENABLE, WAITING, DISABLE, SILENT, slow=True),
    journey(
        "an enabled environment is all right",
        ENABLE,
        step(
            "mlx-patches audit",
            first="Nothing to do: all .* known defects are repaired here",
            also=(r"Environment: .*\(enabled\)", "Undo: +mlx-patches disable"),
            never="Fix: ",
        ),
        DISABLE,
        step("mlx-patches audit -q", code=1, first=".*not repaired here"),
        where=WITH_MLX,
    ),
    journey(
        "a repaired model is repaired",
        ENABLE,
        step("mlx-patches audit --model gemma4 -q", first="gemma4 is repaired here", rows=4),
        where=[OLDER],
    ),
    *(
        journey(
            f"a server of an enabled environment says {what}",
            ENABLE,
            step("sh -c", line, first="ready", imports_mlx=True, **more),
            where=[MLX_LM],
            files={"mlx_lm.server": SERVER, "other": SERVER},
        )
        for what, line, more in (
            ("that the patches are on", "./mlx_lm.server", {"note": f"^{ON}$"}),
            (
                "which patches are on",
                "MLX_PATCHES_PROFILE=batch ./mlx_lm.server",
                {"note": "^mlx-patches: patches of profile batch are active$"},
            ),
            ("nothing where they are switched off", "MLX_PATCHES=0 ./mlx_lm.server", {}),
            ("nothing where it is no server", "./other", {}),
            (
                "once that they are on by run",
                "mlx-patches run -- ./mlx_lm.server",
                {"note": f"^{ON}$"},
            ),
        )
    ),
    journey(
        "an enabled environment as verbose says Nothing to do first",
        ENABLE,
        step("mlx-patches audit -v", first="Nothing to do", also="pending", rows=NO_END),
        where=[MLX_LM],
    ),
    journey(
        "an enabled environment switched off by hand is told of",
        ENABLE,
        step(
            "mlx-patches audit",
            env={"MLX_PATCHES": "off "},
            first=".*by choice",
            also="Fix: +unset MLX_PATCHES",
        ),
        where=WITH_MLX,
    ),
    journey(
        "an enabled environment repairs an unmodified program",
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
        "enable names its profile",
        step("mlx-patches enable --profile safe,security", first="enabled: "),
        step(
            "python -c",
            "import mlx_patches.activation.started as s; print(s.profile)",
            first="safe,security",
        ),
        DISABLE,
    ),
    journey(
        "enable of an unknown profile writes nothing",
        step(
            "mlx-patches enable --profile junk",
            code=2,
            error="'junk'; choose from batch, server, security, safe",
        ),
        SILENT,
    ),
    journey(
        "enable of no profile writes nothing",
        step("mlx-patches enable --profile ''", code=2, error="''; choose from batch"),
        SILENT,
    ),
    journey(
        "enable for a host without a name enables nothing",
        step("mlx-patches enable --host ''", code=2, error="--host.*name of a distribution"),
        SILENT,
    ),
    journey(
        "enable for a host of blanks enables nothing",
        step("mlx-patches enable --host '  '", code=2, error="--host|not installed"),
        SILENT,
    ),
    journey(
        "enable for a host that is not installed enables nothing",
        step(
            "mlx-patches enable --host omlx",
            code=2,
            error="omlx is not installed.*install it or omit --host",
        ),
        SILENT,
    ),
    journey(
        "enable for a package without commands enables nothing",
        step(
            "mlx-patches enable --host click",
            code=2,
            error="click installs no command; omit --host",
        ),
        SILENT,
    ),
    journey(
        "enable for a host is for its processes alone",
        step(
            "mlx-patches enable --host vllm-mlx",
            first=r"enabled for .*vllm-mlx.*: /.*\.pth",
            rows=4,
        ),
        SILENT,
        step("sh -c 'cp host vllm-mlx; python vllm-mlx; rm vllm-mlx'", first="True"),
        step("mlx-patches audit --host vllm-mlx -q", first="vllm-mlx 0.6.0: Nothing to do"),
        step("mlx-patches audit -q", first="Nothing to do: .* only in vllm-mlx processes"),
        DISABLE,
        where=[VLLM_MLX],
        files={"host": HOST},
    ),
    journey(
        "enable for mlx_lm.server is for its processes alone",
        step("mlx-patches enable --host mlx_lm.server", first="enabled for mlx_lm.server: "),
        SILENT,
        DISABLE,
        where=WITH_MLX_LM,
    ),
    journey(
        "the last enable holds",
        step("mlx-patches enable --host mlx_lm.server", first="enabled for mlx_lm.server"),
        ENABLE,
        WAITING,
        DISABLE,
        where=WITH_MLX_LM,
    ),
    journey(
        "enable where a folder is in the way is refused",
        step(
            "sh -c",
            "python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'"
            " | xargs -I{} mkdir {}/mlx_patches_boot.pth; echo made",
            first="made",
        ),
        step(
            "mlx-patches enable",
            code=2,
            error="cannot be written .*use mlx-patches run, or mlx_patches.apply",
        ),
        step("mlx-patches disable", code=2, error="cannot be removed"),
    ),
    journey(
        "an orphan of an uninstalled mlx-patches is silent",
        ENABLE,
        step(
            "sh -c",
            "python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'"
            " | xargs -I{} rm {}/beside.pth; python -c 'print(1)'",
            first="1$",
            rows=1,
        ),
    ),
    replace(
        journey(
            "a stand-in of a release is repaired where it is enabled",
            ENABLE,
            step("mlx-patches audit -q", code=2, first=".*some of the code was not measured"),
            DISABLE,
        ),
        where=[EMPTY],
        files=release("mlx-lm", "0.32.2"),
    ),
    # -- run
    runs("run starts Python with the patches", "python -c", WAITS),
    runs("run starts a script of Python", "./host", files={"host": HOST}),
    runs(
        "run starts a script of bash, and its Python has the patches",
        "bash start.sh",
        files={"start.sh": BASH},
        note="bash is not a Python program.*Python",
    ),
    runs(
        "run starts an executable script of bash",
        "./start.sh",
        files={"start.sh": script(BASH)},
        note="start.sh is not a Python program",
    ),
    runs("run starts what env starts", "env A=1 python -c", WAITS, note="is not a Python program"),
    runs("run outranks a MLX_PATCHES of 0", "python -c", WAITS, env={"MLX_PATCHES": "0"}),
    runs("run outranks junk in MLX_PATCHES", "python -c", WAITS, env={"MLX_PATCHES": "banana"}),
    runs("run gives its exit code", "python -c", f"{WAITS}; raise SystemExit(7)", code=7),
    runs(
        "run passes options on",
        "python -c 'import sys; print(sys.argv[1:])' --profile x -h",
        first=r"\['--profile', 'x', '-h'\]",
    ),
    shell(
        "run works without the two hyphens",
        f'mlx-patches run python -c "{WAITS}"',
        first="True",
        note="are active",
    ),
    runs(
        "run gives the profile",
        "python -c",
        "import os; print(os.environ['MLX_PATCHES_PROFILE'])",
        first="safe$",
    ),
    runs(
        "run leaves the name of a model as it is",
        "python -c 'import sys; print(sys.argv[1])'",
        "a b'c\"d",
        first="a b'c\"d$",
    ),
    refused("run without a command is refused", "run", error="'COMMAND...'"),
    refused(
        "run of a command that is not there is refused",
        "run -- no-such-command",
        error="no-such-command: no such command on PATH",
    ),
    refused(
        "run of nothing is refused",
        "run -- ''",
        error="'': no such command on PATH, or it is not executable",
    ),
    refused("run of a folder is refused", "run -- /etc", error="/etc: no such command"),
    refused(
        "run of a file that is not executable is refused",
        "run -- ./start.sh",
        error="start.sh: no such command.*PATH",
        files={"start.sh": "echo hello"},
    ),
    refused(
        "run of a text that nobody can run is refused",
        "run -- ./notes",
        error="notes: cannot be started",
        files={"notes": script("three words here\n")},
    ),
    refused(
        "run of a script whose interpreter is gone is refused",
        "run -- ./host",
        error="gone/python: cannot be started",
        files={"host": script("#!/gone/python\n")},
    ),
    refused(
        "run of a script whose shell is gone is refused",
        "run -- ./host",
        error="host: cannot be started",
        files={"host": script("#!/gone/sh\n")},
    ),
    refused(
        "run of an empty file is refused",
        "run -- ./host",
        error="host: cannot be started",
        files={"host": script("")},
    ),
    *sampled(
        1,
        (
            refused(
                f"run of python {option} is refused",
                "run -- python",
                option,
                "-c",
                "1",
                error=f"{option} ignores what run sets up; omit the option, or use",
            )
            for option in ("-I", "-E", "-S")
        ),
    ),
    refused(
        "run with an unknown profile is refused",
        "run --profile junk -- python",
        error="'junk'; choose from batch, server, security, safe",
    ),
    refused(
        "run with junk in MLX_PATCHES_PROFILE is refused",
        "run -- python -c 1",
        env={"MLX_PATCHES_PROFILE": "junk"},
        error="'junk'; choose from batch",
    ),
    refused(
        "run of a Python without mlx_patches is refused",
        "run -- /usr/bin/python3 -c 1",
        error="no mlx_patches in the environment of this command; install it there",
    ),
    runs(
        "run patches an unmodified program",
        "python -c",
        f"import mlx_lm.models.cache; {STATUS}",
        first="[a-z-]+ +",
        rows=NO_END,
        also=r"applied +[\w-]+ ",
        where=WITH_MLX_LM,
    ),
    # -- ps
    command("ps where nothing runs says so", "ps", first="no patched processes", rows=1),
    command("ps as JSON where nothing runs is an empty list", "ps --json", first=r"\[\]$", rows=1),
    command(
        "ps where its folder is a device says that nothing runs",
        "ps",
        env={"XDG_RUNTIME_DIR": "/dev/null"},
        first="no patched processes",
    ),
    command(
        "ps leaves out a file that is not ours",
        "ps",
        env={"XDG_RUNTIME_DIR": "{work}"},
        first="no patched processes",
        files={"mlx_patches-0/1.json": "nonsense"},
        where=[EMPTY],
    ),
    shell(
        "ps names a process while it runs",
        "mkfifo wait; python -c 'import mlx_lm.models.cache, mlx_patches as m; m.apply();"
        ' print(1, flush=True); open("wait").read()\' > told & '
        "until [ -s told ]; do sleep 0.1; done; mlx-patches ps; echo > wait; wait;"
        " mlx-patches ps; rm told wait",
        first="pid +host +patched",
        where=WITH_MLX_LM,
        rows=8,
        also=(r"\d+ +-c +.*mlx-lm 0.3\d.\d +\d+ +none", "no patched processes"),
    ),
]
