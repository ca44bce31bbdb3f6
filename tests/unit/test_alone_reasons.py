"""What stays wrong alone has a reason on the page of findings."""

import json

import measure_alone
import pytest


def test_the_page_says_why_something_stays_wrong():
    assert all(
        any(name in line for line in measure_alone.reasons()) for name, _ in measure_alone.WHY
    )


@pytest.mark.parametrize(
    ("letter", "why"), [("r", {}), ("g", {("mlx-lm 9.9.9", "saved"): "a reason"})]
)
def test_a_missing_and_a_needless_reason_are_refused(letter, why, tmp_path, monkeypatch):
    cells = {"saved": {"llama": letter}, "config-fields": {"llama": "r"}}
    (tmp_path / "one.json").write_text(json.dumps({"set": "mlx-lm 9.9.9", "with": cells}))
    monkeypatch.setattr(measure_alone, "EVIDENCE", tmp_path)
    monkeypatch.setattr(measure_alone, "WHY", why)
    with pytest.raises(SystemExit, match=r"mlx-lm 9.9.9, saved"):
        measure_alone.reasons()
