"""The server lab: a correct server is right everywhere, and every planted fault is seen."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlx_patches import MlxPatchesError, cli
from mlx_patches.evidence import requests
from mlx_patches.evidence.requests import ABSENT, IGNORED, REFUSED, RIGHT, WRONG
from mlx_patches.lab.server import command, folder, measure, process, table, walks
from mlx_patches.lab.server.judges import ANY, Sent
from mlx_patches.lab.server.oracle import SIGHTS, Language, penalize
from mlx_patches.lab.server.parameters import parameters
from mlx_patches.lab.server.process import Process
from mlx_patches.lab.server.runner import Lab

from .toy_server import OTHER, serving


def lab_of(toy):
    return Lab(Process(toy.url, "toy"), None, OTHER, images=True)


def cells_of(toy, *only):
    return [cell for cell, _ in lab_of(toy).cells(only)]


def faults(cells, endpoint="chat"):
    """The contexts that are not right, by verdict."""
    bad: dict[str, set[str]] = {}
    for cell in cells:
        if cell.endpoint == endpoint and cell.verdict not in (RIGHT, ABSENT):
            bad.setdefault(cell.verdict, set()).add(cell.context)
    return bad


def test_correct_server_is_right_everywhere():
    with serving() as toy:
        lab = lab_of(toy)
        # The toy has no other endpoints.
        served = [one for one in lab.everything if one.endpoints[0] in ("chat", "completions")]
        cells = [
            lab.cell(one.endpoints[0], one, context)
            for one in served
            for context in one.contexts or ("solo", "streamed")
            if not (one.stream_only and context == "solo")
        ]
        cells += cells_of(toy, "seed", "top_k", "repetition_penalty", "tools", "stop token")
    assert [cell for cell in cells if cell.verdict not in (RIGHT, ABSENT)] == []
    assert {cell.parameter for cell in cells if cell.verdict == RIGHT} == {
        one.name for one in served
    }


# A dropped field, and the parameter of the matrix that shows it.
DROPPED = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "n")},
    **{f"{kind}_penalty": f"{kind}_penalty" for kind in ("repetition", "presence", "frequency")},
    "xtc_probability": "xtc",
    "repetition_context_size": "repetition_context_size",
    "presence_context_size": "presence_context_size",
    "frequency_context_size": "frequency_context_size",
    "logit_bias": "logit_bias",
    "stop": "stop, several",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_completion_tokens",
    "logprobs": "logprobs",
    "response_format": "response_format, schema",
    "tools": "tools",
    "chat_template_kwargs": "chat_template_kwargs",
    "enable_thinking": "enable_thinking",
    "thinking_budget": "thinking_budget",
    "stream_options": "stream_options",
    "picture": "two pictures",
    "model": "model",
    "adapters": "adapters",
}


@pytest.mark.parametrize("field", DROPPED)
def test_dropped_parameter_is_ignored(field):
    name = DROPPED[field]
    with serving(("drop", field)) as toy:
        cells = [cell for cell in cells_of(toy, name) if cell.endpoint == "chat"]
    assert {cell.verdict for cell in cells} == {IGNORED}


SPOILED = {
    "usage": "usage",
    "stop token": "stop token",
    "split stops": "stop, split over tokens",
    "thinking": "thinking section",
    "lost call": "tools, unreadable call",
    "finish reason": "max_tokens",
    "shifted chances": "logprobs",
    "unsorted tops": "top_logprobs",
    "lost parts": "tool result in parts",
}


@pytest.mark.parametrize("fault", SPOILED)
def test_spoiled_answer_is_seen(fault):
    with serving((fault, "")) as toy:
        bad = faults(cells_of(toy, SPOILED[fault]))
    assert "solo" in set().union(*bad.values())


# A fault in company, its parameter, and the contexts that show it.
COMPANY = {
    "first rules": {"joins another"},
    "last rules": {"joined by another"},
    "crowd": {"several at once"},
    "streamed": {"streamed"},
    "turns": {"second turn", "third turn"},
    "later turns": {"third turn"},
    "seeded": {"one by one"},
    "shaken": {"after others left"},
}


@pytest.mark.parametrize("fault", COMPANY)
@pytest.mark.parametrize("name", ["top_k", pytest.param("logit_bias", marks=pytest.mark.slow)])
def test_fault_in_company_is_seen(fault, name):
    with serving((fault, name)) as toy:
        bad = faults(cells_of(toy, name))
    assert COMPANY[fault] <= bad.get(WRONG, set())
    assert "solo" not in bad.get(WRONG, set())


@pytest.mark.parametrize(
    ("fault", "name", "contexts"),
    [
        ("kept cache", "context", {"second turn", "one by one"}),
        ("prefix", "repetition_penalty", {"second turn", "one by one"}),
        ("swap", "min_p", {"after a model swap"}),
    ],
)
def test_fault_of_a_kept_state_is_seen(fault, name, contexts):
    with serving((fault, "")) as toy:
        bad = faults(cells_of(toy, name))
    assert contexts <= bad[WRONG]
    assert "solo" not in bad[WRONG]


def test_picture_of_another_request_is_seen():
    with serving(("first rules", "messages")) as toy:
        bad = faults(cells_of(toy, "picture"))
    assert "joins another" in bad[WRONG]


# Walks.


def test_walk_finds_and_shrinks_a_fault():
    with serving(("first rules", "top_k")) as toy:
        walker = walks.Walker(lab_of(toy))
        walker.usable = ["top_k", "xtc"]
        red = next(red for _, red in walker.walk(20, seed=3) if red)
        assert len(red.steps) <= 4
        steps = walks.parse(walks.show(red.steps))
        assert tuple(steps) == red.steps


def test_correct_server_has_no_red_walk():
    with serving() as toy:
        walker = walks.Walker(lab_of(toy))
        assert walker.play(walker.draw(5)) is None


@pytest.mark.parametrize("line", ["", "x", "1 dance top_k", "stream top_k", "1 send"])
def test_unreadable_walk_is_one_line(line):
    with pytest.raises(MlxPatchesError, match=r"^--replay: .*expected"):
        walks.parse(line)


# Processes: a server as a script.


@pytest.fixture
def script(tmp_path):
    """Writes a server, and returns its command line."""

    def write(text):
        file = tmp_path / "server.py"
        file.write_text(textwrap.dedent(text))
        return f"{sys.executable} {file} {{model}} {{port}}"

    return write


CHILD = """
    import subprocess, sys, time
    from http.server import BaseHTTPRequestHandler, HTTPServer
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("child", child.pid, flush=True)
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(b"hello")
        do_POST = do_GET
        def log_message(self, *args): pass
    HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import sys; sys.exit('no such weights')", "ended before it answered: no such weights"),
        ("import time; print('loading', flush=True); time.sleep(60)", "did not answer .*: loading"),
    ],
)
def test_server_that_does_not_start_is_one_line(script, monkeypatch, text, line):
    monkeypatch.setattr(process, "START_SECONDS", 2.0)
    with pytest.raises(MlxPatchesError, match=line):
        list(measure.cells_of(script(text), False))


def test_answer_without_json_is_wrong(script):
    cells = [cell for cell, _ in measure.cells_of(script(CHILD), False, ["top_k"])]
    assert {cell.verdict for cell in cells} == {WRONG}
    assert {cell.detail for cell in cells} == {"HTTP 200: hello"}


def test_process_group_is_gone_afterwards(script, tmp_path):
    with process.run(script(CHILD), {"model": tmp_path}, False, tmp_path / "log") as server:
        child = int(server.last_line().split()[1])
        assert server.alive
        assert process.is_running(child)
    assert not server.alive
    end = time.monotonic() + 5
    while process.is_running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not process.is_running(child)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux reports it")
@pytest.mark.parametrize(
    ("code", "least", "most"), [("while 1: pass", 0.8, 2), ("input()", 0, 0.2)]
)
def test_demand_of_a_busy_server(code, least, most):
    command = [sys.executable, "-c", f"print(flush=True)\n{code}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(command, start_new_session=True, **pipes)
    try:
        server = Process("", "", group=child.pid)
        child.stdout.readline()
        before = server.demand()
        time.sleep(1)
        assert least <= server.demand() - before <= most
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("serve {model}", "needs {model} and {port}"),
        ("serve {port}", "needs {model} and {port}"),
        ("serve '{model} {port}", "No closing quotation"),
        ("no-such-server {model} {port}", "no-such-server is not in this environment"),
    ],
)
def test_wrong_command_is_one_line(line, fault):
    done = CliRunner().invoke(cli.cli, ["lab", "--server", line])
    assert isinstance(done.exception, MlxPatchesError)
    assert fault in str(done.exception)


def test_environment_without_path(monkeypatch):
    monkeypatch.delenv("PATH")
    test_wrong_command_is_one_line("no-such-server {model} {port}", "is not in this environment")


# The command line.


def test_url_of_a_running_server(tmp_path):
    with serving() as toy:
        options = ["lab", "--url", toy.url, "--scenario", "top_k", "--json"]
        done = CliRunner().invoke(cli.cli, [*options, "--out", str(tmp_path / "cells")])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found["summary"]["without"][RIGHT] == 13
        again = CliRunner().invoke(cli.cli, [*options, "--out", str(tmp_path / "cells")])
    assert json.loads(again.stdout)["cells"] == found["cells"]


def test_cells_of_other_setup_do_not_count(tmp_path, monkeypatch):
    """Neither those of another version, nor those of a server that was started elsewhere."""
    out, runs, cell = tmp_path / "cells", [], table.Cell("chat", "top_k", "solo", RIGHT)

    def measure(*arguments):
        runs.append(arguments[-1])
        yield cell, 1

    monkeypatch.setattr(command, "cells_of", measure)
    monkeypatch.setattr(command, "cells_of_url", measure)
    monkeypatch.setattr(command, "find_model", lambda base: "toy")
    options = ["lab", "--unpatched", "--out", str(out)]
    started = [*options, "--server", "x {model} {port}"]
    for _ in range(2):
        CliRunner().invoke(cli.cli, started)
    monkeypatch.setattr(command, "environment", lambda: "mlx-lm 9")
    CliRunner().invoke(cli.cli, started)
    for _ in range(2):
        CliRunner().invoke(cli.cli, ["lab", "--out", str(out), "--url", "http://x"])
    assert [len(known) for known in runs] == [0, 1, 0, 0, 0]
    out.write_bytes(b"\xff\n")
    done = CliRunner().invoke(cli.cli, started)
    assert isinstance(done.exception, MlxPatchesError) and str(out) in str(done.exception)


def test_url_of_another_model_names_the_remedy(monkeypatch):
    with serving() as toy, pytest.raises(MlxPatchesError, match="--write-model FOLDER"):
        toy.languages[False] = Language(other=True)
        list(measure.cells_of_url(toy.url, "toy"))


@pytest.mark.parametrize("url", ["127.0.0.1:80", "file:///etc", "http://", "http://x:y"])
def test_wrong_url_is_one_line(url):
    with pytest.raises(MlxPatchesError, match="expected an address"):
        command.check_url(url)


def test_model_is_written_without_mlx(tmp_path):
    done = CliRunner().invoke(cli.cli, ["lab", "--write-model", str(tmp_path / "m")])
    assert done.exit_code == 0
    names = {file.name for file in (tmp_path / "m").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        (["--write-model", "{}/file/model"], "file/model: cannot be written (Not a directory)"),
        (
            ["--server", "x {model} {port}", "--out", "{}/no/rows"],
            "rows: cannot be written (No such",
        ),
        (["--server", ""], "--server: the command needs {model} and {port}"),
    ],
)
def test_bad_server_options_are_one_line(tmp_path, capsys, option, problem):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        cli.main(["lab", *(one.replace("{}", str(tmp_path)) for one in option)])
    text = capsys.readouterr().err
    assert (ended.value.code, text.count("\n")) == (2, 1) and problem in text


def test_folder_is_the_same_every_time(tmp_path):
    for name in "ab":
        folder.save(tmp_path / name, Language())
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_evidence_keeps_what_is_not_right(tmp_path):
    cells = [
        table.Cell("chat", "top_k", "solo", RIGHT),
        table.Cell("chat", "top_k", "joins another", WRONG, "ranks [3]"),
        table.Cell("chat", "n", "solo", IGNORED, "1 choices"),
        table.Cell("completions", "n", "solo", IGNORED, "1 choices"),
        table.Cell("chat", "typical_p", "solo", IGNORED, "ranks [3]"),
        *(table.Cell("chat", "usage", one, WRONG) for one in ("streamed", "joined by another")),
        table.Cell("chat", "usage", "solo", RIGHT),
        table.Cell("chat", "top_k", "solo", RIGHT, "", True),
        table.Cell("chat", "top_k", "joins another", RIGHT, "", True),
        table.Cell("chat", "n", "solo", IGNORED, "1 choices", True),
        table.Cell("chat", "typical_p", "solo", REFUSED, "HTTP 400", True),
        # Right at one endpoint with the patches, and not run at the other.
        *(table.Cell(place, "format", "solo", IGNORED) for place in ("chat", "completions")),
        table.Cell("chat", "format", "solo", ABSENT, "needs Metal", True),
        table.Cell("completions", "format", "solo", RIGHT, "", True),
        # Not run in a context in which it was right as released.
        table.Cell("chat", "seed", "solo", WRONG),
        table.Cell("chat", "seed", "one by one", RIGHT),
        table.Cell("chat", "seed", "solo", RIGHT, "", True),
        table.Cell("chat", "seed", "one by one", ABSENT, "no seeds", True),
    ]
    file = tmp_path / "their-server-1.2.json"
    for _ in range(2):
        table.save(file, table.evidence(cells, "serve {model} --mllm", "mlx 0.32.0"))
    parts = requests.load("their-server", "1.2", tmp_path)
    assert [part["command"] for part in parts] == ["serve {model} --mllm"]
    assert parts[0]["without"]["rows"][0] == [
        "chat",
        "top_k",
        WRONG,
        ["joins another"],
        "ranks [3]",
    ]
    assert list(requests.summary(parts)) == [
        "requests (--mllm): wrong: seed: repaired",
        "requests (--mllm): wrong if streamed: usage: repaired",
        "requests (--mllm): the whole batch gets the first request's top_k: repaired",
        "requests (--mllm): ignored: n: not repaired",
        "requests (--mllm): ignored: format: not measured with the patches",
        "requests (--mllm): ignored: typical_p: refused with the patches",
    ]


@pytest.mark.parametrize("kind", ["repetition", "presence", "frequency"])
def test_each_sight_of_a_penalty_gives_another_path(kind):
    parameter = next(one for one in parameters(OTHER) if one.name == f"{kind}_penalty")
    language, request = Language(), parameter.requests[0]
    amount = request.fields[parameter.name]
    for endpoint in ("chat", "completions"):
        sent = Sent(endpoint, language, [request])
        processors = [None, *(penalize(kind, amount, sight) for sight in SIGHTS)]
        paths = [sent.greedy(0, one) for one in processors]
        assert len(set(paths)) == len(paths)
        assert not any(path.endswith(ANY) for path in paths)


def test_served_folder_is_chosen(monkeypatch, tmp_path):
    listed = {"data": [{"id": "cached/model"}, {"id": str(tmp_path)}]}
    monkeypatch.setattr(command.Client, "get", lambda client, path: listed)
    assert command.find_model("http://host") == str(tmp_path)
    del listed["data"][1]
    assert command.find_model("http://host") == "cached/model"
    listed["data"].clear()
    with pytest.raises(MlxPatchesError, match="lists no model: is it running"):
        command.find_model("http://host")
