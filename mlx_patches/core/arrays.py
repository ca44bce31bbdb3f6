"""``mlx.core`` for patches and probes, which are also imported where MLX is not installed."""

from typing import Any


class _Mlx:
    """Imports ``mlx.core`` at the first use of a name; later uses find the name here.

    A name that the lab replaces to emulate Metal (``compile``, ``default_device``) is not for this.
    """

    def __getattr__(self, name: str) -> Any:
        import mlx.core

        value = self.__dict__[name] = getattr(mlx.core, name)
        return value


mx: Any = _Mlx()
