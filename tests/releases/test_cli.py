import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from mlx_patches.evidence import store, words

from .conftest import is_installed

PRESENT = [name for name in ("mlx-lm", "mlx-vlm") if is_installed(name)]


def python(*arguments, env=None):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def run(*arguments):
    return python("-m", "mlx_patches", *arguments)


@pytest.fixture
def enabled():
    assert run("enable").returncode == 0
    yield
    assert run("disable").returncode == 0


def test_audit_json_is_documented(enabled):
    done = run("audit", "--json")
    report = json.loads(done.stdout)
    assert report["schema"] == 1
    assert report["exit_code"] == done.returncode == 0
    assert report["active"] is True
    assert {d["name"] for d in report["distributions"]} >= {*PRESENT, "mlx"}
    statuses = {row["status"] for row in report["patches"]}
    assert "pending" in statuses
    assert not [row for row in report["patches"] if row["finding"]]
    documented = Path(__file__).parents[2] / "docs" / "audit-json.md"
    text = documented.read_text()
    for key in (*report, *report["patches"][0]):
        assert f"`{key}`" in text, key


def test_json_objects_are_documented():
    report = json.loads(run("audit", "--json", "-v").stdout)
    text = (Path(__file__).parents[2] / "docs" / "audit-json.md").read_text()
    assert report["verdicts"]
    for one in report["verdicts"]:
        assert not {key for key in one if f"`{key}`" not in text}
        assert not {key for cell in one["cells"] for key in cell if f"`{key}`" not in text}


# Prints the files of the lab's evidence that an audit opens.
OPENED = """
import sys
opened = set()
sys.addaudithook(lambda event, given: event == "open" and opened.add(str(given[0])))
import mlx_patches
mlx_patches.audit()
print("\\n".join(one for one in opened if "/evidence/lab/" in one))
"""


def test_audit_reads_the_evidence_of_installed_releases():
    """All evidence has 5 MB, a fifth of an audit's time."""
    opened = [Path(line).name for line in python("-P", "-c", OPENED).stdout.splitlines()]
    installed = tuple(f"{name}-{metadata.version(name)}" for name in PRESENT)
    assert opened
    assert not [name for name in opened if not name.startswith(installed)]


def test_list_reads_no_evidence():
    code = OPENED.replace("audit()", "auditing.listing.list_patches()")
    code = code.replace("import mlx_patches\n", "import mlx_patches.auditing.listing\n")
    done = python("-P", "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def screens():
    """The audit's output for the environment and for some of its models."""
    for model in ([], ["--model", "gemma3"], ["--model", "qwen3"], ["--model", "llama4"]):
        done = run("audit", *model)
        if "no model type" not in done.stderr:
            yield model, done


def test_screen_fits_twenty_lines(enabled):
    seen = dict.fromkeys((0, 1, 2), 0)
    for state in ("enabled", "disabled"):
        for model, done in screens():
            lines = done.stdout.splitlines()
            assert sum(-(-max(len(line), 1) // 80) for line in lines) <= 20, (state, model)
            verdict = re.escape(model[-1]) if model else r"Nothing to do|\d+ known defects of"
            assert re.match(verdict, lines[0]), lines[0]
            # A line for each release where their evidence differs.
            measured = [
                one for one in lines if re.match(r"(Measured|mlx-\S+ [\d.]+:) on a CPU", one)
            ]
            assert measured
            assert all("not on Metal" in one or "Metal-only code" in one for one in measured)
            assert sys.prefix in lines[-1]
            seen[done.returncode] += 1
            if done.returncode == 2:
                assert "was not measured with the patches" in " ".join(done.stdout.split())
        assert run("disable").returncode == 0
    assert seen[0] and seen[1]


def test_verdict_before_and_after(enabled):
    """The model is right whatever is enabled; if the generator itself is wrong, it is repaired."""
    evidence = is_installed("mlx-lm") and store.load_set(f"mlx-lm {metadata.version('mlx-lm')}")
    right = not evidence or words.family_result(store.pairs_of(evidence, "qwen3")) == words.GREEN
    for code, message in ((0, " is repaired here "), (1, " gives wrong text ")):
        done = run("audit", "--model", "qwen3", "-q")
        if "no model type" not in done.stderr:
            expected = (0, " is right ") if right else (code, message)
            assert done.returncode == expected[0] and expected[1] in done.stdout, done.stdout
        assert run("disable").returncode == 0


def test_readme_sample_is_current():
    """The README's sample is of one release set; its path stands for any environment."""
    versions = [metadata.version(name) for name in ("mlx-lm", "mlx-vlm") if is_installed(name)]
    if versions != ["0.31.3", "0.4.3"]:
        pytest.skip("the sample is of mlx-vlm 0.4.3")
    done = run("audit", "--model", "gemma4")
    assert done.returncode == 1
    sample = done.stdout.replace(sys.prefix, "/path/to/env").strip()
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert sample in readme, f"run make write\n{sample}"


def test_enabled_environment_patches_program(enabled):
    distribution = PRESENT[-1]
    package = distribution.replace("-", "_")
    model = "gemma4.language" if distribution == "mlx-vlm" else "gemma2"
    code = (
        f"import {package}.models.{model}, {package}.models.cache, sys\n"
        "import mlx_patches\n"
        "print(sorted({o.patch for o in mlx_patches.status() if o.status == 'applied'}))"
    )
    done = python("-c", code)
    assert "frozen-state" in done.stdout, done.stderr
    first = "assert 'mlx_patches.activation.session' not in sys.modules\nimport mlx_patches\n"
    code = code.replace("import mlx_patches\n", first)
    off = python("-c", code, env={"MLX_PATCHES": "0"})
    assert off.stdout.strip() == "[]", off.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config.json: no such file"),
        ("{", "config.json: line 1: not valid JSON"),
        ("[]", "config.json: not a JSON object"),
        ("{}", "config.json: no model_type"),
        ("[" * 100_000, "config.json: "),
    ],
)
def test_broken_config_is_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    done = run("audit", "--model", str(tmp_path))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_explain_and_list_every_patch():
    from click.testing import CliRunner

    from mlx_patches.cli import cli
    from mlx_patches.patches import catalogue

    listed = run("list").stdout
    for patch in catalogue.builtin():
        assert patch.id in listed
        # In this process, since a process per patch takes most of a minute.
        explained = CliRunner().invoke(cli, ["explain", patch.id])
        assert explained.exit_code == 0
        for heading in ("Why", "How", "Upstream", "Retire when"):
            assert f"\n{heading}\n" in explained.stdout, (patch.id, heading)
    assert run("explain", patch.id).stdout.split() == explained.stdout.split()  # of any width
