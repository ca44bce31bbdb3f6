import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import mlx_patches

ROOT = Path(__file__).parents[2]


def one(steps, part):
    """The only step that contains a text."""
    (found,) = (step for step in steps if part in str(step))
    return found


def test_every_release_set_has_a_job():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    jobs = workflow["jobs"]["releases"]["strategy"]["matrix"]["session"]
    noxfile = (ROOT / "noxfile.py").read_text()
    by_name, tested, walked = (
        ast.literal_eval(re.findall(rf"^{table} = ([\[(].*?[\])])$", noxfile, re.M | re.S)[0])
        for table in ("BY_NAME", "TESTED", "COMMANDS_IN")
    )
    in_make = ast.literal_eval(re.findall(r"^WALKED = (\{.*?\})$", noxfile, re.M)[0])
    assert jobs == [
        *(f"whole({name})" for name in [*by_name, *tested]),
        *(f"walk({name})" for name in walked[1:] if name not in in_make),
    ]


def test_every_python_of_the_classifiers_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [one.rpartition(" ")[2] for one in project["classifiers"] if " :: 3." in one]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    versions = [step["with"]["python-version"] for job in jobs.values() for step in job["steps"]
        if "setup-python" in step.get("uses", "")]  # fmt: skip
    tested = {*" ".join(versions).split(), *jobs["pythons"]["strategy"]["matrix"]["python"]}
    assert {*named, f"{named[-1]}t"} <= tested  # also without the global interpreter lock
    assert jobs["newest"]["steps"][1]["with"]["python-version"] == named[-1]


RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]


def test_release_is_tested_built_published():
    assert RELEASE["test"]["uses"] == "./.github/workflows/ci.yml"
    assert (RELEASE["build"]["needs"], RELEASE["publish"]["needs"]) == ("test", "build")
    # Only trusted publishing and attestation need a token of the workflow.
    found = {name: job.get("permissions", {}).get("id-token") for name, job in RELEASE.items()}
    assert found == {"test": None, "build": "write", "publish": "write"}


@pytest.mark.parametrize(
    ("tag", "passes"), [("v{version}", True), ("{version}", True), ("v9.9.9", False)]
)
def test_tag_matches_version_and_changelog(tag, passes):
    step = one(RELEASE["build"]["steps"], "changelog")
    tag = tag.format(version=mlx_patches.__version__)
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}
    )
    assert (done.returncode == 0) == passes
