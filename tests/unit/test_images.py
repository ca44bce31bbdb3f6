"""The table of models with images, their stages, and the audit's verdict on them."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import measure_images
import pytest

from mlx_patches.auditing import screen, verdict
from mlx_patches.auditing.verdict import Measured, PatchState
from mlx_patches.core import distributions
from mlx_patches.evidence import outside, store, words
from mlx_patches.evidence.results import BrokenEnvironment
from mlx_patches.lab import Family
from mlx_patches.lab.images import authors, judge, published, rules, scenario, videos
from mlx_patches.lab.runner import Task

IDLE, ACTIVE = PatchState(False), PatchState(True)
LACKS_SCALE = PatchState(True, frozenset({"of-scale"}))


def test_entries_are_complete():
    for name in published.TABLE["entry"]:
        one = published.entry(name)
        assert one["source"] and one["norm"] in published.TABLE["norm"] and one["config"]
        tokens = {*one["tokens"], *one.get("names", {}).values()}
        assert tokens == {*one["tokens"]}, name
        written = any(token in one["image"] for token in one["tokens"])
        # The processors of these write the token.
        assert written or name in {"florence2", "phi4mm"}
        assert name in published.entries(one["family"])


def test_entry_takes_over_from_the_one_it_is_like():
    one, plain = published.entry("gemma4 vision"), published.entry("gemma4")
    assert one["text"] == {**plain["text"], "use_bidirectional_attention": "vision"}
    assert (one["family"], one["when"], plain.get("when")) == (
        "gemma4",
        {"use_bidirectional_attention": "vision"},
        None,
    )
    assert published.entry("pixtral")["text"]["model_type"] == "mistral"
    assert "min_pixels" not in published.entry("qwen3_vl")["preprocessor"]


def test_every_reason_is_of_a_family_that_is_not_compared():
    compared = {published.entry(name)["family"] for name in published.TABLE["entry"]}
    for one in published.TABLE["not-compared"].values():
        assert one["why"] and not compared & {*one["families"]}


def test_family_that_transformers_lacks_has_that_reason():
    found = {"kinds": {"molmo2": {"family": "molmo2"}}, "not_compared": {"got": "other"}}
    known = {"got_ocr2", *(one for one in published.TABLE["entry"] if one != "kimi_k25")}
    measure_images.explain_absent(found, known)
    why = published.TABLE["not-compared"]["absent"]["why"]
    reasons = found["not_compared"]
    assert reasons["got"] == "other" and reasons["fastvlm"] == reasons["kimi_k25"] == why
    assert "molmo2" not in reasons and "sam3" not in reasons and list(reasons) == sorted(reasons)


def test_more_images_than_transformers_keeps_apart_are_refused():
    with pytest.raises(ValueError, match="transformers mixes 2 images"):
        authors.check_count({"most": 1}, 2)
    authors.check_count({"most": 1}, 1)
    authors.check_count({}, 3)


@pytest.mark.parametrize(("version", "wrong"), [("5.14.1", 0), ("5.17.0", 1), ("5.170.0", 0)])
def test_transformers_that_is_wrong_is_refused(version, wrong):
    with pytest.raises(ValueError, match="swaps") if wrong else nullcontext():
        authors.check_version({"wrong-in": ["5.17", "swaps"]}, version)


def test_media_that_are_not_compared():
    config = {"audio_config": {}, "text_config": {"hidden_size": 8}, "image_token_id": 7}
    assert screen.list_other_media(config) == ["audio"]
    omni = {"thinker_config": {**config, "video_token_id": 8}}
    assert screen.list_other_media(omni) == ["audio", "video"]
    assert screen.list_other_media(omni, {"model", "audio"}) == ["video"]
    assert screen.list_other_media({"audio_config": None, "audio_token_id": 7}) == []


def test_media_of_a_measured_stage_are_compared(evidence):
    config = {"audio_config": {}, "video_token_id": 8}
    path = store.folder().parent / "images" / "mlx-vlm-9.9.json"
    own = json.loads(path.read_text())
    for stage, left in (("chat", "; audio and video not compared"), ("video", "; audio not")):
        own["without"]["gemma4"][stage] = own["with"]["gemma4"][stage] = "g"
        path.write_text(json.dumps(own))
        forget_images()
        model = SimpleNamespace(folder=SimpleNamespace(config=config))
        found = judge_model({"text_config": {}})
        report = SimpleNamespace(verdicts=[found], model=model, here=lambda: ACTIVE)
        (line,) = screen._images(report)
        assert left in line and ("video" in line) == (stage == "chat")


def wrap_error(error):
    """An error that mlx-vlm raises for another one, without its cause."""
    try:
        try:
            raise error
        except Exception as inner:
            raise ValueError(f"Failed to process inputs with error: {inner}")  # noqa: B904
    except ValueError as outer:
        return outer


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[Compile::eval_cpu] Failed to compile function"),
        wrap_error(ImportError("load_audio requires soundfile and soxr")),
    ],
)
def test_environments_fault_is_no_result(error):
    with pytest.raises(BrokenEnvironment):
        judge.put_in_line(error)


def test_hidden_torch_is_a_result():
    error = wrap_error(ImportError("Qwen2VLImageProcessor requires the PyTorch library torch"))
    assert "requires the PyTorch library" in judge.put_in_line(error)


def test_prompt_of_videos_has_a_block_for_each():
    one = published.entry("qwen2_vl")
    assert videos.prompt(one, "image and video").count(one["image"]) == 1
    for case, (frames, _) in videos.CASES.items():
        text = videos.prompt(one, case)
        assert text.count(one["video"]) == len(frames) and text.endswith(published.QUESTION)
    assert videos.list_cases(published.entry("llava")) == []


def test_prompt_holds_images():
    assert published.prompt(published.entry("gemma3"), 2) == (
        f"<bos>{'<start_of_image>' + chr(10)}<start_of_image>\n{published.QUESTION}"
    )
    assert published.prompt(published.entry("paligemma"), 1) == "<image>caption en"
    phi4mm = published.prompt(published.entry("phi4mm"), 2, 1)
    assert phi4mm.startswith("<|image_1|><|image_2|><|audio_1|>\n")


def test_published_spelling():
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    saved = {"text_config": {"rope_parameters": rope, "model_type": "x"}, "vision_config": {}}
    flat = published.respell(published.entry("qwen2_vl"), saved)
    assert flat["rope_theta"] == 1e6 and "text_config" not in flat and "model_type" not in flat
    assert flat["vision_config"] == {"model_type": "qwen2_vl"}
    assert published.respell(published.entry("gemma4"), saved)["text_config"]["rope_parameters"]


def test_default_is_compared_with_the_part_it_comes_from():
    import dataclasses

    @dataclasses.dataclass
    class Config:
        hidden_size: int = 2048
        vocab_size: int = 96
        named: int = 1

    config = {"text_config": {"hidden_size": 64, "vocab_size": 96, "named": 2}, "named": 1}
    assert rules.defaults(Config(), config) == {"hidden_size": (2048, 64)}


def test_field_is_added_to_a_copy(tmp_path):
    home = tmp_path / "published"
    home.mkdir()
    (home / "config.json").write_text('{"a": 1}')
    (home / "weights").write_text("w")
    with rules.with_fields(home, {"b": 2}) as copy:
        assert json.loads((copy / "config.json").read_text()) == {"a": 1, "b": 2}
        assert (copy / "weights").read_text() == "w"
    assert not copy.exists() and json.loads((home / "config.json").read_text()) == {"a": 1}


def test_cases_of_one_detail_are_together():
    off = {"square": 0.5, "wide": 0.5, "two": "TypeError: no", "odd": "3 for 4 tokens"}
    assert scenario.describe_off(off) == (
        "square, wide: off by 0.5; two: TypeError: no; odd: off by 3 for 4 tokens"
    )
    assert scenario.verdict({"a": 0.0, "b": "x"}).verdict == words.RED
    assert scenario.verdict({"a": 1e-6}).verdict == words.GREEN
    assert scenario.verdict({"a": float("nan")}).verdict == words.RED


def test_only_families_of_the_table_have_the_scenario():
    assert scenario.is_compared(Family("mlx-vlm", "gemma3"))
    assert not scenario.is_compared(Family("mlx-lm", "gemma3"))
    assert not scenario.is_compared(Family("mlx-vlm", "molmo"))
    task = Task(Family("mlx-vlm", "gemma3"), False, (scenario.NAME,), reference=scenario.NAME)
    assert task.command()[-2:] == ["--reference", scenario.NAME] and task.ends == (scenario.NAME,)


def forget_images():
    outside.read_images.cache_clear()
    outside._read_pictures.cache_clear()


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """Evidence of a family with wrong images only for one field of its config."""
    (tmp_path / "images").mkdir()
    found = {
        "outside": "transformers 9.9",
        "kinds": {
            "gemma4": {"family": "gemma4", "when": {}, "mark": "rope_parameters"},
            "gemma4 vision": {"family": "gemma4", "when": {"both": "vision"}, "mark": ""},
        },
        "without": {
            "gemma4": {"load": "g", "model": "g", "saved": "r"},
            "gemma4 vision": {"load": "g", "model": "r", "saved": "g"},
        },
        "with": {
            "gemma4": {"load": "g", "model": "g", "saved": "g"},
            "gemma4 vision": {"load": "g", "model": "g", "saved": "g"},
        },
        "crash": {"gemma4": ["saved"]},
        "needs": {"gemma4 vision": {"model": ["of-blocks"]}},
        "not_compared": {"molmo": "transformers has no model of this type"},
    }
    (tmp_path / "images" / "mlx-vlm-9.9.json").write_text(json.dumps(found))
    monkeypatch.setattr(store, "folder", lambda: tmp_path / "lab")
    forget_images()
    yield
    forget_images()


def judge_model(config=None, family="gemma4"):
    measured = Measured({"without": {}}, pictures=outside.pictures("mlx-vlm 9.9", family))
    return verdict.judge(measured, "mlx-vlm", "9.9", family, config=config)


def test_installed_transformers_decide_if_measured(evidence, monkeypatch):
    file = store.folder().parent / "images" / "mlx-vlm-9.9.json"
    own = json.loads(file.read_text()) | {"outside": "transformers 9.10"}
    own["without"]["gemma4"]["model"] = own["with"]["gemma4"]["model"] = "r"
    file.with_name("mlx-vlm-9.9-transformers-9.10.json").write_text(json.dumps(own))
    assert not judge_model().fails_on_images(ACTIVE)
    forget_images()
    installed = distributions.Installed("transformers", "9.10")
    monkeypatch.setattr(distributions, "find", lambda _: installed)
    assert [cell.name for cell in judge_model().fails_on_images(ACTIVE)] == ["model"]
    assert judge_model().as_dict(IDLE)["images_solo"]["held_against"] == "transformers 9.10"


@pytest.mark.parametrize(
    ("config", "expected", "code"),
    [
        (None, "", 2),
        ({"text_config": {}}, "", 2),
        (
            {"text_config": {"both": "vision"}},
            "gives wrong answers to images, which the patches repair",
            1,
        ),
        ({"text_config": {"rope_parameters": {}}}, "", 2),
        (
            {"text_config": {"rope_parameters": {"rope_theta": 1}}},
            "does not load, which the patches repair",
            1,
        ),
    ],
)
def test_config_decides_on_images(evidence, config, expected, code):
    one = judge_model(config)
    assert verdict.of_images(one, IDLE) == expected and one.exit_code(IDLE) == code
    assert verdict.of_images(one, ACTIVE) == "" and one.exit_code(ACTIVE) == 2
    assert verdict.headline(one, IDLE).endswith(expected)
    assert bool(one.as_dict(IDLE)["images_solo"]["wrong_here"]) is bool(expected)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (["audio"], "sounds"),
        (["video"], "videos"),
        (["audio", "video"], "sounds and videos"),
        (["audio", "model"], "images"),
    ],
)
def test_wrong_media_are_named(stages, expected):
    cells = tuple(outside.HeldCell(name, "rg") for name in stages)
    shown = outside.Pictures("transformers 9.9", (outside.Picture("gemma3", {}, "", cells),))
    measured = Measured({"without": {"gemma3": {"plain": "g"}}}, pictures=shown)
    one = verdict.judge(measured, "mlx-vlm", "9.9", "gemma3")
    assert (
        verdict.of_images(one, IDLE)
        == f"gives wrong answers to {expected}, which the patches repair"
    )


@pytest.fixture
def half():
    """A verdict on images that were measured without the patches only."""
    cells = (outside.HeldCell("load", "g"), outside.HeldCell("model", "r"))
    shown = outside.Pictures("transformers 9.9", (outside.Picture("gemma3", {}, "", cells),))
    measured = Measured({"without": {"gemma3": {"plain": "g"}}}, pictures=shown)
    return verdict.judge(measured, "mlx-vlm", "9.9", "gemma3")


def test_images_that_were_not_measured_with_the_patches(half):
    expected = "gives wrong answers to images, not measured with the patches"
    assert verdict.of_images(half, IDLE) == expected and half.exit_code(IDLE) == 1
    expected = "with images was not measured with the patches"
    assert verdict.of_images(half, ACTIVE) == expected and half.exit_code(ACTIVE) == 2
    images = half.as_dict(ACTIVE)["images_solo"]
    assert images["not_measured_here"] == ["load", "model"] and images["wrong"] == ["model"]
    assert not images["wrong_with_patches"] and not images["wrong_here"]


@pytest.fixture
def gated(evidence):
    """A model whose stages after a wrong one ran only with the patches, which break one of them."""
    file = store.folder().parent / "images" / "mlx-vlm-9.9.json"
    found = json.loads(file.read_text())
    found["without"]["gemma4"] = {"load": "g", "model": "r"}
    found["with"]["gemma4"] = {"load": "g", "model": "g", "chunks": "g", "batch": "r"}
    found["needs"] = {"gemma4": {"model": ["of-scale"], "saved": ["of-names"]}}
    file.write_text(json.dumps(found))
    return judge_model()


@pytest.mark.parametrize(
    ("here", "text", "wrong", "unmeasured"),
    [
        (IDLE, "1 of 4 stages; 2 not measured", ["model"], ["chunks", "batch"]),
        (LACKS_SCALE, "1 of 4 stages; 2 not measured", ["model"], ["chunks", "batch"]),
        (PatchState(True, frozenset({"of-names"})), "3 of 4 stages", ["batch"], []),
        (ACTIVE, "3 of 4 stages", ["batch"], []),
    ],
)
def test_stage_that_did_not_run_does_not_match(gated, here, text, wrong, unmeasured):
    assert screen.count_matches(gated, gated.shown, "stage", here) == text
    images = gated.as_dict(here)["images_solo"]
    assert images["wrong_here"] == wrong and images["wrong"] == ["model"]
    assert images["not_measured_here"] == unmeasured
    matches = len(images["stages"]) - len(images["wrong_here"]) - len(images["not_measured_here"])
    assert text.startswith(f"{matches} of")
    assert gated.patches == ("of-scale",)
    stages = screen._list_stages(gated, here)
    assert all(name in stages for name in (*wrong, *unmeasured)) and "load" not in stages


@pytest.mark.parametrize(
    ("mark", "config", "is_saved"),
    [
        ("part.new", {"part": {"new": {"a": 1}}}, True),
        ("part.new", {"part": {"text_config": {"new": 1}}}, True),
        ("part.new", {"part": "no object", "new": 1}, False),
        ("new=axial", {"text_config": {"new": "axial"}}, True),
        ("new=axial", {"new": "other"}, False),
        ("", {"": 1}, False),
    ],
)
def test_mark_is_a_path_or_a_value(mark, config, is_saved):
    cells = (outside.HeldCell("load", "g"), outside.HeldCell("saved", "r"))
    shown = outside.Pictures("t 1", (outside.Picture("a", {}, mark, cells),))
    assert (len(shown.cells(config)) == 2) is is_saved


@pytest.mark.parametrize(
    ("model", "verdict"), [(words.GREEN, words.RED), (words.RED, words.NOT_APPLICABLE)]
)
def test_release_is_at_fault_if_patches_load_a_folder(model, verdict):
    load, whole = (f"{scenario.NAME}:a {stage}" for stage in ("load", "model"))
    refused = "the copy of the lab does not load: ValueError"
    rows = [
        {"patched": False, "scenario": load, "verdict": words.NOT_APPLICABLE, "detail": refused},
        {"patched": True, "scenario": load, "verdict": words.GREEN, "detail": "loads"},
        {"patched": True, "scenario": whole, "verdict": model, "detail": ""},
    ]
    first, *others = measure_images.settle_loads(rows)
    assert first["verdict"] == verdict and others == rows[1:]


@pytest.mark.parametrize(
    ("video", "stage"), [(words.GREEN, "video"), (words.RED, ""), (words.NOT_APPLICABLE, "")]
)
def test_stage_that_crashes_without_the_patches_is_red(video, stage):
    crash = {
        "family": "a",
        **row("", words.RED, "crashed: signal 6, in reference-images"),
        "scenario": scenario.NAME,
    }
    other = [{"family": "a", **row("a load", words.GREEN, patched=is_on)} for is_on in (0, 1)]
    videos = {"family": "a", **row("a video", video, patched=True)}
    settled = measure_images.settle_crashes([other[0], crash, other[1], videos])
    assert settled[0::2] == [other[0], other[1]] and settled[3] == videos
    found = settled[1]
    if not stage:
        assert found == crash
    else:
        assert found["verdict"] == words.RED and found["scenario"] == videos["scenario"]
        assert measure_images.RAISED.search(found["detail"])


def test_missing_image_patch_counts(evidence):
    one = judge_model({"both": "vision"})
    assert "of-blocks" in one.patches
    assert one.fails_on_images(PatchState(True, frozenset({"of-blocks"})))


def test_audit_names_why_images_were_not_compared(evidence):
    one = judge_model(family="molmo")
    images = one.as_dict(IDLE)["images_solo"]
    assert images["not_compared"] == "transformers has no model of this type"
    assert not images["stages"] and judge_model(family="llama").as_dict(IDLE)["images_solo"] is None


def row(name, verdict, detail="", patched=False):
    scenario_name = f"{scenario.NAME}:{name}"
    return {"scenario": scenario_name, "verdict": verdict, "detail": detail, "patched": patched}


ROWS = [
    row("gemma4 load", words.GREEN),
    row("gemma4 model", words.RED, "square: off by 0.3, in the language model"),
    row("gemma4 saved", words.RED, "TypeError: no field of this name"),
    row("gemma4 vision load", words.NOT_APPLICABLE, "the lab's folder does not load: no"),
    row("llama4 load", words.GREEN),
    row("llama4 model", words.NOT_APPLICABLE, "a text differs too: off by 1"),
]


def test_only_compared_kinds_are_evidence():
    found = measure_images.cells(ROWS)
    assert {kind: [*stages] for kind, stages in found.items()} == {
        "gemma4": ["load", "model", "saved"]
    }
    assert measure_images.crashes({"without": found}) == {"gemma4": ["saved"]}
    reasons = measure_images.not_compared(ROWS)
    assert reasons["llama4"] == "llama4: a text differs too: off by 1"
    assert reasons["gemma4"].startswith("gemma4 vision: the lab's folder")
    assert reasons["molmo"] == "transformers has no model of this type"


def test_traced_patches_of_repaired_cells(tmp_path):
    found = {"without": {"a": {"load": "r", "chat": "r"}}}
    found["with"] = {"a": {"load": "g", "chat": "r"}}
    lines = [{"scenario": f"{scenario.NAME}:a {stage}", "patch": "p"} for stage in ("load", "chat")]
    (tmp_path / "rows").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    traced = measure_images.read_needs(tmp_path / "rows")
    assert measure_images.only_repaired(traced, found) == {"a": {"load": ["p"]}}
    assert measure_images.only_repaired({}, found) == {"a": {"load": []}}


@pytest.mark.parametrize(
    ("outside", "name"),
    [("transformers 5.6.2", "a-1.json"), ("transformers 5.24.0", "a-1-transformers-5.24.0.json")],
)
def test_other_transformers_has_its_own_file(monkeypatch, tmp_path, outside, name):
    monkeypatch.setattr(measure_images, "EVIDENCE", tmp_path)
    one = SimpleNamespace(slug="a-1")
    assert measure_images.choose_file(one, outside).name == "a-1.json"
    (tmp_path / "a-1.json").write_text('{"outside": "transformers 5.6.2"}')
    assert measure_images.choose_file(one, outside).name == name


@pytest.mark.parametrize(
    ("detail", "named"),
    [("against transformers 5.24.0: 3 stages", "transformers 5.24.0"), ("no prompt runs", "none")],
)
def test_rows_of_another_transformers_are_refused(monkeypatch, detail, named):
    installed = {"transformers": "5.6.2"}
    monkeypatch.setattr(measure_images.release_sets, "versions", lambda python: installed)
    rows = [row("gemma4 load", words.GREEN, detail)]
    with pytest.raises(SystemExit, match=f"has transformers 5.6.2, the rows {named}: name the"):
        measure_images.check_transformers(Path("python"), rows)
    same = row("gemma4 load", words.GREEN, "against transformers 5.6.2: 3 stages")
    measure_images.check_transformers(Path("python"), [same])


def test_families_without_rows_are_kept():
    kinds = {"gemma3": {"family": "gemma3"}, "gemma4 vision": {"family": "gemma4"}}
    cells = {kind: {"load": "r"} for kind in kinds}
    before = {"outside": "t 1", "kinds": kinds, "without": cells, "with": cells}
    before |= {"crash": {kind: ["load"] for kind in kinds}, "details": {"with": cells}}
    before["not_compared"] = {"mllama": "mllama: why", "gone": "gone: no family of the table"}
    before["not_compared"] |= {"pixtral": "a reason of the table, which may have changed"}
    found = {"set": "s", "outside": "t 1", "crash": {}, "not_compared": {"molmo": "none"}}
    found |= {part: {"gemma4": {"load": "g"}} for part in ("kinds", "without", "with")}
    found["details"] = {"without": {}, "with": {}}
    measure_images.keep(before, found, {"gemma4"})
    assert found["without"] == {"gemma3": {"load": "r"}, "gemma4": {"load": "g"}}
    assert found["crash"] == {"gemma3": ["load"]} and [*found["details"]["with"]] == ["gemma3"]
    assert found["not_compared"] == {"mllama": "mllama: why", "molmo": "none"}
    with pytest.raises(SystemExit, match="t 1 in the file, not t 2"):
        measure_images.keep(before, {**found, "outside": "t 2"}, set())


def test_stages_that_stay_off():
    one = {
        "without": {"a": {"load": "g", "model": "r", "saved": "r"}, "b": {"load": "g"}},
        "with": {"a": {"load": "g", "model": "g", "saved": "r"}},
    }
    assert measure_images.off(one, "a") == (["model", "saved"], ["saved"])
    assert measure_images.off(one, "b") == ([], [])
    one["with"]["b"] = {"load": "g", "chunks": "r"}
    assert measure_images.off(one, "b") == ([], ["chunks"])


@pytest.mark.parametrize("is_other_faster", [True, False])
def test_two_processes_make_one_folder(tmp_path, monkeypatch, is_other_faster):
    """A family is measured without and with the patches at the same time."""

    def make(command, **_):
        for folder in [Path(command[-2])] + [tmp_path] * is_other_faster:
            (folder / "a-kind").mkdir()
            (folder / "a-kind" / "stages.json").write_text('{"transformers": "1"}')
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv(scenario.KEEP, str(tmp_path))
    monkeypatch.setattr(scenario.subprocess, "run", make)
    with scenario.compute_expected("a kind") as found:
        assert found.outside == "transformers 1"
    assert [path.name for path in tmp_path.iterdir()] == ["a-kind"]
    monkeypatch.setattr(scenario.subprocess, "run", None)
    with scenario.compute_expected("a kind") as found:
        assert found.folder == tmp_path / "a-kind"


def test_pixels_of_another_layout():
    def array(*shape):
        return SimpleNamespace(shape=shape, ndim=len(shape))

    flat, square = array(2, 9, 48), array(2, 3, 12, 12)
    assert scenario.has_other_layout(square, flat) and scenario.has_other_layout([square], flat)
    assert not scenario.has_other_layout(flat, array(4, 9, 48))
    assert not scenario.has_other_layout(array(9, 48), array(1, 9, 48))
    assert not scenario.has_other_layout(None, flat) and not scenario.has_other_layout(flat, None)


def test_entry_that_needs_torch_is_repeated_with_it(monkeypatch, tmp_path):
    rows = [
        {"scenario": f"{scenario.NAME}{name}", "verdict": "green", "detail": "", "figure": None}
        for name in (":llava load", ":llava model", "")
    ]
    environments = []

    def run(command, env, **_):
        environments.append(env)
        return SimpleNamespace(stdout="\n".join(map(json.dumps, rows)))

    monkeypatch.setattr(scenario.subprocess, "run", run)
    want = SimpleNamespace(folder=tmp_path / "llava")
    found = [stage for stage, _ in scenario.repeat_with_torch("llava", want)]
    assert found == ["load", "model"]
    assert environments[0][scenario.TORCH] == "llava"
    assert environments[0][scenario.KEEP] == str(tmp_path)
    rows.clear()
    [(stage, cell)] = scenario.repeat_with_torch("llava", want)
    assert (stage, cell.verdict) == ("load", words.NOT_APPLICABLE)


@pytest.mark.parametrize(("version", "refused"), [("0.26.1", True), ("0.27.0", False)])
def test_approximated_lanczos_is_refused(version, refused):
    images = SimpleNamespace(resample=1)
    with pytest.raises(ValueError, match="bicubic") if refused else nullcontext():
        authors.check_lanczos(images, version)
    authors.check_lanczos(SimpleNamespace(resample=3), version)
