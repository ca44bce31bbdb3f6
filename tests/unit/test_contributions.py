import json
import logging
import os
import re
import signal
import sys

import pytest

import mlx_patches
from mlx_patches import cli
from mlx_patches.activation import contributions, enable
from mlx_patches.activation import session as activation
from mlx_patches.activation.session import session
from mlx_patches.patches import catalogue

from .conftest import Site, load, run_command, statuses

PATCHES = '''
"""A patch of another package."""
from mlx_patches.plugin import Contribution, Patch, Target, around

TWICE = Contribution(
    patch=Patch(
        id="their-patch",
        summary="an update is lost",
        targets=(
            Target("fake-lm", "fake_lm.cache", "Cache.update", around(lambda f, *a: 2 * f(*a))),
        ),
        probe="their_patches:probe",
        module=__name__,
    ),
    affected={"fake-lm": "RANGE"},
    fixed=FIXED,
)

def probe(target):
    """Red where an update counts once."""
    from fake_lm.cache import Cache
    from mlx_patches.probes import Result
    return Result(Cache().update(3) == 3, "it was probed")

BAD = Contribution(TWICE.patch, affected=None)
'''


@pytest.fixture
def theirs(fake):
    def install(affected="<2", points="twice = their_patches:TWICE", fixed="{}"):
        code = PATCHES.replace("RANGE", affected).replace("FIXED", fixed)
        fake.write("their_patches.py", code)
        info = fake.install("their-package")
        (info / "entry_points.txt").write_text(f"[mlx_patches.patches]\n{points}\n")

    return install


def test_contributed_patch_is_applied(theirs, fake):
    theirs()
    mlx_patches.apply()
    assert load("fake_lm.cache").Cache().update(3) == 6
    assert session().registry.origin("their-patch") == "their-package"
    row = next(r for r in mlx_patches.audit().as_dict()["patches"] if r["patch"] == "their-patch")
    assert (row["origin"], row["status"]) == ("their-package", "applied")
    mlx_patches.restore()
    assert load("fake_lm.cache").Cache().update(3) == 3


@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize(
    ("affected", "fixed", "status", "reason"),
    [
        ("<1", "{}", "not-affected", "1.0 is outside <1; declared by their-package"),
        (">1,<3", "{}", "not-affected", "1.0 is outside >1,<3; declared by their-package"),
        ("<1", "{'fake-lm': '>=1'}", "fixed-upstream", "fixed upstream (>=1); declared by their-"),
        ("<0.5", "{'fake-lm': '>=2'}", "not-affected", "1.0 is outside <0.5; declared by their-"),
    ],
)
def test_declared_range_decides(theirs, imported, affected, fixed, status, reason):
    theirs(affected, fixed=fixed)
    if imported:
        load("fake_lm.cache")
        mlx_patches.apply(["their-patch"], strict=True)
    report = mlx_patches.audit()
    (outcome,) = [o for o in report.outcomes if o.patch == "their-patch"]
    assert outcome.status == status
    assert outcome.reason.startswith(reason)
    assert not outcome.finding


@pytest.fixture
def command(fake):
    def run(*arguments, **variables):
        paths = filter(None, [str(fake.root), os.environ.get("PYTHONPATH")])
        variables = {"PYTHONPATH": os.pathsep.join(paths), **variables}
        return run_command([sys.executable, "-m", "mlx_patches", *arguments], **variables)

    return run


def test_probe(theirs, command):
    theirs()
    done = command("probe", "their-patch", "--json")
    (row,) = json.loads(done.stdout)
    assert (row["without"], row["with"], done.returncode) == ("red", "green", 0), row
    assert "mlx-patches probe their-patch" in command("explain", "their-patch").stdout


def test_probe_in_enabled_environment(theirs, command, fake):
    theirs()
    fake.write("sitecustomize.py", "import mlx_patches.auto")
    (row,) = json.loads(command("probe", "their-patch", "--json", MLX_PATCHES="1").stdout)
    assert (row["without"], row["with"]) == ("red", "green"), row


def test_probe_respects_disable(theirs, command):
    theirs()
    done = command("probe", "their-patch", "--json", MLX_PATCHES_DISABLE="their-patch")
    (row,) = json.loads(done.stdout)
    assert (row["without"], row["with"], done.returncode) == ("red", "red", 1), row
    done = command("probe", "their-patch", MLX_PATCHES_DISABLE="their-package")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mlx-patches: no patch or model 'their-patch'")


@pytest.mark.parametrize("name", ["their-patch", "their-package", "all"])
def test_disable(theirs, monkeypatch, name):
    theirs()
    monkeypatch.setenv("MLX_PATCHES_DISABLE", name)
    mlx_patches.apply()
    assert load("fake_lm.cache").Cache().update(3) == 3


def test_list_names_distribution(theirs, monkeypatch, capsys):
    def invoke(*arguments, codes=(0, 1)):
        monkeypatch.setattr(activation, "_session", None)
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        assert ended.value.code in codes
        return capsys.readouterr().out

    theirs()
    (line,) = [line for line in invoke("list").splitlines() if line.startswith("their-patch")]
    profiles = ["batch,", "server,", "safe"]
    lost = ["an", "update", "is", "lost"]
    assert line.split() == ["their-patch", "disabled", *profiles, *lost, "their-package"]
    assert "Contributed by\n    their-package" in invoke("explain", "their-patch")
    assert "their-patch (their-package)" in invoke("audit", "--all")
    monkeypatch.setenv("MLX_PATCHES_DISABLE", "Their.Package")
    assert "skipped by MLX_PATCHES_DISABLE: the patches of their-package" in invoke("list")
    # No patch is left for the installed releases: exit code 2.
    assert "their-patch" not in invoke("audit", "--all", codes=(2,))


def test_disabled_distribution_is_not_imported(theirs, monkeypatch, fake):
    theirs()
    fake.write("their_patches.py", "raise SystemExit('imported')")
    monkeypatch.setenv("MLX_PATCHES_DISABLE", "their-package")
    mlx_patches.apply()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('id="their-patch"', "id=5", "the id is 5; use a to z, digits and hyphens"),
        ('id="their-patch"', 'id="Their patch!"', "the id is 'Their patch!'; use a to z"),
        ("an update", r"an\n\x1b[31mupdate", "the summary is .*; use one printable line"),
        ('Target("fake-lm"', 'Target("fake-ml"', "affected has no range for fake-ml, which it"),
        ("around(lambda f, *a: 2 * f(*a))", "2", "not a tuple of Targets with functions"),
        ("targets=(", "targets=list, **dict(doc=", "not a tuple of Targets with functions"),
        ('id="their-patch"', 'id="their-patch", profiles=["batch"]', "'list' in a field; use tup"),
    ],
)
def test_misdeclared_contribution_is_skipped(theirs, fake, caplog, before, after, message):
    theirs()
    code = (fake.root / "their_patches.py").read_text()
    fake.write("their_patches.py", code.replace(before, after))
    mlx_patches.apply()
    (record,) = [one for one in caplog.records if "was skipped" in one.message]
    assert re.search(message, record.message)
    assert re.search(r"\(.*/their_patches.py:\d+\)$", record.message)


@pytest.mark.parametrize(
    ("points", "affected", "message"),
    [
        ("twice = their_patches:BAD", "<2", "BAD: AttributeError: .*/their_patches.py:25"),
        ("twice = their_patches:NONE", "<2", "NONE: AttributeError: .*/entry_points.txt:2"),
        ("twice = no_such_module", "<2", "no_such_module: ModuleNotFoundError: .*_points.txt:2"),
        ("twice = leaving", "<2", "leaving: SystemExit: 3 .*/leaving.py:1"),
        ("twice = their_patches:Patch", "<2", "it is not a Contribution .*/their_patches.py:3"),
        ("twice = their_patches:TWICE", "newest", "Invalid specifier.*/their_patches.py:5"),
        ("twice = their_patches:TWICE", "", "their-patch: an empty .*/their_patches.py:5"),
        (
            "one = their_patches:TWICE\ntwice = their_patches:TWICE",
            "<2",
            "patch 'their-patch' is registered already .*/their_patches.py:5",
        ),
    ],
)
def test_unusable_contribution_is_skipped(theirs, fake, caplog, points, affected, message):
    fake.write("leaving.py", "raise SystemExit(3)")
    theirs(affected, points)
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        mlx_patches.apply()
    (record,) = [one for one in caplog.records if "was skipped" in one.message]
    assert "entry point twice of their-package was skipped: " in record.message
    assert re.search(message, record.message)
    assert set(catalogue.builtin().ids()) <= set(session().registry.ids())
    assert ("their-patch" in session().registry) == ("registered already" in message)


MISSPELT = "fake_lm.cache:Cache.updat does not exist in this release; "


@pytest.mark.parametrize("is_imported", [True, False])
def test_misspelt_target(theirs, fake, command, is_imported):
    theirs()
    code = (fake.root / "their_patches.py").read_text()
    code = code.replace("Cache.update", "Cache.updat").replace("        module=__name__,\n", "")
    fake.write("their_patches.py", code)
    if is_imported:
        load("fake_lm.cache")
    mlx_patches.apply(["their-patch"])
    load("fake_lm.cache")
    place = f"{fake.root / 'their_patches.py'}:10 names it; declared by their-package"
    (outcome,) = [one for one in mlx_patches.status() if one.patch == "their-patch"]
    assert (outcome.status, outcome.reason) == ("failed", MISSPELT + place)
    assert any(line.endswith(MISSPELT + place) for line in mlx_patches.audit().findings)
    done = command("probe", "their-patch")
    assert MISSPELT in done.stdout + done.stderr


def test_target_of_another_release_is_absent(theirs, fake):
    """One that has another of the patch's targets is not misspelt there."""
    theirs()
    code = (fake.root / "their_patches.py").read_text()
    own = next(line for line in code.splitlines(True) if "Target(" in line and "update" in line)
    other = own.replace("Cache.update", "Cache.older")
    fake.write("their_patches.py", code.replace(own, own + other))
    load("fake_lm.cache")
    mlx_patches.apply(["their-patch"])
    assert statuses(mlx_patches.status()) == ["applied", "absent"]


@pytest.mark.parametrize(
    ("code", "error", "line"),
    [
        ("x = Patchh(3)", "NameError: name 'Patchh' is not defined", "their_code.py:3"),
        ("def (", "SyntaxError: invalid syntax", "their_code.py:3"),
        ("import json; json.loads('{')", "JSONDecodeError: Expecting", "their_code.py:3"),
        ("raise BaseException('b')", "BaseException: b", "their_code.py:3"),
        ("raise GeneratorExit", "GeneratorExit", "their_code.py:3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "their_code.py:3"),
        ("y = 5", "AttributeError: module 'their_code' has no attribute 'x'", "entry_points.txt:2"),
        ("x = 5", "TypeError: it is not a Contribution", "their_code.py:3"),
    ],
)
def test_import_error_is_located(theirs, fake, caplog, code, error, line):
    fake.write("their_code.py", f"a = 1\n\n{code}\n")
    theirs(points="x = their_code:x")
    mlx_patches.apply()
    (record,) = [one for one in caplog.records if "was skipped" in one.message]
    message = record.message
    begins = "mlx_patches: entry point x of their-package was skipped: their_code:x: "
    assert message.startswith(begins + error)
    assert message.endswith(f"/{line})")
    assert str(fake.root) in message


def test_user_interrupt_ends_import(theirs, fake):
    """The signal's KeyboardInterrupt comes between two instructions of the plug-in."""
    fake.write("their_code.py", "import signal\nsignal.raise_signal(signal.SIGINT)\nx = 1\n")
    theirs(points="x = their_code:x")
    # A shell's background job ignores the signal.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            mlx_patches.apply()
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("error", ["BaseException", "GeneratorExit", "SystemExit"])
def test_factory_error_is_rolled_back(theirs, fake, caplog, error):
    theirs()
    code = (fake.root / "their_patches.py").read_text()
    around = "around(lambda f, *a: 2 * f(*a))"
    fake.write("their_patches.py", code.replace(around, f"lambda f: exec('raise {error}')"))
    cache = load("fake_lm.cache")
    own = vars(cache.Cache)["update"]
    mlx_patches.apply()
    (record,) = [one for one in caplog.records if "was rolled back" in one.message]
    assert f"their-patch failed and was rolled back: {error}" in record.message
    assert "their_patches:10 < mlx_patches.core.site:" in record.message
    assert vars(cache.Cache)["update"] is own


@pytest.mark.parametrize(
    ("body", "text"),
    [("return 'a\\n\\x1b[31m'", r"Strange: a\n\x1b[31m"), ("raise ValueError", "Strange")],
)
def test_factory_error_is_one_line(theirs, fake, body, text):
    """Also if its message cannot be made."""
    theirs()
    code = (fake.root / "their_patches.py").read_text()
    raising = f"""
class Strange(Exception):
    def __str__(self): {body}

def fail(original): raise Strange

"""
    code = code.replace("TWICE =", f"{raising}TWICE =")
    fake.write("their_patches.py", code.replace("around(lambda f, *a: 2 * f(*a))", "fail"))
    load("fake_lm.cache")
    (outcome,) = mlx_patches.apply(["their-patch"])
    assert outcome.reason == f"rolled back: {text}"


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ("{'fake-lm': '>=1.5'}", "their-patch: fake-lm 1.5 is both affected and fixed"),
        ("{'other-lm': '>=2'}", "their-patch: other-lm is fixed and was never affected"),
        ("{'fake-lm': 'newest'}", "Invalid specifier"),
    ],
)
def test_invalid_fixed_range_is_skipped(theirs, caplog, fixed, message):
    theirs(fixed=fixed)
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        mlx_patches.apply()
    assert "twice of their-package was skipped: their_patches:TWICE: " in caplog.text
    assert message in caplog.text
    assert "their-patch" not in session().registry


def list_named(group=contributions.PATCHES):
    return [(one.name, one.version) for one in contributions.declaring(group)]


@pytest.mark.parametrize("twice", ["lib64", "the same folder"])
def test_duplicate_path_counts_once(theirs, fake, monkeypatch, tmp_path, caplog, twice):
    theirs()
    link = tmp_path.with_name("lib64") if twice == "lib64" else tmp_path
    if link != tmp_path:
        link.symlink_to(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(link)])
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        mlx_patches.apply()
    assert caplog.text == ""
    assert list_named() == [("their-package", "1.0")]


def test_first_on_path_counts(fake, monkeypatch, tmp_path_factory):
    later = Site(tmp_path_factory.mktemp("later"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(later.root)])
    points = "[mlx_patches.patches]\nx = nowhere:X\n"
    (later.install("Their.Package", "2.0") / "entry_points.txt").write_text(points)
    (later.install("their-other-package", "2.0") / "entry_points.txt").write_text(points)
    both = [("Their.Package", "2.0"), ("their-other-package", "2.0")]
    assert list_named() == both
    fake.install("their_package", "0.9", metadata="")  # left behind by an uninstall
    assert list_named() == both
    fake.install("their_package", "1.0")  # no entry points, and first on sys.path
    assert list_named() == both[1:]


def test_host_declaration(fake):
    fake.write(
        "their_server.py",
        """
        from mlx_patches.plugin import Host
        HOST = Host("their-server", scripts=("serve-it",), modules=("their_server",))
        """,
    )
    info = fake.install("their-server", version="3.1")
    (info / "entry_points.txt").write_text("[mlx_patches.hosts]\nx = their_server:HOST\n")
    assert contributions.hosts()["their-server"].scripts == ("serve-it",)
    limit = enable.limit_to("their-server")
    assert (limit.scripts, limit.modules) == (("serve-it",), ("their_server",))
    assert enable.limit_to("Their_Server").scripts == ("serve-it",)
    assert "their-server 3.1" in map(str, mlx_patches.audit().distributions)


@pytest.mark.parametrize(
    "fields",
    ["5", "'their-server', 'serve-it'", "'their-server', (), 5", "'their-server', ('',)"],
)
def test_misdeclared_host_is_skipped(fake, caplog, fields):
    code = f"from mlx_patches.plugin import Host\nHOST = Host({fields})\n"
    fake.write("their_server.py", code)
    info = fake.install("their-server")
    (info / "entry_points.txt").write_text("[mlx_patches.hosts]\nx = their_server:HOST\n")
    assert contributions.hosts() == {}
    assert re.search(r"a Host has a name, a tuple of .*their_server.py:2\)", caplog.text)


def test_uninstalled_host_is_ignored(fake):
    info = fake.install("their-server", metadata="")
    (info / "entry_points.txt").write_text("[mlx_patches.hosts]\nx = their_server:HOST\n")
    assert contributions.hosts() == {}
