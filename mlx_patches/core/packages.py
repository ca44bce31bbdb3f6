"""The one table of packages: what we patch, and which distribution each comes from."""

from __future__ import annotations

# Import package to distribution: those whose modules are watched from the first import on.
DISTRIBUTIONS = {"mlx_lm": "mlx-lm", "mlx_vlm": "mlx-vlm", "vllm_mlx": "vllm-mlx"}
# The packages that hold model code.
MODELS = ("mlx_lm", "mlx_vlm")
# The package of models of each distribution.
MODEL_PACKAGES = {f"{package}.models": DISTRIBUTIONS[package] for package in MODELS}
# What an audit always names, hosts aside.
CORE = ("mlx", *MODEL_PACKAGES.values())
# Servers that people name by their command, and the distribution that installs it.
SERVERS = {"mlx_lm.server": "mlx-lm", "mlx_vlm.server": "mlx-vlm"}


def package_of(distribution: str) -> str:
    """The import package of one of our distributions.

    Raises:
        KeyError: it is none of them.
    """
    return {name: package for package, name in DISTRIBUTIONS.items()}[distribution]
