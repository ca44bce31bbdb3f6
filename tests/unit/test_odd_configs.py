"""Odd values of the config fields that the audit reads: one line names the field."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from mlx_patches import MlxPatchesError, cli
from mlx_patches.activation.session import session
from mlx_patches.auditing import audit, installed_code, measured, models
from mlx_patches.auditing.installed_code import Match
from mlx_patches.auditing.verdict import PatchState
from mlx_patches.core import model_files
from mlx_patches.evidence import outside
from mlx_patches.lab import shrink

PUBLISHED = json.loads((Path(__file__).parents[1] / "releases" / "published.json").read_text())


class Recording(dict[str, Any]):
    """A config that records the path of each read key, even if absent."""

    def __init__(self, content, seen, path=()):
        super().__init__(
            {
                key: Recording(one, seen, (*path, key)) if isinstance(one, dict) else one
                for key, one in content.items()
            }
        )
        self.seen, self.path = seen, path

    def read(self, key):
        self.seen.add((*self.path, key))
        return key

    def __getitem__(self, key):
        return super().__getitem__(self.read(key))

    def get(self, key, default=None):
        return super().get(self.read(key), default)

    def __contains__(self, key):
        return super().__contains__(self.read(key))

    def __iter__(self):
        return iter([self.read(key) for key in super().__iter__()])

    def items(self):
        return [(key, self[key]) for key in self]


# JSON texts of every kind.
ODD = (
    *("null", "true", "false", "0", "5", "-5", "1.5", "NaN", "Infinity", "-1e400", "9" * 30),
    *("9" * 4000, '""', '"x"', '"\\ud800"', f'"{"x" * 100_000}"', "[]", "[5]", "[null]", '["x"]'),
    *("[[[5]]]", "[" * 500 + "]" * 500, "{}", '{"a": 5}', '{"type": ["x"]}'),
    *(
        '{"full_attention": 5}',
        '{"full_attention": {"type": {}}}',
        '{"a": ' * 300 + "5" + "}" * 300,
    ),
)
RELEASE = "mlx-lm 0.32.2"
HELD = {kind: {"model_type": kind} for kind in outside.read_compared(RELEASE)}
CONFIGS = {**PUBLISHED, **HELD}
LLAMA = PUBLISHED["SmolLM2-135M"]
OBJECTS = ('{"a": 5}', '{"full_attention": {"a": 5}}')
RIGHT = ("null", "true", "false", "5", "[5]", '["x"]', '{"a": 5}')


def change(config, path, text):
    result = json.loads(json.dumps(config))
    inner = result
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = "ODD"
    return json.dumps(result).replace('"ODD"', text)


@pytest.fixture
def release(site, monkeypatch):
    site.install("mlx", "0.32.0")
    site.install("mlx-lm", RELEASE.split()[1])
    for module in ("models/cache", "generate", "utils"):
        site.write(f"mlx_lm/{module}.py")
    for one in CONFIGS.values():
        site.write(f"mlx_lm/models/{one['model_type']}.py")
    monkeypatch.setattr(installed_code, "match_family", lambda *_: Match(RELEASE, RELEASE))


@pytest.fixture
def seen(monkeypatch):
    found, read = set(), model_files.read_object
    monkeypatch.setattr(model_files, "read_object", lambda path: Recording(read(path), found))
    return found


def judge(folder):
    report = audit.describe_model(session(), folder)
    verdicts = measured.verdicts_of_model(
        session(), report.families, lambda *_: False, None, report.folder.config, report.model_type
    )
    codes = [one.exit_code(PatchState(active=False)) for one in verdicts]
    return codes, bool(report.unused_stops), bool(report.folder.problem)


def judge_config(folder, text):
    try:
        return judge(write(folder, text))
    except MlxPatchesError as error:
        return str(error)


def write(folder, text):
    (folder / "config.json").write_text(text)
    return folder


def test_recorder_finds_keys(release, seen, tmp_path):
    for config in PUBLISHED.values():
        audit.audit(str(write(tmp_path, json.dumps(config))), models=False)
    whole = set(seen)
    known = ("model_type", "eos_token_id", "rope_scaling", "rope_parameters", "text_config")
    assert {*((one,) for one in known), ("text_config", "rope_scaling", "rope_type")} <= whole
    assert {("layer_types",), ("sliding_window",), ("text_config", "eos_token_id")} <= whole
    seen.clear()
    for config in PUBLISHED.values():
        judge(write(tmp_path, json.dumps(config)))
    assert seen == whole


def cases(seen, folder):
    """Each path that is read in any config, with such a config."""
    done: set[tuple[str, ...]] = set()
    left = list(CONFIGS.values())
    while left:
        config = left.pop()
        seen.clear()
        with contextlib.suppress(MlxPatchesError):
            judge(write(folder, json.dumps(config)))
        for path in sorted(seen - done):
            done.add(path)
            yield path, config
            # With an object in its place, other keys may be read.
            left += [json.loads(change(config, path, text)) for text in OBJECTS]


@pytest.mark.slow
def test_odd_value_is_named_or_ignored(release, seen, tmp_path):
    number = 0
    for path, config in cases(seen, tmp_path):
        # The results for values of the right kind, whichever it is.
        right = [judge_config(tmp_path, change(config, path, text)) for text in RIGHT]
        for text in ODD:
            number += 1
            found = judge_config(tmp_path, change(config, path, text))
            if isinstance(found, str):
                assert path[-1] in found and "\n" not in found and len(found) < 600
            else:
                assert found in right or found[-1], (path, text[:50], found, right)
    assert number > 1000


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("path", [("rope_scaling",), ("text_config",), ("layer_types",)], ids=str)
def test_command_prints_one_line(release, tmp_path, capsys, path, text):
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", "-q", "--model", str(write(tmp_path, change(LLAMA, path, text)))])
    shown = capsys.readouterr()
    assert ended.value.code in (0, 1, 2)
    assert len(shown.err.splitlines()) == (not shown.out)
    if shown.err:
        assert ended.value.code == 2 and path[0] in shown.err


@pytest.mark.parametrize("text", ["", "[", *ODD, '{"eos_token_id": {}}'], ids=str.__len__)
def test_odd_generation_config_is_named(release, tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    folder = models.read_folder(write(tmp_path, json.dumps(LLAMA)))
    assert len(folder.problem.splitlines()) <= 1
    assert not folder.problem or "generation_config.json" in folder.problem


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size is '64', not a number"),
        ({"text_config": {"num_attention_heads": -5}}, "text_config.num_attention_heads is -5,"),
        ({"vocab_size": float("nan")}, "vocab_size is nan, not a number"),
        ({"rms_norm_eps": {"a": 1}}, "rms_norm_eps is {'a': 1}, not a number"),
        ({"hidden_size": 64, "eos_token_id": [1], "num_key_value_heads": None}, ""),
    ],
)
def test_invalid_size_is_named(fields, message):
    found = shrink.odd_number(fields)
    assert found.startswith(message) and bool(found) == bool(message)
