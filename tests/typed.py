"""What a type checker rejects in a program that uses mlx_patches: mypy reports an unused ignore."""

from pathlib import Path

import mlx_patches


def use() -> str:
    mlx_patches.apply(["offset-alias"], without=("rope-deltas",))
    mlx_patches.apply({"offset-alias"}, models={"llama": 1}.keys())
    mlx_patches.apply("offset-alias")  # type: ignore[arg-type]
    mlx_patches.apply(models="llama")  # type: ignore[arg-type]
    mlx_patches.statsu()  # type: ignore[attr-defined]
    print(mlx_patches.status().okay)  # type: ignore[attr-defined]
    need: mlx_patches.Need = mlx_patches.needs(Path("llama"))[0]
    mlx_patches.needs(5)  # type: ignore[arg-type]
    with mlx_patches.patched(["offset-alias"]) as report:
        print(report.ok, mlx_patches.Status.APPLIED, mlx_patches.Audit)
    return need.patch
