"""Commands with right and wrong input: help, explain, list, audit, report, lab and probe."""

from mlx_patches.cli import cli

from .condition import (
    EMPTY,
    MLX_LM,
    NO_END,
    OLDER,
    WITH_MLX,
    Condition,
    command,
    of_folder,
    refuse,
    shell,
    step,
)
from .samples import OF_A_MODEL, OF_A_PART, REGISTRY, SOME, list_needed, model_of
from .things import FULL, LLAMA, link, pipe, release

FIX = r"Fix: +mlx-patches enable +Undo: mlx-patches disable"
LONG = "x" * 5000
SECONDS = 240.0
SMALL = (
    '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64,'
    ' "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 100}'
)

CONDITIONS = [
    # -- help and typing errors
    Condition(
        "every command has help",
        tuple(
            step(
                f"mlx-patches {name} --help",
                first=f"Usage: mlx-patches {name} ",
                also="-h, --help",
                rows=45,
            )
            for name in cli.commands
        ),
    ),
    command("no command shows help", code=2, note="Usage: .*audit.*run ", rows=26),
    refuse("unknown command gets hint", "enablee", error="'enablee'. Did you mean 'enable'"),
    refuse("unknown option gets hint", "audit --modle x", error="'--modle'.*'--model'"),
    shell(
        "removed working directory",
        f"mkdir gone; cd gone; rmdir ../gone; mlx-patches explain {SOME}",
        first=f"{SOME}: ",
        rows=50,
    ),
    # -- explain and list
    command(
        "explain in ASCII",
        f"explain {SOME}",
        env={"PYTHONIOENCODING": "ascii"},
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
    command(
        "explain without docstrings",
        f"explain {OF_A_PART}",
        env={"PYTHONOPTIMIZE": "2"},
        also=("Why", "Retire when"),
        rows=60,
    ),
    command(
        "explain of model patch names model",
        f"explain {OF_A_MODEL}",
        also=f"Ignore it if you do not run {model_of(REGISTRY.get(OF_A_MODEL))}",
        rows=60,
        where=[MLX_LM],
    ),
    refuse(
        "explain of long unknown id is cut",
        "explain",
        LONG,
        error=r"x{100,}\.\.\.'.*mlx-patches list",
    ),
    # -- audit of an environment
    command(
        "audit fits a terminal",
        "audit",
        code=1,
        terminal=True,
        first=".*known defects",
        also=(
            FIX,
            "Proof .<1 min.: mlx-patches probe ",
            "not on Metal|Not on Metal|Metal-only code",
            r"optional security patch.*enable\s+--profile safe,security",
            r"Environment: /.* \(not enabled\) *$",
        ),
        where=WITH_MLX,
    ),
    shell(
        "audit --json without model is small",
        "mlx-patches audit --json | wc -c; mlx-patches audit --json --model llama | grep -c words",
        first=r"\d{5,6}$",
        also=r" [1-9]\d*$",
        where=[MLX_LM],
    ),
    # -- audit of a model
    command(
        "ignored finding does not fail audit",
        "audit --model plamo2" + "".join(f" --ignore {id_}" for id_ in list_needed("plamo2")),
        first="plamo2 gives wrong text in a batch here .* [0-9]+ of 20 scenarios",
        where=[MLX_LM],
    ),
    command(
        "model in two packages has evidence of both",
        "audit --model gemma4",
        code=1,
        first=r"gemma4 gives wrong text in a batch here \(mlx-vlm 0.4.3\)",
        also=(
            FIX,
            "Proof .<1 min.: mlx-patches lab --model gemma4 --scenario ",
            "mlx-vlm 0.4.3: on a CPU in float32; not on Metal. mlx-lm 0.31.3: on a CPU .float32,"
            " bfloat16. and CUDA .float32.; not on Metal.",
        ),
        where=[OLDER],
    ),
    # -- audit of a model's folder
    of_folder(
        "unused stop token",
        FULL,
        code=1,
        first="llama may not stop generating here: stop token 1 is ignored",
        also=r" [\w-]+ +[^?]* does not stop.* Fix: +mlx-patches enable",
        where=[MLX_LM],
        files={"m/generation_config.json": '{"eos_token_id": [2, 3]}'},
    ),
    command(
        "name on the Hub is its download",
        "audit --model org/Toy-4bit",
        first="llama is right",
        also="Proof .minutes.: mlx-patches lab --config .*/snapshots/abc123",
        env={"HF_HOME": "{work}/cache"},
        files={
            "cache/hub/models--org--Toy-4bit/refs/main": "abc123",
            "cache/hub/models--org--Toy-4bit/snapshots/abc123/config.json": FULL,
        },
        where=[MLX_LM],
    ),
    of_folder(
        "config in UTF-16", LLAMA.encode("utf-16"), code=1, first="llama crashes", where=[MLX_LM]
    ),
    *(
        refuse(f"{problem} is refused", f"audit --model {name}", error=error, files=files)
        for problem, name, error, files in (
            ("GGUF file", "m.gguf", "m.gguf: a GGUF file, .*give a model's", {"m.gguf": b"GGUF"}),
            ("weights file", "./w", "w: a file; give the model's folder", {"w": b"\0" * 64}),
            (
                "link to nothing",
                "./m",
                "m: a link to gone, which is not a folder",
                {"m": link("gone")},
            ),
            ("link to itself", "./m", "m: a link to m, which is not a folder", {"m": link("m")}),
            (
                "config that is a link to itself",
                "m",
                "m/config.json: cannot be read: .*symbolic",
                {"m/config.json": link("config.json")},
            ),
            ("config that is a pipe", "m", "m/config.json: cannot be", {"m/config.json": pipe}),
        )
    ),
    refuse("path that is not UTF-8", "audit --model", "f\udcff/x", error=r"f\\udcff/x: no such"),
    shell(
        "code of a folder is not run",
        "mlx-patches audit --model m; mlx-patches audit --measure --model m;"
        " mlx-patches lab --config m; test ! -e ran && echo unharmed",
        where=[MLX_LM],
        code=0,
        also="unharmed",
        note="model_file is evil.py.*does not run",
        files={
            "m/config.json": '{"model_type": "llama", "model_file": "evil.py",'
            ' "auto_map": {"AutoModel": "evil.Model"}}',
            "m/evil.py": "open('ran', 'w')",
        },
    ),
    # -- broken releases
    command(
        "release without MLX",
        "audit",
        code=2,
        first="Nothing could be audited: mlx is not installed in",
        also="mlx is not installed in [^ ]+: install mlx Environment: ",
        never="Fix:",
        files={k: v for k, v in release("mlx-lm", "0.32.2").items() if "mlx-0" not in k},
        where=[EMPTY],
    ),
    # -- settings
    Condition(
        "odd environment variables",
        tuple(
            step(
                "mlx-patches audit -q",
                code=(1, 2),
                env={name: value},
                first=".*known defects|Nothing could be audited",
                rows=3,
            )
            for name, value in (
                ("PYTHONWARNINGS", "error"),
                ("HOME", "/nonexistent"),
                ("TMPDIR", "/nonexistent"),
                ("COLUMNS", "1"),
                ("COLUMNS", "junk"),
                ("MLX_PATCHES_PROFILE", "  "),
            )
        ),
    ),
    # -- lab, probe and recommend
    command(
        "lab of a folder",
        "lab --config m --scenario left-padded --unpatched --json",
        also=('"verdict": "green"', '"config": "m"'),
        rows=NO_END,
        seconds=SECONDS,
        files={"m/config.json": SMALL},
        where=[MLX_LM],
        slow=True,
    ),
    shell(
        "probe without MLX is not green",
        f"mlx-patches probe {SOME} 2>error; echo $?; cat error",
        first="target|2",
        also=f"{SOME}: nothing could be run in this environment",
        never="green",
        writes=("error",),
        where=[EMPTY],
    ),
    command(
        "probe of a family runs scenarios",
        "probe qwen3",
        also="mlx-lm:qwen3 left-padded +green +green",
        rows=NO_END,
        seconds=SECONDS,
        where=[MLX_LM],
        slow=True,
    ),
]
