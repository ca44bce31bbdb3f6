import pytest

from mlx_patches.patches.models.expert_routing import patch as expert_routing


def shares_of_all_that_sum_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def normal(scores, chosen):
        weights = take_scores(scores, chosen)
        return weights / weights.sum(-1, keepdims=True)

    take_scores = expert_routing.take_scores
    monkeypatch.setattr(expert_routing, "take_scores", normal)


MUTANTS = {"jamba-routing": shares_of_all_that_sum_to_one}
