"""One broken version of each patch. With it in place, the patch's probe must be red."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlx_patches._patch import Attribute
from mlx_patches.patches.mlx_lm import batch_rotating_extract
from mlx_patches.patches.mlx_vlm import (
    altup_batch,
    aya_masks,
    mask_after_update,
    mistral_row_scale,
    unknown_kwargs,
)
from mlx_patches.patches.shared import (
    _handles,
    extra_eos,
    frozen_state,
    mask_list,
    padding_nan,
    rotating_max_size,
    shared_layer_offset,
)

Mutant = Callable[[pytest.MonkeyPatch], None]


def handles_that_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handles, "Attribute", lambda name, read: Attribute(name))


def states_that_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_state, "detached", lambda value: value)


def sizes_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating_max_size, "Attribute", lambda name, read, write: Attribute(name))


def padding_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rotating_extract, "settled", lambda cache: cache)


def first_id_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra_eos, "folder_ids", lambda folder: [])
    monkeypatch.setattr(extra_eos, "tokenizer_ids", lambda tokenizer: [])


def lists_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_list, "first", lambda cache: cache)


def masks_as_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_after_update, "whole", lambda mask: mask)


def padding_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding_nan, "zeroed", lambda cache, keys, values: (keys, values))


def arguments_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_kwargs, "accepted", lambda call: None)


def first_row_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistral_row_scale, "offsets_of", lambda cache: None)


def offsets_after_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_layer_offset, "before", lambda cache, tokens: cache)


def rows_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(altup_batch, "one_row", lambda states: states)


def one_mask_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aya_masks, "masks", lambda config, tokens, cache: None)


MUTANTS: dict[str, Mutant] = {
    "offset-alias": handles_that_alias,
    "left-padding-alias": handles_that_alias,
    "frozen-state": states_that_are_live,
    "rotating-max-size": sizes_as_they_come,
    "batch-rotating-extract": padding_below_zero,
    "extra-eos": first_id_only,
    "mask-list": lists_as_they_come,
    "mask-after-update": masks_as_they_are_cut,
    "padding-nan": padding_as_it_comes,
    "unknown-kwargs": arguments_as_they_come,
    "mistral-row-scale": first_row_for_all,
    "shared-layer-offset": offsets_after_the_update,
    "altup-batch": rows_as_they_come,
    "aya-masks": one_mask_for_both,
}
