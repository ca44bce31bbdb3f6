"""Formats a message with an image, and finds the positions of 56 patches among 70."""

from types import SimpleNamespace

from ....probes.kit import NotApplicable, Result, Target, module_of, mx

COUNT, SIZE = 56, 70


def probe(target: Target) -> Result:
    """Red if the format writes its own mark of an image, or a position is not exact."""
    module = module_of(target)
    if target.module == "mlx_vlm.prompt_utils":
        if "minicpmv4_6" not in module.MODEL_CONFIG:
            raise NotApplicable("the release has no such model")
        message = module.MessageFormatter("minicpmv4_6").format_message("Read it.", num_images=1)
        return Result("./</image>" in str(message), f"the message is {message}")
    find = module.SiglipVisionEmbeddings._build_position_buckets
    bounds = mx.arange(1 / SIZE, 1.0, 1 / SIZE)
    places = find(SimpleNamespace(_position_grid_size=lambda: SIZE), COUNT, bounds).tolist()
    wrong = sum(place != patch * SIZE // COUNT for patch, place in enumerate(places))
    return Result(wrong > 0, f"{wrong} of {COUNT} patches at other positions")
