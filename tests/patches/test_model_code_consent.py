import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import httpx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.core.errors import is_refusal
from mlx_patches.core.fingerprint import hash_file
from mlx_patches.patches import catalogue
from mlx_patches.patches.loading.model_code_consent import patch as model_code
from mlx_patches.patches.loading.model_code_consent import probe
from tests.hosts.model import save
from tests.hosts.server import free_port

from ..releases.conftest import is_installed
from ..releases.models import module_or_skip

PATCH = catalogue.builtin().get("model-code-consent")
CONSENT = model_code.CONSENT
# Code that leaves a mark and raises, in place of a model's own code.
CODE = "import pathlib\npathlib.Path({mark!r}).touch()\nraise LookupError('it ran')\n"
REFUSED = "needs its own Python file"
DYNAMIC = "transformers.dynamic_module_utils"


@pytest.fixture(autouse=True)
def nobody_consents(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program"])
    for name in model_code._SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def lm(ungated):
    utils = module_or_skip("mlx_lm.utils")
    if "model_file" not in inspect.getsource(utils.load_model):
        pytest.skip("this release runs no model's file")
    if "trust_remote_code" in inspect.signature(utils.load_model).parameters:
        pytest.skip("this release already checks consent")
    ungated("model-code-consent")
    return utils


@pytest.fixture
def vlm(ungated):
    utils = module_or_skip("mlx_vlm.utils")
    if "model_path" not in inspect.signature(utils.get_model_and_args).parameters:
        pytest.skip("this release runs no model's file")
    ungated("model-code-consent")
    return utils


@pytest.fixture
def auto(ungated, tmp_path, monkeypatch) -> ModuleType:
    """transformers with the patch; its code copies are in the test's folder."""
    transformers = pytest.importorskip("transformers")
    ungated("model-code-consent")
    monkeypatch.setattr(f"{DYNAMIC}.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return transformers


def expect_refusal(load, folder: Path, *args, **kwargs) -> str:
    mark = probe.write_folder(folder, CODE)
    mark.unlink(missing_ok=True)
    with pytest.raises(ValueError, match=REFUSED) as raised:
        load(folder, *args, **kwargs)
    assert not mark.exists()
    return str(raised.value)


def ran(load, folder: Path, *args, **kwargs) -> None:
    mark = probe.write_folder(folder, CODE)
    with pytest.raises(LookupError, match="it ran"):
        load(folder, *args, **kwargs)
    assert mark.exists()


def as_release(load, package="mlx_vlm"):
    made = eval("lambda load: lambda *a, **k: load(*a, **k)", {"__name__": f"{package}.loading"})
    return made(load)


def test_error_names_file_and_remedy(lm, tmp_path, caplog):
    message = expect_refusal(lm.load_model, tmp_path)
    for word in ("own_code.py", str(tmp_path), "--trust-remote-code", f"{CONSENT}=1"):
        assert word in message
    assert "own_code.py" in caplog.text


@pytest.mark.parametrize("file", ["a\nmlx_patches: all is well", "x" * 5000, 5, ["a"], ""])
def test_folder_text_is_one_short_line(lm, tmp_path, caplog, file):
    probe.write_folder(tmp_path, CODE)
    (tmp_path / "config.json").write_text(json.dumps({"model_file": file}))
    with pytest.raises(ValueError, match=REFUSED) as raised:
        lm.load_model(tmp_path)
    (line,) = [one.getMessage() for one in caplog.records if one.name == "mlx_patches"]
    assert "\n" not in line + str(raised.value)
    assert len(line) < 400


def test_lm_load_needs_callers_consent(lm, tmp_path):
    expect_refusal(lm.load, tmp_path)
    expect_refusal(lm.load, tmp_path, {"trust_remote_code": None})
    expect_refusal(lm.load, tmp_path, tokenizer_config={"trust_remote_code": False})
    ran(lm.load, tmp_path, {"trust_remote_code": True})
    ran(lm.load, tmp_path, tokenizer_config={"trust_remote_code": True})
    expect_refusal(lm.load, tmp_path)  # consent is for one load


def test_callers_config_cannot_name_file(lm, tmp_path):
    probe.write_folder(tmp_path, CODE)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=REFUSED):
        lm.load_model(tmp_path, model_config={"model_file": "own_code.py"})


@pytest.mark.parametrize(
    ("value", "expect"),
    [
        *((v, ran) for v in ("1", "true", "YES")),
        *((v, expect_refusal) for v in ("", "0", "no", "off", "maybe")),
    ],
)
def test_environment_consents(lm, tmp_path, monkeypatch, value, expect):
    monkeypatch.setenv(CONSENT, value)
    expect(lm.load_model, tmp_path)


def test_server_flag_covers_draft_model(lm, tmp_path):
    server = importlib.import_module("mlx_lm.server")

    def load_draft(provider, path):
        return server.load(path)  # the server loads draft models without a tokenizer's config

    for flag, expect in ((True, ran), (False, expect_refusal), (None, expect_refusal)):
        provider = SimpleNamespace(cli_args=SimpleNamespace(trust_remote_code=flag))
        expect(
            lambda path, p=provider: model_code.accept_user_consent(load_draft, p, path), tmp_path
        )


@pytest.mark.parametrize("flag", [True, False])
def test_server_load(lm, tmp_path, flag):
    server = importlib.import_module("mlx_lm.server")
    nothing = dict.fromkeys(("model", "adapter_path", "draft_model", "chat_template"))
    no = dict.fromkeys(("pipeline", "use_default_chat_template"), False)
    arguments = SimpleNamespace(trust_remote_code=flag, **nothing, **no)
    provider = server.ModelProvider(arguments)
    (ran if flag else expect_refusal)(lambda path: provider.load(str(path)), tmp_path)


@pytest.mark.parametrize("consent", [None, False, True])
def test_lora_default_is_no_consent(lm, tmp_path, consent):
    lora = importlib.import_module("mlx_lm.lora")
    args = SimpleNamespace(
        seed=0, report_to=None, project_name=None, adapter_path="", model=str(tmp_path)
    )
    if consent is not None:  # set in the user's config
        args.trust_remote_code = consent
    (ran if consent else expect_refusal)(lambda folder: lora.run(args), tmp_path)
    ran(lm.load, tmp_path, {"trust_remote_code": True})  # refused only while lora.run runs


def test_unreadable_folder_keeps_release_error(lm, tmp_path):
    with pytest.raises(FileNotFoundError):
        lm.load_model(tmp_path / "none")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        lm.load_model(tmp_path)


def test_model_without_code_is_unchanged(lm, tmp_path, caplog):
    probe.write_folder(tmp_path, CODE)
    (tmp_path / "config.json").write_text('{"model_type": "mlx_patches_none"}')
    with pytest.raises(ValueError, match="not supported"):
        lm.load_model(tmp_path)
    assert "was not run" not in caplog.text


def test_vlm_load_needs_callers_consent(vlm, tmp_path, monkeypatch):
    message = expect_refusal(vlm.load_model, tmp_path)
    assert "own_code.py" in message
    expect_refusal(vlm.load_model, tmp_path, trust_remote_code=False)
    expect_refusal(vlm.load, tmp_path)
    ran(vlm.load_model, tmp_path, trust_remote_code=True)
    expect_refusal(vlm.load_model, tmp_path)
    monkeypatch.setenv(CONSENT, "1")
    ran(vlm.load_model, tmp_path)


def test_vlm_own_models_are_unchanged(vlm):
    module, kind = vlm.get_model_and_args({"model_type": "qwen2_vl"})
    assert (module.__name__, kind) == ("mlx_vlm.models.qwen2_vl", "qwen2_vl")
    again, _ = vlm.get_model_and_args({"model_type": "qwen2_vl", "model_file": "x.py"})
    assert again is module


# Class to the module that defines it and the file whose ``auto_map`` it reads.
AUTO_MAPS = {
    "AutoConfig": ("configuration", "config.json"),
    "AutoTokenizer": ("tokenization", "tokenizer_config.json"),
    "AutoProcessor": ("processing", "processor_config.json"),
    "AutoImageProcessor": ("image_processing", "preprocessor_config.json"),
    "AutoVideoProcessor": ("video_processing", "video_preprocessor_config.json"),
    "AutoFeatureExtractor": ("feature_extraction", "preprocessor_config.json"),
}


@pytest.mark.parametrize("kind", AUTO_MAPS)
def test_named_classes_need_consent(auto, tmp_path, monkeypatch, kind):
    name, file = AUTO_MAPS[kind]
    # From its module: without PyTorch, transformers exports a stand-in.
    load = getattr(importlib.import_module(f"transformers.models.auto.{name}_auto"), kind)
    load = load.from_pretrained
    folder = tmp_path / "model"
    folder.mkdir()
    reference = "own_code.Own"

    def write(load):
        def load_folder(folder, **kwargs):
            config = {"model_type": "mlx_patches_none"}
            (folder / "config.json").write_text(json.dumps(config))
            named = [None, reference] if kind == "AutoTokenizer" else reference
            # Without a class's name, older releases look for one by the model's type.
            own = {f"{name}_class": "Own" for name in ("tokenizer", "processor")}
            (folder / file).write_text(json.dumps({**config, **own, "auto_map": {kind: named}}))
            return load(folder, **kwargs)

        return load_folder

    message = expect_refusal(write(as_release(load)), folder, trust_remote_code=True)
    assert "own_code.py" in message
    assert str(folder) in message
    # The caller's own word to transformers, unless mlx-vlm has put its function there.
    own = load.__func__.__module__.startswith("transformers")
    (ran if own else expect_refusal)(write(load), folder, trust_remote_code=True)
    expect_refusal(write(as_release(load, "vllm_mlx")), folder, trust_remote_code=True)
    monkeypatch.setenv(CONSENT, "1")
    ran(write(as_release(load)), folder, trust_remote_code=True)


def test_custom_generate_needs_consent(auto, tmp_path):
    """transformers loads a folder's ``custom_generate`` with the same two functions."""
    dynamic = importlib.import_module(DYNAMIC)

    def load(folder, **kwargs):
        module = dynamic.get_cached_module_file(folder, module_file="own_code.py")
        return dynamic.get_class_in_module("generate", module)

    expect_refusal(as_release(load), tmp_path)
    ran(load, tmp_path)
    with pytest.raises(ValueError, match=REFUSED):  # its copy is there from the last load
        as_release(dynamic.get_class_in_module)("generate", "transformers_modules/x/own_code.py")


def link_folder(folder: Path) -> Path:
    link = folder.with_name("link")
    link.symlink_to(folder)
    return link


def cache_folder(folder: Path) -> Path:
    snapshot = folder.parent / "models--own--model" / "snapshots" / ("a" * 40)
    blobs = snapshot.parents[1] / "blobs"
    for place in (snapshot, blobs):
        place.mkdir(parents=True)
    for file in folder.iterdir():
        (blobs / file.name).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(blobs / file.name)
    return snapshot


def relative(folder: Path) -> Path:
    return Path("model") / ".." / "model"


@pytest.mark.parametrize("place", [link_folder, relative, cache_folder])
def test_no_spelling_of_folder_bypasses(auto, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    load = as_release(auto.AutoTokenizer.from_pretrained)
    found = []
    expect_refusal(
        lambda folder: load(found[0] if found else place(folder), trust_remote_code=True), folder
    )


def test_imports_of_file_do_not_run(auto, tmp_path, monkeypatch):
    """transformers imports each module that a file imports, to check whether it is installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside.py").write_text(f"open({str(tmp_path / 'beside-ran')!r}, 'w')")
    load = as_release(auto.AutoTokenizer.from_pretrained)
    mark = probe.write_folder(tmp_path, "import beside\n" + CODE)
    with pytest.raises(ValueError, match=REFUSED):
        load(tmp_path, trust_remote_code=True)
    assert not mark.exists()
    assert not (tmp_path / "beside-ran").exists()


@pytest.mark.parametrize(
    ("words", "agreed"),
    [
        (["--trust-remote-code"], True),
        (["serve", "model", "--trust-remote"], True),  # as argparse shortens it
        (["--trust-remote-codes"], False),
        (["--t", "5"], False),
        (["model"], False),
    ],
)
def test_program_flag_is_consent(auto, tmp_path, monkeypatch, words, agreed):
    monkeypatch.setattr(sys, "argv", ["server", *words])
    load = as_release(auto.AutoTokenizer.from_pretrained)
    (ran if agreed else expect_refusal)(load, tmp_path, trust_remote_code=True)


def test_transformers_class_needs_no_consent(auto, tmp_path):
    from tokenizers import Tokenizer, models

    mark = probe.write_folder(tmp_path, CODE, model_type="gpt2")
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    found = as_release(auto.AutoTokenizer.from_pretrained)(tmp_path, trust_remote_code=True)
    assert type(found).__module__.startswith("transformers.")
    assert not mark.exists()


@pytest.mark.parametrize("distribution", ["mlx-lm", "mlx-vlm"])
def test_each_loader_passes_consent(auto, monkeypatch, distribution):
    """Every loader passes consent on from its caller, not from a release or from its default."""
    loaders = [
        target
        for target in PATCH.targets
        if target.distribution == distribution
        and target.supports
        and target.name not in ("ModelProvider.load", "run")
    ]
    for target in loaders:
        if not is_installed(distribution) or not source_file(target.module):
            continue
        function = inspect.unwrap(
            getattr(importlib.import_module(target.module), target.name, None)
        )
        if function is None:
            continue
        parameters = inspect.signature(function).parameters
        heard = []

        def stand_in(*args, heard=heard, **kwargs):
            heard.append(model_code.has_consent())

        stand_in.__signature__ = inspect.signature(function)
        load = target.factory(stand_in)
        words = {"tokenizer_config", "tokenizer_config_extra"} & set(parameters)
        word = {"trust_remote_code": True}
        if not words and not {"trust_remote_code", "kwargs"} & set(parameters):
            continue  # its caller cannot consent
        given = {words.pop(): word} if words else word
        load("folder", **given)
        load("folder")
        as_release(load)("folder", **given)
        assert heard == [True, False, False], target.path


def test_convert_default_is_no_consent(auto, tmp_path):
    convert = module_or_skip("mlx_vlm.convert")
    mark = probe.write_folder(tmp_path, CODE)
    with pytest.raises(Exception) as raised:
        convert.convert(str(tmp_path), str(tmp_path / "out"))
    assert not isinstance(raised.value, LookupError)
    assert not mark.exists()


def test_own_processor_needs_no_consent(auto, tmp_path):
    if not is_installed("mlx-vlm"):
        pytest.skip("mlx-vlm is not installed in this environment")
    try:
        importlib.import_module("mlx_vlm.models.phi3_v")
    except ImportError as error:
        pytest.skip(str(error))
    from tokenizers import Tokenizer, models

    mark = probe.write_folder(tmp_path, CODE)
    named = {"auto_map": {"AutoProcessor": "own_code.Own"}, "processor_class": "Own"}
    for file in ("processor_config.json", "preprocessor_config.json"):
        (tmp_path / file).write_text(json.dumps(named))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "a", "pad_token": "a"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**tokenizer, **named}))
    config = {"model_type": "phi3_v", "auto_map": {"AutoConfig": "own_code.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    words.save(str(tmp_path / "tokenizer.json"))
    utils = importlib.import_module("mlx_vlm.utils")
    processor = utils.load_processor(tmp_path)
    assert type(processor).__module__.startswith("mlx_vlm.models.phi3_v")
    assert not mark.exists()


def test_transformers_doors_are_known():
    """Bodies that a person has read: a release with another one may have another door."""
    known = {
        "resolve_trust_remote_code": {"76938543da3d86da"},
        "get_class_in_module": {"d9c591c91f4ded0c", "63eab8711e36c4e7", "4c16d7afa5fc6525"},
        "get_cached_module_file": {
            *("7444f42874674c28", "ab2a1b31a7b9ebc8", "8997e0ead697042b", "a08e7f15a3da85f7"),
            *("803da9fd0d248d7a", "32acee0215415c9a", "2d93f1939ffa1051"),
        },
    }
    found = hash_file(source_file(DYNAMIC), tuple(known))
    assert {name for name, body in found.items() if body in known[name]} == set(known)


SERVE = "--host 127.0.0.1 --port {port}"
# Distribution to a program that sets ``trust_remote_code=True`` for its users.
PROGRAMS = {
    "mlx-lm": ("llama", "mlx_lm.benchmark --model {model} -p 4 -g 1 -n 1"),
    "mlx-vlm": ("gemma4", f"mlx_vlm.server --model {{model}} {SERVE}"),
    "vllm-mlx": ("gemma4", f"vllm-mlx serve {{model}} --mllm --continuous-batching {SERVE}"),
}
SECONDS = 120


@pytest.mark.parametrize("agreed", [False, True])
@pytest.mark.parametrize("distribution", PROGRAMS)
def test_program_needs_users_consent(distribution, agreed, tmp_path):
    family, command = PROGRAMS[distribution]
    package = "mlx_lm" if family == "llama" else "mlx_vlm"
    if not (is_installed(distribution) and source_file(f"{package}.models.{family}")):
        pytest.skip(f"{distribution} or {family} is not in this environment")
    model = tmp_path / "model"
    save(model, family, package.replace("_", "-"))
    mark = tmp_path / "was-run"
    (model / "own_code.py").write_text(CODE.format(mark=str(mark)))
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    tokenizer |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own_code.Own"]}}
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    port = free_port()
    words = command.format(model=model, port=port).split()
    words[0] = str(Path(sys.executable).parent / words[0])
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    if agreed and distribution == "mlx-lm":  # this program of older releases has no flag
        env[CONSENT] = "1"
    elif agreed:
        words.append("--trust-remote-code")
    run = [sys.executable, "-m", "mlx_patches", "run", "--profile", "security", "--", *words]
    with open(tmp_path / "log", "w") as log:
        program = subprocess.Popen(run, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        ask_until(lambda: mark.exists() or program.poll() is not None, port, model)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    message = (tmp_path / "log").read_text()
    assert mark.exists() == agreed, message[-2000:]
    # Later servers of mlx-vlm pass ``trust_remote_code=False`` to transformers.
    assert agreed or REFUSED in message or distribution == "mlx-vlm", message[-2000:]


def ask_until(done, port: int, model: Path) -> None:
    """Wait; a server that loads its model at the first request gets one."""
    body = {"model": str(model), "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not done():
        time.sleep(0.5)
        with contextlib.suppress(httpx.TransportError):
            httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60)
            return


# -- who consents: logic that needs no release


def call_in(name, spec=None):
    module = {"__name__": name, "__spec__": spec, "ask": model_code.is_called_by_release}
    return eval("lambda: ask()", module)()


def test_release_code_is_on_stack():
    for name in ("mlx_lm.lora", "mlx_vlm.models.gemma4", "vllm_mlx", "rapid_mlx.x", "omlx.engine"):
        assert call_in(name)
    # Other code consents for itself.
    for name in ("__main__", "app.models", "mlx_vlm_tools", "transformers.x"):
        assert not call_in(name)
    # As a program that ``python -m`` starts.
    assert call_in("__main__", importlib.machinery.ModuleSpec("mlx_vlm.convert", None))


def consenting(folder, tokenizer_config=None, trust_remote_code=True, model_config=None, **kwargs):
    return model_code.has_consent()


YES = {"trust_remote_code": True}


@pytest.mark.parametrize(
    ("args", "kwargs", "heard"),
    [
        ((), {}, False),  # the default is the release's word
        ((), YES, True),
        ((YES,), {}, True),
        ((None, True), {}, True),
        ((), {"processor_config": YES}, True),
        ((), {"model_config": YES}, False),  # a folder's own claim
        ((), {"trust_remote_code": None}, False),
    ],
)
def test_loader_reads_callers_arguments(args, kwargs, heard):
    assert model_code.accept_caller_consent(consenting, "folder", *args, **kwargs) is heard
    assert not model_code.has_consent()


def test_consent_covers_nested_loads():
    def convert(folder, trust_remote_code=False):
        return model_code.accept_caller_consent(consenting, folder, trust_remote_code=False)

    assert model_code.accept_caller_consent(convert, "folder", trust_remote_code=True)


@pytest.mark.parametrize("name", model_code._SETTINGS)
def test_each_setting_is_consent(monkeypatch, name):
    monkeypatch.setenv(name, "true")
    assert model_code.has_consent()


def test_caught_refusal_is_raised_on_failure():
    def refuse_quietly():
        with contextlib.suppress(ValueError):
            model_code.refuse("folder", "own.py")

    def failing(folder):
        refuse_quietly()
        raise KeyError("something else")

    def loading(folder):
        refuse_quietly()
        return "loaded by another class"

    with pytest.raises(ValueError, match=r"'own\.py'") as raised:
        model_code.accept_caller_consent(failing, "folder")
    assert is_refusal(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)
    assert model_code.accept_caller_consent(loading, "folder") == "loaded by another class"

    # Without a refusal, the error is kept.
    def fail_differently(folder):
        raise KeyError("something else")

    with pytest.raises(KeyError):
        model_code.accept_caller_consent(fail_differently, "folder")
