"""Has vllm-mlx patch Gemma 4 for batches, and compares a tiny model's batch with its rows."""

from unittest import mock

from ....probes.kit import NotApplicable, Result, Target, import_module, module_of, with_patches


def probe(target: Target) -> Result:
    """Red if a batch raises or differs after the host has patched the model."""
    from ....probes.batch_invariance import measure, tiny

    host = module_of(target)
    attention = import_module("mlx_vlm.models.gemma4.language").Attention
    # Restores what the host replaces and records.
    before = {"__call__": attention.__call__, "_batch_patched": False}
    own = with_patches(("offset-alias", "shared-layer-offset"))  # of mlx-vlm's attention
    with mock.patch.multiple(attention, create=True, **before), own:
        if not getattr(host, target.name)():
            raise NotApplicable("the host does not patch the model")
        return measure(tiny("mlx-vlm", "gemma4"))
