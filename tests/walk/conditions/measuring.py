"""The lab, probes and recommendations: refused arguments, and short real runs."""

from __future__ import annotations

from ..condition import (
    EMPTY,
    MLX_LM,
    MLX_VLM,
    NO_END,
    OLDER,
    VLLM_MLX,
    WITH_MLX,
    WITH_MLX_LM,
    command,
    refused,
    sampled,
    shell,
)
from ..samples import OF_ALL, SOME, TYPO

NEITHER = "neither mlx-lm nor mlx-vlm is installed"
LONG = "x" * 5000
SECONDS = 240.0

CONDITIONS = [
    # -- lab: usage
    *sampled(
        2,
        (
            refused(
                f"a time limit of {seconds} is refused",
                "lab --timeout",
                seconds,
                error=f"'--timeout': '?{seconds}'? is no",
            )
            for seconds in ("nan", "-1", "0", "inf", "-inf", "soon")
        ),
    ),
    refused("no jobs at all are refused", "lab --jobs 0", error="'--jobs': 0 is not in the range"),
    refused(
        "a scenario that is none names those that there are",
        "lab --scenario nonsense",
        error="no scenario 'nonsense'; choose from: left-padded, ",
    ),
    refused(
        "a dtype that is none is refused",
        "lab --dtype float8",
        error="'--dtype': 'float8' is not one of",
    ),
    refused(
        "a folder shrunk and taken as it is is refused",
        "lab --config m --weights m",
        error="--config shrinks a model, --weights runs it at full size: give one",
    ),
    refused(
        "a dtype for weights of their own is refused",
        "lab --weights m --dtype bfloat16",
        error="--weights runs a model in its own dtype: omit --dtype",
    ),
    refused("the lab without MLX says what is missing", "lab", error=NEITHER, where=[EMPTY]),
    refused(
        "the lab of a family without MLX says what is missing",
        "lab --model gemma4",
        error=NEITHER,
        where=[EMPTY],
    ),
    refused(
        "the lab of a family that is none is refused",
        "lab --model nonsense",
        error=r"no family 'nonsense' in this environment \(mlx ",
        where=WITH_MLX,
    ),
    refused(
        "the lab of a family of 5000 characters is refused",
        "lab --model",
        LONG,
        error="no family '",
        where=WITH_MLX,
    ),
    refused(
        "the lab of a folder that is not there is refused",
        "lab --config nowhere",
        error="nowhere/config.json: no such file; is this a model's folder",
        where=WITH_MLX,
    ),
    refused(
        "the lab of a folder that is broken is refused",
        "lab --config m",
        error="m/config.json: line 1: not valid JSON",
        where=WITH_MLX,
        files={"m/config.json": "{"},
    ),
    refused(
        "the lab of a folder that runs code is refused",
        "lab --config m",
        error="model_file is evil.py.*does not run",
        where=WITH_MLX_LM,
        files={"m/config.json": '{"model_type": "llama", "model_file": "evil.py"}'},
    ),
    # -- lab: its file
    *(
        refused(
            f"the lab does not write over {what}",
            "lab --model llama --out notes",
            error="notes: line 1: not a row of the lab; give --out another file",
            files={"notes": text},
            where=[MLX_LM],
        )
        for what, text in (
            ("three words", "three words here"),
            ("a line of text", "a line\n"),
            ("a number", "7"),
            ("JSON of others", '{"other": 1}\n'),
            ("a half line of JSON", '{"other": 1'),
        )
    ),
    refused(
        "the lab does not write over a picture",
        "lab --model llama --out p.png",
        error="p.png: cannot be read",
        files={"p.png": b"\x89PNG\r\n\xff"},
        where=[MLX_LM],
    ),
    refused(
        "the lab does not write into a folder",
        "lab --model llama --out m",
        error="m: cannot be read",
        files={"m/x": ""},
        where=[MLX_LM],
    ),
    refused(
        "the lab does not make folders",
        "lab --model llama --out no/rows",
        error="no/rows: cannot be written",
        where=[MLX_LM],
    ),
    # -- lab: real runs
    command(
        "the lab measures a family",
        "lab --model llama --scenario left-padded --out rows.jsonl",
        first="Families without the patches: 1 green",
        also="Families with the patches: 1 green",
        seconds=SECONDS,
        rows=NO_END,
        writes=("rows.jsonl",),
        where=[MLX_LM],
        slow=True,
    ),
    command(
        "the lab that is out of time says so and is red",
        "lab --model llama --unpatched --scenario left-padded --timeout 0.01",
        code=1,
        also="red",
        rows=NO_END,
        where=[MLX_LM],
        slow=True,
    ),
    command(
        "the lab of a folder shrinks it",
        "lab --config m --scenario left-padded --unpatched --json",
        also=('"verdict": "green"', '"config": "m"'),
        rows=NO_END,
        seconds=SECONDS,
        where=[MLX_LM],
        slow=True,
        files={
            "m/config.json": '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers":'
            ' 2, "intermediate_size": 64, "num_attention_heads": 4, "rms_norm_eps": 1e-5,'
            ' "vocab_size": 100}'
        },
    ),
    command(
        "a folder that is measured gets its own verdict",
        "audit --measure --model m",
        code=(0, 1),
        first="llama ",
        also="Measured now on",
        seconds=SECONDS,
        rows=NO_END,
        where=[MLX_LM],
        slow=True,
        files={
            "m/config.json": '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers":'
            ' 2, "intermediate_size": 64, "num_attention_heads": 4, "rms_norm_eps": 1e-5,'
            ' "vocab_size": 100}'
        },
    ),
    # -- probe
    refused("a probe of nothing is refused", "probe ''", error="no patch or model ''"),
    refused(
        "a probe of what is none gives a hint",
        f"probe {TYPO}",
        error=f"{TYPO!r}; did you mean {SOME!r}",
    ),
    refused("a probe of 5000 characters is cut", "probe", LONG, error=r"x{100,}\.\.\.'"),
    shell(
        "a probe without MLX is not green",
        f"mlx-patches probe {SOME} 2>error; echo $?; cat error",
        first="target|2",
        also=f"{SOME}: nothing could be run in this environment",
        never="green",
        writes=("error",),
        where=[EMPTY],
    ),
    command(
        "a probe of a defect is red without and green with",
        f"probe {SOME}",
        also="red +green",
        rows=NO_END,
        seconds=SECONDS,
        where=[OLDER],
        slow=True,
    ),
    command(
        "a probe of a model is red without and green with",
        "probe gemma4",
        also="red +green",
        rows=NO_END,
        seconds=SECONDS,
        where=[OLDER],
        slow=True,
    ),
    command(
        "a probe of a family of the lab runs its scenarios",
        "probe qwen3",
        also="mlx-lm:qwen3 left-padded +green +green",
        rows=NO_END,
        seconds=SECONDS,
        where=[MLX_LM],
        slow=True,
    ),
    command(
        "a probe as JSON is JSON",
        f"probe {OF_ALL} --json",
        rows=NO_END,
        first=r"\[",
        also='"with": "green"',
        seconds=SECONDS,
        where=[MLX_LM],
        slow=True,
    ),
    # -- recommend
    command(
        "a recommendation needs no MLX",
        "recommend --model gemma4",
        also=(r"gemma4 in mlx-(v?)lm, from the lab's evidence", "newest to use +mlx-"),
    ),
    command(
        "a recommendation says with which patches",
        "recommend --model gemma4",
        also="mlx-vlm [0-9.]+ with the patches",
        where=[EMPTY, MLX_VLM, OLDER, VLLM_MLX],
    ),
    command(
        "a recommendation as JSON is JSON",
        "recommend --model gemma4 --json",
        first=r"\[",
        also='"best_repaired": "mlx-',
        rows=NO_END,
    ),
    command(
        "a recommendation for a host is what it admits",
        "recommend --model gemma4 --host vllm-mlx",
        also="newest to use +mlx-lm 0.31.3",
        where=[VLLM_MLX],
    ),
    refused("a recommendation without a model is refused", "recommend", error="'--model'"),
    refused(
        "a recommendation of an unknown model gives a hint",
        "recommend --model gemma44",
        error="no evidence for model 'gemma44'; did you mean 'gemma4'",
    ),
    refused(
        "a recommendation of no model is refused",
        "recommend --model ''",
        error="no evidence for model ''",
    ),
    refused(
        "a recommendation of 5000 characters is cut",
        "recommend --model",
        LONG,
        error=r"x{100,}\.\.\.'",
    ),
    refused(
        "a recommendation for a host that is not there is refused",
        "recommend --model gemma4 --host omlx",
        error="omlx is not installed here; install it or omit --host",
    ),
]
