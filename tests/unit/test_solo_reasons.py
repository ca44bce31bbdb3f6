import json

import measure_solo
import pytest


def test_page_gives_reasons():
    lines = measure_solo.reasons()
    assert all(any(f"|{kind}|{name}|" in line for line in lines) for kind, name in measure_solo.WHY)


@pytest.mark.parametrize(("letter", "why"), [("r", {}), ("g", {("saved", "llama"): "a reason"})])
def test_missing_and_needless_reasons_are_refused(letter, why, tmp_path, monkeypatch):
    cells = {"saved": {"llama": letter}, "config-fields": {"llama": "r"}}
    (tmp_path / "one.json").write_text(json.dumps({"set": "mlx-lm 9.9.9", "with": cells}))
    monkeypatch.setattr(measure_solo, "EVIDENCE", tmp_path)
    monkeypatch.setattr(measure_solo, "WHY", why)
    with pytest.raises(SystemExit, match="saved, llama"):
        measure_solo.reasons()
