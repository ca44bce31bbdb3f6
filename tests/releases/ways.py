"""The ways of starting mlx_lm.server; run as a module, it writes the table of activation.md."""

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from mlx_patches.activation import enable

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "activation.md"
BEGIN, END = "<!-- ways: python -m tests.releases.ways -->\n", "<!-- ways: end -->\n"
BY = ("`mlx-patches run`", "`mlx-patches enable`", "`apply()` at the top of a launcher")
APPLY = "import mlx_patches; mlx_patches.apply()\n"
# The last process to end is the server: it reports whether it ran patched code.
REPORT = """
import atexit
def report():
    import sys
    server = sys.modules.get("mlx_lm.server")
    main = sys.modules["__main__"]
    if "mlx_lm" not in sys.modules or getattr(main, "LAUNCHES", False):
        return
    ours = sys.modules.get("mlx_patches.activation.session")
    found = ours.session().status() if ours else ()
    found = [one for one in found if one.target.startswith("mlx_lm.server:")]
    copy = vars(main).get("ResponseGenerator", getattr(server, "ResponseGenerator", 0))
    reached = server is not None and copy is server.ResponseGenerator
    applied = {one.status for one in found if one.status != "absent"}
    applied -= {"fixed-upstream", "not-affected"}
    print("in effect:", "yes" if reached and applied == {"applied"} else "no", flush=True)
atexit.register(report)
"""
WORKER = """
import multiprocessing, sys
LAUNCHES = __name__ == "__main__"
def work():
    import atexit, mlx_lm.server
    sys.modules["__main__"].LAUNCHES = False
    atexit._run_exitfuncs()
if __name__ == "__main__":
    child = multiprocessing.get_context("METHOD").Process(target=work)
    child.start()
    child.join()
"""
SUBPROCESS = """
import subprocess, sys
LAUNCHES = True
subprocess.run([sys.executable, "-m", "mlx_lm.server", "--help"])
"""
# Each way as a Python command line, and the same within a program.
MODULE = "import runpy; runpy.run_module('mlx_lm.server', run_name='__main__', alter_sys=True)"
PACKAGE = "import runpy; runpy.run_module('mlx_lm', run_name='__main__', alter_sys=True)"
SCRIPT = "import sys; from mlx_lm.server import main; sys.exit(main())"
WAYS = {
    "its console script": (["bin/mlx_lm.server", "--help"], SCRIPT),
    "`python -m mlx_lm.server`": (["-m", "mlx_lm.server", "--help"], MODULE),
    "`python -m mlx_lm server`": (["-m", "mlx_lm", "server", "--help"], PACKAGE),
    "`runpy.run_module`": (["-c", MODULE, "--help"], MODULE.replace(", alter_sys=True", "")),
    "a spawned worker": (["spawn.py"], WORKER.replace("METHOD", "spawn")),
    "a worker of a fork server": (["forkserver.py"], WORKER.replace("METHOD", "forkserver")),
    "a subprocess": (["subprocess_.py"], SUBPROCESS),
    "mlx_patches in a zip, `python -m mlx_lm.server`": (["-m", "mlx_lm.server", "--help"], MODULE),
}


class Environment:
    """A virtual environment with this one's packages, this checkout, and the reporting hook."""

    def __init__(self, folder: Path):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (self.site,) = folder.glob("lib/python*/site-packages")
        self.python = str(folder / "bin" / "python")
        (self.site / "sitecustomize.py").write_text(REPORT)
        script = folder / "bin" / "mlx_lm.server"
        script.write_text(f"#!{self.python}\n{SCRIPT}\n")
        script.chmod(0o755)
        for name, method in ("spawn", "spawn"), ("forkserver", "forkserver"):
            (folder / f"{name}.py").write_text(WORKER.replace("METHOD", method))
        (folder / "subprocess_.py").write_text(SUBPROCESS)
        self.archive = folder / "mlx_patches.zip"
        with zipfile.ZipFile(self.archive, "w") as file:
            for path in (ROOT / "mlx_patches").rglob("*"):
                if path.is_file() and path.suffix != ".pyc":
                    file.write(path, path.relative_to(ROOT))

    def cell(self, way: str, by: str) -> str:
        """Start the server in one way; ``yes`` or ``no``."""
        command, program = WAYS[way]
        ours = self.archive if "zip" in way else ROOT
        (self.site / "here.pth").write_text(f"{ours}\n{sysconfig.get_paths()['purelib']}\n")
        boot = self.site / enable.NAME
        boot.unlink(missing_ok=True)
        if by == BY[1]:
            boot.write_text(enable.line())
        if by == BY[2]:
            (self.folder / "launcher.py").write_text(APPLY + program)
            command = ["launcher.py", *(["server"] if program is PACKAGE else []), "--help"]
        if command[0] != "bin/mlx_lm.server":
            command = [self.python, *command]
        if by == BY[0]:
            command = [self.python, "-m", "mlx_patches", "run", "--", *command]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLX_PATCHES")}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, env=environment
        )
        reports = [line for line in done.stdout.splitlines() if line.startswith("in effect: ")]
        if done.returncode or len(reports) != 1:
            raise RuntimeError(f"{way}, {by}: {done.stdout[-500:]}{done.stderr[-2000:]}")
        return reports[0].removeprefix("in effect: ")


def table(environment: Environment) -> str:
    lines = [f"| started by | {' | '.join(BY)} |", "|---|" + "---|" * len(BY)]
    for way in WAYS:
        cells = [environment.cell(way, by) for by in BY]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def block(page: str) -> str:
    return page.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = table(Environment(Path(folder)))
    page = PAGE.read_text()
    PAGE.write_text(page.replace(BEGIN + block(page), BEGIN + made))


if __name__ == "__main__":
    main()
