"""Sanitizes a few weights as they are published, and looks at what becomes of them."""

from types import SimpleNamespace

from ....probes.kit import Result, Target, class_of, mx, require, require_own, tiny_of

KEY, VALUE = 0.25, 0.5
_LAYER = "model.layers.0."


def probe_falcon_h1(target: Target) -> Result:
    """Red if the factors of keys and values are not in the weights."""
    require(target)
    model = tiny_of(target).module
    model.args.key_multiplier, model.args.attention_in_multiplier = KEY, VALUE
    names = {f"{_LAYER}self_attn.{part}_proj.weight": part for part in "qkv"}
    weights = {name: mx.ones((2, 2)) for name in names}
    read = model.sanitize({f"{_LAYER}mamba.conv1d.weight": mx.ones((8, 1, 4)), **weights})
    factors = {part: read[name][0, 0].item() for name, part in names.items()}
    wanted = {"q": VALUE, "k": KEY * VALUE, "v": VALUE}
    return Result(factors != wanted, f"factors {factors}, and in the config {wanted}")


def probe_gpt_oss(target: Target) -> Result:
    """Red if the experts of a model do not get the weights that transformers saves."""
    require(target)
    model = tiny_of(target).module
    experts = model.layers[0].mlp.experts
    gate, up, down = (experts[name]["weight"] for name in ("gate_proj", "up_proj", "down_proj"))
    both = mx.stack([gate, up], axis=-2).reshape(gate.shape[0], -1, gate.shape[-1])
    place = f"{_LAYER}mlp.experts."
    read = model.sanitize(
        {
            f"{place}gate_up_proj": both.swapaxes(-1, -2),
            f"{place}gate_up_proj_bias": mx.zeros(both.shape[:2]),
            f"{place}down_proj": down.swapaxes(-1, -2),
        }
    )
    wanted = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    for name, value in wanted.items():
        got = read.get(f"{place}{name}.weight")
        if got is None or not mx.array_equal(got, value).item():
            return Result(True, f"no {name} of the experts, but {sorted(read)}"[:160])
    return Result(False, "the experts have their weights")


def probe_qwen3_vl(target: Target) -> Result:
    """Red if experts that transformers 5 saved have other shapes than the model's."""
    require_own(target)
    kind = class_of(target)
    prefix, width, inner = "model.language_model.layers.0.mlp.experts.", 8, 6
    saved = {
        f"{prefix}gate_up_proj": mx.zeros((2, 2 * inner, width)),
        f"{prefix}down_proj": mx.zeros((2, width, inner)),
    }
    model = SimpleNamespace(config=SimpleNamespace(text_config=SimpleNamespace(hidden_size=width)))
    found = sorted(value.shape[1:] for value in kind.sanitize(model, saved).values())
    return Result(found != sorted([(width, inner), *[(inner, width)] * 2]), f"shapes {found}")
