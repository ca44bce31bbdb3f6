import pytest

from mlx_patches.patches.positions.learned_positions import patch as learned_positions


def positions_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = learned_positions.RowPositions
    monkeypatch.setattr(
        learned_positions, "RowPositions", lambda wpe, offset: rows(wpe, offset[:1] + 0 * offset)
    )


MUTANTS = {"learned-positions": positions_of_the_first_row}
