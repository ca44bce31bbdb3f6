"""Processes an image that has to be enlarged, and the same image enlarged by Pillow's default."""

from ....probes.kit import Result, Target, compare_arrays, mx, own_class_of, require_module

SIDE = 64


def probe(target: Target) -> Result:
    """Red if the pixels differ."""
    numpy, pillow = require_module("numpy"), require_module("PIL.Image")
    values = numpy.random.default_rng(0).integers(0, 256, (SIDE // 2, SIDE // 2, 3), "uint8")
    image = pillow.fromarray(values)
    processor = own_class_of(target)(min_pixels=SIDE**2, max_pixels=SIDE**2)
    own, want = (
        mx.array(numpy.asarray(processor._preprocess_single(one)[0]))
        for one in (image, image.resize((SIDE, SIDE)))
    )
    return compare_arrays(own, want, 1e-6, "pixels'")
