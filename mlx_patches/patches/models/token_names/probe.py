"""Calls a language model with its tokens by name, as mlx-vlm does for a chunk of a prompt.

No model is built. Python binds the arguments before the body runs, so a call on a plain object
raises TypeError for a missing argument first, and any other error only afterwards.
"""

from ....probes.kit import Result, Target, own_class_of


def probe(target: Target) -> Result:
    """Red if the model's call does not accept ``inputs=``."""
    model_class = own_class_of(target)
    try:
        model_class.__call__(object(), inputs=None, inputs_embeds=None, cache=None)
    except TypeError as error:
        if "required positional argument" in str(error):
            return Result(True, str(error))
    except Exception:  # the body ran, and failed without a model
        pass
    return Result(False, "accepts the tokens as inputs=")
