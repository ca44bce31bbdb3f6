"""Where the caches of both packages are: distribution and module, as a ``Target`` begins."""

LM_CACHES = ("mlx-lm", "mlx_lm.models.cache")
VLM_CACHES = ("mlx-vlm", "mlx_vlm.models.cache")
CACHES = (LM_CACHES, VLM_CACHES)
