"""Patches by id."""

from __future__ import annotations

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.core.registry import Entry, Registry
from mlx_patches.patches import catalogue

from .conftest import patch_of, registry_of


def test_patches_come_in_the_order_in_which_they_were_added():
    one, two = patch_of("f", id="one"), patch_of("f", id="two")
    registry = registry_of(two, one)
    assert list(registry) == [two, one]
    assert registry.ids() == ("two", "one")
    assert "one" in registry
    assert "none" not in registry


def test_an_id_is_given_once():
    registry = registry_of(patch_of("f", id="one"))
    with pytest.raises(ValueError, match="'one' is registered already"):
        registry.add(patch_of("g", id="one"))
    with pytest.raises(ValueError, match="'offset-alias' is registered already"):
        catalogue.builtin().add(patch_of("g", id="offset-alias"))


def test_an_unknown_id_is_an_error_with_a_suggestion():
    registry = registry_of(patch_of("f", id="offset-alias"))
    with pytest.raises(MlxPatchesError, match=r"'ofset-alias'; did you mean 'offset-alias'\?"):
        registry.get("ofset-alias")


def test_a_module_is_imported_when_its_patch_is_asked_for(site):
    site.write("lazy_patches.py", "raise RuntimeError('imported')\n")
    registry = Registry({"lazy": Entry("lazy_patches")})
    assert registry.ids() == ("lazy",)
    assert "lazy" in registry
    with pytest.raises(RuntimeError, match="imported"):
        registry.get("lazy")


def test_every_patch_of_ours_is_well_formed():
    for patch in catalogue.builtin():
        assert patch.targets
        assert patch.summary
        assert len({target.path for target in patch.targets}) == len(patch.targets)
        doc = patch.documentation
        for part in ("Why", "How", "Upstream", "Retire when"):
            assert f"\n{part}\n" in doc, (patch.id, part)
        module, _, name = patch.probe.partition(":")
        assert module.startswith("mlx_patches.probes.")
        assert name


def test_a_patch_knows_where_it_comes_from():
    registry = catalogue.builtin()
    assert {registry.origin(id_) for id_ in registry.ids()} == {""}
    registry.add(patch_of("f", id="theirs"), origin="other-package")
    assert registry.origin("theirs") == "other-package"
    assert registry.ids()[-1] == "theirs"
