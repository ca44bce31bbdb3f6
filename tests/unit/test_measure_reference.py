import measure_reference

OFF = "off by 0.3 of the scale, first at token 1"
RAISED = "does not load: TypeError: no rope_theta"


def row(name, verdict="green", detail="equal", patched=False, family="llama"):
    scenario = f"reference:{name}" if name else "reference"
    fields = {"family": f"mlx-lm:{family}", "scenario": scenario, "verdict": verdict}
    return {**fields, "detail": detail, "patched": patched}


ROWS = [
    row("plain", "red", RAISED),
    row("plain", patched=True),
    row("yarn old", "red", OFF),
    row("yarn old", "red", OFF, patched=True),
    row("mistral plain old"),
    row("mistral attention_bias=true", "red", RAISED, patched=True),
    row("longrope short", "n/a", "refused"),
    row("", "red", "against transformers 5.20.2: 2 red"),
    row("plain", "n/a", "another architecture", family="minimax"),
    row("", "n/a", "transformers 5.20.2 has no model type Klear", family="Klear"),
]


def test_cells_by_type_and_config():
    parts = measure_reference.by_part(ROWS)
    assert {kind: list(own) for kind, own in parts["without"].items()} == {
        "llama": ["plain", "yarn old"],
        "mistral": ["plain old"],
    }
    assert measure_reference.letters(parts["with"]) == {
        "llama": {"plain": "g", "yarn old": "r"},
        "mistral": {"attention_bias=true": "r"},
    }
    assert measure_reference.name_outside(ROWS) == "transformers 5.20.2"


def test_released_failure_is_crash():
    parts = measure_reference.by_part(ROWS)
    assert measure_reference.crashes(parts) == {
        "llama": ["plain"],
        "mistral": ["attention_bias=true"],
    }


def test_only_repaired_cells_are_traced():
    found = measure_reference.list_repaired(ROWS)
    assert {kind: list(own) for kind, own in found.items()} == {"llama": ["plain"]}
    assert measure_reference.list_repaired([row("plain", "red", OFF)]) == {}
