"""Attacks on a real server by a request and by a model's folder, without and with the patches.

python -m tests.hosts.doors 'mlx-lm 0.32.2' [--write] [--door 'template in a request']

Runs in the environment of a release set. Every attack leaves a mark if it succeeds: code creates a
file, a fetch reaches a listener on this machine, a read is seen by the kernel (inotify, so this
needs Linux), a template of the client makes the prompt longer. `--write` records the outcomes in
doors.toml, from which `tools/write_docs.py` writes the table in SECURITY.md.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.patches.server.media.probe import a_server, make_image
from mlx_patches.probes.kit import make_sound

from .server import Host, serving

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from door_table import (  # noqa: E402
    DOORS,
    DYNAMIC,
    FETCHED,
    IGNORED,
    MEDIA,
    MODEL_FILE,
    PATHS,
    RAN,
    READ,
    REFUSED,
    TEMPLATE_IN_FOLDER,
    TEMPLATE_IN_REQUEST,
    USED,
    Outcome,
    Outcomes,
    load,
    save,
    verdict,
)

PROFILE = "safe,security"
SECONDS = 40
# A line of the log that names the patch that refused.
NAMED = re.compile(r"mlx_patches: ([a-z0-9-]+) (?:refused|stopped) ")
# model-code-consent names the file instead.
NOT_RUN = re.compile(r"mlx_patches: .* of the model .* was not run")


@dataclass(frozen=True)
class Server:
    """A server of the table: its release set, its command, and its tiny model."""

    name: str
    set: str
    command: str
    family: str = "llama"
    package: str = "mlx-lm"
    # A family whose processor always follows an `auto_map`.
    follows: str = ""


# Kimi-VL's processor is one of those that compile chat templates themselves in mlx-vlm.
VISION = {"family": "kimi_vl", "package": "mlx-vlm"}
SERVERS = (
    Server("mlx_lm.server 0.31.3", "mlx-lm 0.31.3", "mlx_lm.server --model {model} --port {port}"),
    Server("mlx_lm.server 0.32.2", "mlx-lm 0.32.2", "mlx_lm.server --model {model} --port {port}"),
    Server(
        "mlx_vlm.server 0.5.0",
        "mlx-vlm 0.5.0",
        "mlx_vlm.server --model {model} --host 127.0.0.1 --port {port}",
        **VISION,
    ),
    Server(
        "mlx_vlm.server 0.7.10",
        "mlx-vlm 0.7.10",
        "mlx_vlm.server --model {model} --host 127.0.0.1 --port {port}",
        **VISION,
        follows="inkling",
    ),
    Server(
        "vllm-mlx 0.6.0",
        "vllm-mlx 0.6.0",
        "vllm-mlx serve {model} --continuous-batching --offline --host 127.0.0.1 --port {port}",
    ),
    Server(
        "vllm-mlx 0.6.0 --mllm",
        "vllm-mlx 0.6.0",
        "vllm-mlx serve {model} --mllm --continuous-batching --offline --host 127.0.0.1"
        " --port {port}",
        **VISION,
    ),
    Server(
        "Rapid-MLX 0.16.10",
        "rapid-mlx 0.16.10",
        "rapid-mlx serve {model} --host 127.0.0.1 --port {port} --no-preflight"
        " --disable-model-downloads",
    ),
    Server(
        "Rapid-MLX 0.16.10 --mllm",
        "rapid-mlx 0.16.10",
        "rapid-mlx serve {model} --mllm --host 127.0.0.1 --port {port} --no-preflight"
        " --disable-model-downloads",
        **VISION,
    ),
    Server(
        "mlx-openai-server 1.8.1",
        "mlx-openai-server 1.8.1",
        "mlx-openai-server launch --model-path {model} --model-type lm --host 127.0.0.1"
        " --port {port} --no-log-file",
    ),
    Server(
        "mlx-openai-server 1.8.1 multimodal",
        "mlx-openai-server 1.8.1",
        "mlx-openai-server launch --model-path {model} --model-type multimodal --host 127.0.0.1"
        " --port {port} --no-log-file --disable-batching",
        **VISION,
    ),
)

# -- marks -----------------------------------------------------------------------------------------


class Reads:
    """Which files of a folder are opened by anyone, from the kernel's notices."""

    _EVENTS = 0x20  # IN_OPEN

    def __init__(self, *folders: Path):
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK)
        for folder in folders:
            if libc.inotify_add_watch(self._fd, os.fsencode(folder), self._EVENTS) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))

    def take(self) -> list[str]:
        """The names opened since the last call; "" is a listing of a folder."""
        data, names = b"", []
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._fd, 1 << 16):
                data += more
        while data:
            (length,) = struct.unpack_from("I", data, 12)
            names.append(data[16 : 16 + length].rstrip(b"\0").decode())
            data = data[16 + length :]
        return names

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class Place:
    """Where attacks leave their marks."""

    folder: Path
    web: Any
    reads: Reads
    secret: Path

    @property
    def mark(self) -> Path:
        """The file that code of an attack creates."""
        return self.folder / "ran"

    def clear(self) -> None:
        self.mark.unlink(missing_ok=True)
        self.web.asked.clear()
        self.reads.take()

    def read_mark(self) -> str:
        """The worst mark since `clear`; empty if there is none."""
        if self.mark.exists():
            return RAN
        if self.web.asked:
            return FETCHED
        return READ if self.reads.take() else ""


@contextlib.contextmanager
def a_place(folder: Path, model: Path) -> Iterator[Place]:
    """Make secrets that a request may name, watched, and a listener."""
    secret = folder / "secret"
    shutil.copytree(model, secret / "model")
    adapter = secret / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"fine_tune_type": "lora", "num_layers": 1}')
    (adapter / "adapters.safetensors").write_bytes(b"")
    (secret / "image.png").write_bytes(make_image())
    (secret / "sound.wav").write_bytes(make_sound())
    (secret / "video.mp4").write_bytes(b"\0\0\0\x18ftypmp42" * 20)
    reads = Reads(secret, secret / "model", adapter)
    try:
        with a_server() as web:
            yield Place(folder, web, reads, secret)
    finally:
        reads.close()


def python_code(place: Place) -> str:
    """A module that leaves its mark when it is imported."""
    return f"open({str(place.mark)!r}, 'w').close()\n"


def template(place: Place) -> str:
    """A chat template that leaves its mark, unless it is rendered in a sandbox."""
    call = f"cycler.__init__.__globals__.os.system('touch {place.mark}')"
    return f"{{{{ {call} }}}}{{% for m in messages %}}{{{{ m['content'] }}}}{{% endfor %}}"


# Makes the prompt longer than any other one here.
LONG = "{{ 'fox ' * 200 }}"
LONG_TOKENS = 190

# -- attacks by a request --------------------------------------------------------------------------

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@dataclass(frozen=True)
class Request:
    """An attack: the endpoint, and the fields of the request, with the names of a place."""

    door: str
    path: str
    fields: dict[str, Any]


def fill(value: Any, place: Place) -> Any:
    """Replace a place's names in the fields of a request."""
    if isinstance(value, dict):
        return {key: fill(one, place) for key, one in value.items()}
    if isinstance(value, list):
        return [fill(one, place) for one in value]
    for name, text in (("WEB", place.web.url), ("SECRET", place.secret), ("CODE", template(place))):
        value = value.replace(f"<{name}>", str(text))
    return value


def nest(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def with_part(part: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "the quick"}, part]
    return {"messages": [{"role": "user", "content": content}]}


# Where servers may look for a client's template.
HOLDERS = (
    *("chat_template", "chat_template_kwargs", "extra_body", "template_kwargs"),
    *("chat_template_args", "extra_body.chat_template_kwargs"),
)


def template_requests() -> Iterator[tuple[str, Request]]:
    for path in (CHAT, MESSAGES, RESPONSES):
        for name in HOLDERS:
            holder = name if name == "chat_template" else f"{name}.chat_template"
            for kind, text in (("code", "<CODE>"), ("text", LONG)):
                request = Request(TEMPLATE_IN_REQUEST, path, nest(holder, text))
                yield f"{path} {name}, {kind}", request
        # Another argument of `apply_chat_template`, which replaces what is rendered.
        fields = nest(
            "chat_template_kwargs.conversation", [{"role": "user", "content": "fox " * 200}]
        )
        yield (
            f"{path} chat_template_kwargs, conversation",
            Request(TEMPLATE_IN_REQUEST, path, fields),
        )


def media_requests() -> Iterator[tuple[str, Request]]:
    """Media on this machine, by URL and by path, as each endpoint names them."""
    for kind, name in {"image": "image.png", "audio": "sound.wav", "video": "video.mp4"}.items():
        for source, door, url in (
            ("URL", MEDIA, f"<WEB>/{kind}"),
            ("path", PATHS, f"<SECRET>/{name}"),
            ("file URL", PATHS, f"file://<SECRET>/{name}"),
        ):
            part = {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
            yield f"{kind}_url, {source}", Request(door, CHAT, with_part(part))
    sound = {"data": "<SECRET>/sound.wav", "format": "wav"}
    part = {"type": "input_audio", "input_audio": sound}
    yield "input_audio, path", Request(PATHS, CHAT, with_part(part))
    for source, door, url in (("URL", MEDIA, "<WEB>/image"), ("path", PATHS, "<SECRET>/image.png")):
        part = {"type": "image", "source": {"type": "url", "url": url}}
        yield f"{MESSAGES} image, {source}", Request(door, MESSAGES, with_part(part))
        text = {"type": "input_text", "text": "the quick"}
        content = [text, {"type": "input_image", "image_url": url}]
        fields = {"input": [{"role": "user", "content": content}]}
        yield f"{RESPONSES} input_image, {source}", Request(door, RESPONSES, fields)


def path_requests() -> Iterator[tuple[str, Request]]:
    """Names of models and adapters that are folders."""
    folders = {"model": "model", "draft_model": "model"}
    folders |= dict.fromkeys(("adapters", "adapter", "adapter_path"), "adapter")
    for path in (CHAT, "/v1/completions"):
        for name, folder in folders.items():
            yield f"{path} {name}", Request(PATHS, path, {name: f"<SECRET>/{folder}"})


REQUESTS = dict([*template_requests(), *media_requests(), *path_requests()])


def body(request: Request, place: Place, model: str) -> dict[str, Any]:
    """A request that is correct except for the attack."""
    messages = [{"role": "user", "content": "the quick fox"}]
    prompts = {
        RESPONSES: {"input": "the quick fox"},
        "/v1/completions": {"prompt": "the quick fox"},
    }
    prompt = prompts.get(request.path, {"messages": messages})
    limit = "max_output_tokens" if request.path == RESPONSES else "max_tokens"
    return {"model": model, limit: 2, "temperature": 0, **prompt, **fill(request.fields, place)}


def attempt(host: Host, name: str, place: Place) -> str:
    """Send an attack; return its outcome."""
    request = REQUESTS[name]
    place.clear()
    try:
        answer = httpx.post(
            host.url + request.path, json=body(request, place, host.model), timeout=SECONDS
        )
    except httpx.HTTPError as error:
        return place.read_mark() or f"{REFUSED}: {type(error).__name__}"
    if seen := place.read_mark():
        return seen
    if answer.status_code == 404 and request.path not in (CHAT, "/v1/completions"):
        return IGNORED  # the server has no such endpoint
    if answer.status_code >= 400:
        return REFUSED
    if request.door == TEMPLATE_IN_REQUEST and prompt_tokens(answer) > LONG_TOKENS:
        return USED
    return IGNORED


def prompt_tokens(answer: httpx.Response) -> int:
    """The length of the prompt as the server counted it."""
    with contextlib.suppress(ValueError, AttributeError):
        usage = answer.json().get("usage") or {}
        return int(usage.get("prompt_tokens") or usage.get("input_tokens") or 0)
    return 0


# -- attacks by a folder ---------------------------------------------------------------------------


def edit(file: Path, **more: object) -> None:
    """Add keys to a JSON file; None removes a key."""
    content = json.loads(file.read_text()) if file.exists() else {}
    content |= more
    kept = {key: value for key, value in content.items() if value is not None}
    file.write_text(json.dumps(kept))


def plant_tokenizer_template(folder: Path, place: Place) -> None:
    edit(folder / "tokenizer_config.json", chat_template=template(place))


def plant_template_file(folder: Path, place: Place) -> None:
    edit(folder / "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.jinja").write_text(template(place))


def plant_processor_template(folder: Path, place: Place) -> None:
    edit(folder / "tokenizer_config.json", chat_template=None)
    edit(folder / "processor_config.json", chat_template=template(place))
    edit(folder / "chat_template.json", chat_template=template(place))


def plant_model_file(folder: Path, place: Place) -> None:
    edit(folder / "config.json", model_file="planted.py")


def plant_config_class(folder: Path, place: Place) -> None:
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoProcessor", "AutoTokenizer")
    edit(folder / "config.json", auto_map=dict.fromkeys(names, "planted.Planted"))


def plant_tokenizer_class(folder: Path, place: Place) -> None:
    edit(
        folder / "tokenizer_config.json",
        tokenizer_class="Planted",
        auto_map={"AutoTokenizer": ["planted.Planted", "planted.Planted"]},
    )


def plant_processor_class(folder: Path, place: Place) -> None:
    names = ("AutoProcessor", "AutoImageProcessor", "AutoVideoProcessor", "AutoFeatureExtractor")
    more = {
        "processor_class": "Planted",
        "image_processor_type": "Planted",
        "auto_map": dict.fromkeys(names, "planted.Planted"),
    }
    for name in ("preprocessor_config.json", "processor_config.json"):
        edit(folder / name, **more)
    edit(folder / "tokenizer_config.json", processor_class="Planted")


@dataclass(frozen=True)
class Folder:
    """An attack planted in a model's folder; ``follows``: in the server's family of that name."""

    door: str
    plant: Callable[[Path, Place], None]
    follows: bool = False


FOLDERS = {
    "tokenizer_config.json": Folder(TEMPLATE_IN_FOLDER, plant_tokenizer_template),
    "chat_template.jinja": Folder(TEMPLATE_IN_FOLDER, plant_template_file),
    "processor_config.json": Folder(TEMPLATE_IN_FOLDER, plant_processor_template),
    "config.json": Folder(MODEL_FILE, plant_model_file),
    "auto_map of config.json": Folder(DYNAMIC, plant_config_class),
    "auto_map of tokenizer_config.json": Folder(DYNAMIC, plant_tokenizer_class),
    "auto_map of processors": Folder(DYNAMIC, plant_processor_class),
    "auto_map of another family": Folder(DYNAMIC, plant_tokenizer_class, follows=True),
}

# -- a server --------------------------------------------------------------------------------------


def measure(server: Server, scratch: Path, doors: Collection[str] = DOORS) -> Outcomes:
    """Attack a server at some doors, without and with the patches."""
    outcomes: Outcomes = {door: {} for door in DOORS if door in doors}
    folders = {
        name: attack
        for name, attack in FOLDERS.items()
        if attack.door in doors and (server.follows or not attack.follows)
    }
    requests = [name for name, one in REQUESTS.items() if one.door in doors]
    model, other = scratch / "model", scratch / "other"
    save_model(model, server.family, server.package)
    if any(attack.follows for attack in folders.values()):
        save_model(other, server.follows, server.package)
    with a_place(scratch / "place", model) as place:
        for patched in (False, True):
            for index, (name, attack) in enumerate(folders.items()):
                folder = scratch / f"{index}-{patched}"
                shutil.copytree(other if attack.follows else model, folder)
                (folder / "planted.py").write_text(python_code(place))
                attack.plant(folder, place)
                outcome, by = load_folder(server, folder, place, patched)
                add(outcomes[attack.door], name, outcome, by, patched)
            for name, outcome, by in send_requests(server, model, place, patched, requests):
                add(outcomes[REQUESTS[name].door], name, outcome, by, patched)
    return outcomes


def add(rows: dict[str, Outcome], name: str, outcome: str, by: list[str], patched: bool) -> None:
    row = rows.setdefault(name, Outcome())
    if patched:
        row.patched, row.by = outcome, by
    else:
        row.released = outcome


def save_model(folder: Path, family: str, package: str) -> None:
    command = [sys.executable, "-m", "tests.hosts.model", str(folder), family, package]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"MLX_PATCHES": "0"})


def load_folder(server: Server, folder: Path, place: Place, patched: bool) -> tuple[str, list[str]]:
    """Start a server with a folder, and send it a request; return the outcome, and the patches."""
    place.clear()
    log = folder.with_suffix(".log")
    try:
        with running(server, folder, log, patched) as host:
            answer = plain_answer(host)
    except MlxPatchesError:  # it does not start
        answer = None
    outcome = place.read_mark() if place.mark.exists() else ""
    if not outcome:
        outcome = IGNORED if answer is not None and answer.status_code < 400 else REFUSED
    return outcome, refusing(log.read_text(errors="replace"))


def send_requests(
    server: Server, model: Path, place: Place, patched: bool, names: Sequence[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Send attacks to a server.

    Raises:
        AssertionError: the server does not answer a plain request, before or after the attacks.
    """
    if not names:
        return
    log = place.folder / f"requests-{patched}.log"
    with running(server, model, log, patched) as host:
        check_alive(host, log)
        for name in names:
            start = log.stat().st_size
            outcome = attempt(host, name, place)
            with log.open(errors="replace") as file:
                file.seek(start)
                by = refusing(file.read())
            yield name, outcome, by
            if "ReadTimeout" in outcome:  # some unpatched servers hang
                break
        if patched:
            check_alive(host, log)


def check_alive(host: Host, log: Path) -> None:
    answer = plain_answer(host)
    assert answer is not None and answer.status_code == 200, (
        answer and answer.text,
        log.read_text(errors="replace")[-3000:],
    )


def plain_answer(host: Host) -> httpx.Response | None:
    body = {"model": host.model, "max_tokens": 2, "temperature": 0}
    body["messages"] = [{"role": "user", "content": "the quick fox"}]
    with contextlib.suppress(httpx.HTTPError):
        return httpx.post(host.url + CHAT, json=body, timeout=SECONDS)
    return None


@contextlib.contextmanager
def running(server: Server, model: Path, log: Path, patched: bool) -> Iterator[Host]:
    """Run a server in the profiles that close doors."""
    before = os.environ.get("MLX_PATCHES_PROFILE")
    os.environ["MLX_PATCHES_PROFILE"] = PROFILE
    try:
        with serving({"command": server.command}, model, log, patched) as host:
            yield host
    finally:
        os.environ.pop("MLX_PATCHES_PROFILE")
        if before is not None:
            os.environ["MLX_PATCHES_PROFILE"] = before


def refusing(log: str) -> list[str]:
    """The patches that refused something, by the lines of a log."""
    found = NAMED.findall(log) + ["model-code-consent"] * bool(NOT_RUN.search(log))
    return sorted(set(found))


# -- the command -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sets = list(dict.fromkeys(server.set for server in SERVERS))
    parser.add_argument("set", choices=sets)
    parser.add_argument("--door", action="append", choices=DOORS, help="only this door")
    parser.add_argument("--write", action="store_true", help="record the outcomes in doors.toml")
    options = parser.parse_args()
    for server in SERVERS:
        if server.set != options.set:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="doors-") as scratch:
            outcomes = measure(server, Path(scratch), options.door or DOORS)
        print(f"{server.name}: {time.monotonic() - begun:.0f} s")
        for door, rows in outcomes.items():
            print(f"  {door}: {verdict(rows)}")
            for attack, row in rows.items():
                print(f"    {attack}: {row.released} -> {row.patched} {' '.join(row.by)}")
        if options.write:
            records = load()
            found = records.get(server.name, {}) | outcomes
            records[server.name] = {door: found[door] for door in DOORS if door in found}
            save(records, [one.name for one in SERVERS])


if __name__ == "__main__":
    main()
