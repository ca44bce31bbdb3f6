"""Aya Vision crashes on almost every image.

Why: ``gaussian_blur_axis`` should add up shifted images, each times one weight of the kernel. It
    multiplies by the whole kernel each time. This raises unless the image is as long as the kernel,
    and then blurs wrongly.
How: The same sum, with one weight per shifted image.
Upstream: Not fixed in mlx-vlm 0.7.10, where nothing calls the function.
Retire when: mlx-vlm multiplies by one weight at a time, or drops the function.
"""

from typing import Any

from ....core.verbs import Function, Patch, mx, wrap


def blur_axis(blur: Function, image: Any, sigma: float, axis: int) -> Any:
    """A Gaussian blur along an axis; beyond an edge, the edge pixel is repeated."""
    radius = int(3 * sigma)
    if radius < 1:
        return blur(image, sigma, axis)
    last = image.shape[axis] - 1
    places = mx.arange(last + 1)
    return sum(
        weight * mx.take(image, mx.clip(places + shift, 0, last), axis=axis)
        for shift, weight in enumerate(make_kernel(radius, sigma), -radius)
    )


def make_kernel(radius: int, sigma: float) -> Any:
    """The weights (2 * radius + 1,) of a pixel and its neighbours; they sum to 1."""
    return mx.softmax(-(mx.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))


PATCH = Patch(
    id="aya-blur",
    severity="crash",
    targets=wrap("mlx_vlm.models.aya_vision.vision:gaussian_blur_axis", blur_axis),
)
