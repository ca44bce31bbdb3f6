"""Calls a language model with the keyword arguments that engines forward.

No model is built. Python binds the arguments before the body runs, so a call on a plain object
raises TypeError for an unknown argument first, and any other error only afterwards.
"""

from typing import Any

from ....probes.kit import Result, Target, own_class_of

FORWARDED = ("n_to_process", "attention_mask_4d", "rope_deltas", "position_ids")


def probe(target: Target) -> Result:
    """Red if the model rejects an argument that engines forward."""
    model_class = own_class_of(target)
    refused = [name for name in FORWARDED if not _accepts(model_class, name)]
    if refused:
        return Result(True, f"rejects {', '.join(refused)}")
    return Result(False, "accepts the arguments that engines forward")


def _accepts(model_class: Any, name: str) -> bool:
    try:
        model_class.__call__(object(), None, cache=None, **{name: None})
    except TypeError as error:
        return f"unexpected keyword argument '{name}'" not in str(error)
    except Exception:  # the body ran, and failed without a model
        return True
    return True
