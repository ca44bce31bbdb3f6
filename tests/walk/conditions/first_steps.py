"""Help, the version, typing errors, completion, and the patches one by one."""

from __future__ import annotations

from ..condition import EMPTY, MLX_LM, NO_END, OLDER, WITH_MLX, command, refused, sampled, shell
from ..samples import (
    OF_A_MODEL,
    OF_A_PART,
    OF_A_SERVER,
    OF_A_THREAD,
    OF_ALL,
    REGISTRY,
    SECURITY,
    SOME,
    TYPO,
    model_of,
)

COMMANDS = (
    "audit",
    "disable",
    "enable",
    "explain",
    "lab",
    "list",
    "probe",
    "ps",
    "recommend",
    "report",
    "run",
)
HELP = r"Try 'mlx-patches( \w+)? --help' for help"
LONG = "x" * 5000

CONDITIONS = [
    command(
        "the help names the exit codes", "--help", first="Usage: ", also="Exit codes: 0", rows=26
    ),
    command(
        "the short -h is the help as well",
        "-h",
        first="Usage: ",
        also="audit .*explain .*run ",
        rows=26,
    ),
    *sampled(
        2,
        (
            command(
                f"{name} has a help of its own",
                name,
                "--help",
                first=f"Usage: mlx-patches {name} ",
                also="-h, --help",
                rows=45,
            )
            for name in COMMANDS
        ),
    ),
    command(
        "the long --version is a line", "--version", first=r"mlx-patches, version \d+\.\d+", rows=1
    ),
    command(
        "the short -V is the version as well", "-V", first=r"mlx-patches, version \d+\.\d+", rows=1
    ),
    command("without a command the help is shown", code=2, note="Usage: .*audit.*run ", rows=26),
    refused(
        "an unknown command is refused", "nonsense", error=f"{HELP}.*No such command 'nonsense'"
    ),
    refused("a mistyped command gets a hint", "enablee", error="'enablee'. Did you mean 'enable'"),
    refused("an unknown option is refused", "--nonsense", error=f"{HELP}.*No such option"),
    refused("a mistyped option gets a hint", "audit --modle x", error="'--modle'.*'--model'"),
    refused("an argument too many is refused", "audit extra", error=f"{HELP}.*argument .extra"),
    refused(
        "an option without its value is refused",
        "audit --model",
        error="'--model' requires an argument",
    ),
    command(
        "completion for bash is printed",
        env={"_MLX_PATCHES_COMPLETE": "bash_source"},
        first="_mlx_patches_completion",
        rows=NO_END,
    ),
    command(
        "completion for zsh is printed",
        env={"_MLX_PATCHES_COMPLETE": "zsh_source"},
        first="#compdef mlx-patches",
        rows=NO_END,
    ),
    command(
        "completion offers the commands",
        env={
            "_MLX_PATCHES_COMPLETE": "bash_complete",
            "COMP_WORDS": "mlx-patches e",
            "COMP_CWORD": "1",
        },
        first="plain,enable",
        also="plain,explain",
    ),
    shell(
        "python -m mlx_patches is the command too",
        "python -m mlx_patches --version",
        first="mlx-patches, version",
        rows=1,
    ),
    shell(
        "a folder with a json.py in it does not disturb",
        "echo 'raise SystemExit(\"theirs\")' > json.py; mlx-patches --version",
        first="mlx-patches, version",
        writes=("json.py",),
    ),
    shell(
        "a folder that was removed meanwhile does not disturb",
        f"mkdir gone; cd gone; rmdir ../gone; mlx-patches explain {SOME}",
        first=f"{SOME}: ",
        rows=50,
    ),
    # -- explain and list
    command(
        "explain says what a patch is about",
        f"explain {SOME}",
        first=f"{SOME}: ",
        also=(
            f"Severity +{REGISTRY.get(SOME).severity}",
            "Here +",
            "Why",
            "How",
            "Upstream",
            "Retire when",
            "Affected releases +mlx-lm",
            f"Reproducer +mlx-patches probe {SOME}",
        ),
        never="`",
        rows=60,
    ),
    *(
        command(
            f"explain of a repair of {what} says when to ignore it",
            "explain",
            id_,
            also=f"Ignore it if you run none of {names}",
            rows=60,
            where=[MLX_LM],
        )
        for what, id_, names in (
            ("a model", OF_A_MODEL, model_of(REGISTRY.get(OF_A_MODEL))),
            ("a server", OF_A_SERVER, "mlx_lm.server"),
        )
    ),
    command(
        "explain of a repair of every model has nothing to ignore",
        f"explain {OF_ALL}",
        also="Here +affected",
        never="Ignore it",
        rows=60,
        where=[MLX_LM],
    ),
    command(
        "explain gives threads as addresses",
        f"explain {OF_A_THREAD}",
        also=r"https://github.com/Blaizzy/mlx-vlm/issues/\d+",
        rows=60,
    ),
    command(
        "explain says that an empty environment is not affected",
        f"explain {SOME}",
        where=[EMPTY],
        also="Here +not affected: .*not installed",
        rows=60,
    ),
    command(
        "explain says that the older pair is affected",
        f"explain {SOME}",
        where=[OLDER],
        also="Here +affected, not repaired here",
        rows=60,
    ),
    command(
        "explain works without docstrings",
        f"explain {OF_A_PART}",
        env={"PYTHONOPTIMIZE": "2"},
        also=("Why", "Retire when"),
        rows=60,
    ),
    refused(
        "explain of an unknown patch gives a hint",
        f"explain {TYPO}",
        error=f"{TYPO!r}; did you mean {SOME!r}.*mlx-patches list",
    ),
    refused("explain of nothing is refused", "explain ''", error="''.*mlx-patches list", slow=True),
    refused("explain without a patch is refused", "explain", error=f"{HELP}.*'PATCH'"),
    refused(
        "explain cuts a name of 5000 characters",
        "explain",
        LONG,
        error=r"x{100,}\.\.\.'.*mlx-patches list",
    ),
    refused(
        "explain of a control character prints none",
        "explain",
        "\x1b[31mred",
        error=r"\\x1b\[31mred",
    ),
    command(
        "list has a line for every patch",
        "list",
        first="patch +here +profiles",
        also=(SOME, SECURITY),
        rows=NO_END,
    ),
    command(
        "list says that nothing is there in an empty environment",
        "list",
        where=[EMPTY],
        also=f"{SOME} +absent",
        rows=NO_END,
    ),
    command(
        "list of a profile is shorter",
        "list --profile security",
        also=SECURITY,
        never=SOME,
        rows=NO_END,
    ),
    command(
        "list as JSON says the status of each",
        "list --json",
        also=('"schema": 1', f'"patch": "{SOME}"', '"status": "'),
        rows=NO_END,
    ),
    refused(
        "list of an unknown profile names those that there are",
        "list --profile junk",
        error="'junk'; choose from batch, server, security, safe",
    ),
    refused(
        "list of no profile is refused",
        "list --profile ''",
        error="''; choose from batch",
        slow=True,
    ),
    command(
        "list says what is not in effect", "list", where=WITH_MLX, also="disabled", rows=NO_END
    ),
    command("list fits a terminal", "list", terminal=True, also=SOME, rows=NO_END, slow=True),
]
