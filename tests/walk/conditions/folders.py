"""Broken and hostile model folders: each is one line, whatever is in it."""

from __future__ import annotations

from ..condition import (
    EMPTY,
    MLX_LM,
    WITH_MLX,
    Condition,
    Content,
    command,
    of_folder,
    refused,
    sampled,
    shell,
)
from ..things import FULL, LLAMA, folder, link, pipe, unreadable

DEEP = "[" * 100_000
DIGITS = f'{{"model_type": "llama", "eos_token_id": {"9" * 5000}}}'


def bad(says: str, content: Content, error: str) -> Condition:
    """A config.json that cannot be used."""
    return of_folder(
        f"a config.json {says} is refused", content, code=2, error=f"m/config.json: {error}"
    )


def odd(says: str, eos: str, **more: object) -> Condition:
    """A llama with unusual stop tokens."""
    return of_folder(
        f"stop tokens that are {says} are told",
        LLAMA.replace('": 1', f'": {eos}'),
        code=1,
        where=[MLX_LM],
        **more,
    )


CONDITIONS = [
    *sampled(
        6,
        [
            bad(
                "that is not JSON",
                "model_type: llama",
                "line 1: not valid JSON .*download it again",
            ),
            bad("that is cut", LLAMA[:20], "line 1: not valid JSON .*download it again"),
            bad("that is a list", "[]", "not a JSON object; download it again"),
            bad("that is a text", '"llama"', "not a JSON object; download it again"),
            bad("that is a number", "7", "not a JSON object; download it again"),
            bad("that is null", "null", "not a JSON object; download it again"),
            bad("that is empty", "", "line 1: not valid JSON .*download it again"),
            bad("of blanks", " \n\t\n", "line 3: not valid JSON .*download it again"),
            bad("that is binary", b"\x80\x81\xff\x00" * 50, "cannot be read: .*utf-8"),
            bad("of zeros", b"\0" * 1000, "line 1: not valid JSON"),
            bad("that is a folder", folder, "cannot be read: not a regular file"),
            bad("that is a named pipe", pipe, "cannot be read: not a regular file"),
            bad("that cannot be read", unreadable, "cannot be read"),
            bad(
                "that is a link to nothing",
                link("nowhere"),
                "no such file; is this a model's folder",
            ),
            bad(
                "that is a link to itself", link("config.json"), "cannot be read: .*symbolic links"
            ),
            bad(
                "that is a device without end",
                link("/dev/zero"),
                "cannot be read: not a regular file",
            ),
            bad("nested 100,000 deep", DEEP, "nested too deeply; not a config"),
            bad("with a number of 5000 digits", DIGITS, "not a config: .*digits"),
            bad(
                "of 11 MB",
                '{"x": "' + "y" * 11_000_000 + '"}',
                "larger than 10000000 bytes; not a config",
            ),
            bad("without a model_type", "{}", "no model_type; is this a model's folder"),
            bad("whose model_type is a number", '{"model_type": 7}', "no model_type"),
            bad("whose model_type is a list", '{"model_type": ["llama"]}', "no model_type"),
            bad("whose model_type is empty", '{"model_type": ""}', "no model_type"),
            bad("whose model_type is null", '{"model_type": null}', "no model_type"),
        ],
    ),
    refused(
        "a folder without a config.json is refused",
        "audit --model m",
        error="m/config.json: no such file; is this a model's folder",
        files={"m/x": ""},
    ),
    refused(
        "a folder that is a link to itself is refused",
        "audit --model m/loop",
        error="m/loop: a link to loop, which is not a folder",
        files={"m/loop": link("loop")},
    ),
    refused(
        "a report of a broken folder is refused",
        "report --model m",
        error="m/config.json: line 1: not valid JSON",
        files={"m/config.json": "{"},
    ),
    of_folder(
        "a model type of 5000 characters in a config is cut",
        f'{{"model_type": "{"x" * 5000}"}}',
        code=2,
        error=r"x{100,}\.\.\.' in mlx-",
        where=WITH_MLX,
    ),
    of_folder(
        "a model type with a path in a config is refused",
        '{"model_type": "../../evil"}',
        code=2,
        error=r"no model type '\.\./\.\./evil'",
        where=WITH_MLX,
    ),
    of_folder(
        "a model type with control characters prints none",
        r'{"model_type": "\u001b[31mred\nllama"}',
        code=2,
        error=r"no model type '\\+x1b\[31mred\\+nllama'",
        where=WITH_MLX,
    ),
    of_folder(
        "a model type of half a character is refused",
        r'{"model_type": "\ud800"}',
        code=2,
        error=r"no model type '\\+ud800'",
        where=WITH_MLX,
    ),
    of_folder(
        "a config with a mark at its beginning is read",
        b"\xef\xbb\xbf" + LLAMA.encode(),
        code=1,
        first="llama crashes",
        where=[MLX_LM],
    ),
    command(
        "a folder with a blank and quotes in its name is quoted",
        "audit --model",
        "it's m",
        code=1,
        also="""lab --config 'it'"'"'s m'""",
        files={"it's m/config.json": LLAMA},
        where=[MLX_LM],
    ),
    command(
        "a folder whose name is 250 characters is a screen",
        "audit --model",
        "m" * 250,
        code=1,
        first="llama crashes",
        files={f"{'m' * 250}/config.json": LLAMA},
        where=[MLX_LM],
    ),
    of_folder(
        "a config.json in another encoding is read",
        LLAMA.encode("utf-16"),
        code=1,
        first="llama crashes",
        where=[MLX_LM],
    ),
    of_folder(
        "a key that is there twice counts once",
        '{"model_type": "x", "model_type": "llama", "sliding_window": 9}',
        code=1,
        first="llama crashes",
        where=[MLX_LM],
    ),
    odd("a text", '"</s>"', also="eos_token_id is .*</s>.*not an id or a list of ids"),
    odd("true", "true", also="eos_token_id is True, not an id or a list of ids"),
    odd("a number with a point", "1.5", also="eos_token_id is 1.5, not an id"),
    odd("a mapping", '{"a": 1}', also="eos_token_id is .*not an id"),
    odd("huge", "123456789012345678901234567890", first="llama crashes"),
    odd("below zero", "[-1, 2]", first="llama crashes"),
    odd("none at all", "[]", first="llama crashes"),
    of_folder(
        "a generation_config.json that is not JSON is told with its name",
        LLAMA,
        code=1,
        also="m/generation_config.json: line 1: not valid JSON",
        where=[MLX_LM],
        files={"m/generation_config.json": "{"},
    ),
    of_folder(
        "a generation_config.json that is a folder is told with its name",
        LLAMA,
        code=1,
        also="m/generation_config.json: cannot be read",
        where=[MLX_LM],
        files={"m/generation_config.json/x": ""},
    ),
    of_folder(
        "stop tokens that the release uses raise no alarm",
        FULL,
        first="llama is right",
        never="Fix:",
        where=[MLX_LM],
        files={"m/generation_config.json": '{"eos_token_id": [1, 2]}'},
    ),
    of_folder(
        "a stop token that the release does not use is the verdict",
        FULL,
        code=1,
        first="llama may not stop generating here: stop token 1 is ignored",
        also=r" [\w-]+ +[^?]* stop .* Fix: +mlx-patches enable",
        where=[MLX_LM],
        files={"m/generation_config.json": '{"eos_token_id": [2, 3]}'},
    ),
    shell(
        "a folder is never executed",
        "mlx-patches audit --model m; test ! -e ran && echo unharmed",
        where=[EMPTY],
        also="unharmed",
        files={
            "m/config.json": '{"model_type": "llama", "model_file": "evil.py",'
            ' "auto_map": {"AutoModel": "evil.Model"}}',
            "m/evil.py": "open('ran', 'w')",
        },
    ),
]
