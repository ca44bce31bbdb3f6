"""The device ``metal-emulated``: Metal's code branches and the logic of its kernels, on a CPU.

``mac.install()``, called before a release is imported, makes MLX report a Mac. Kernels passed to
``mx.fast.metal_kernel`` are compiled as C++ with ``shim.h`` and run one thread after the other;
MLX's operations still run on the CPU. So the release's Python takes Metal's branch, and what its
kernels index, mask, read and write is measured. Not measured: Apple's compiler, its fast math and
summation order, races between threads, GPU limits, MLX's own Metal kernels, speed.
"""
