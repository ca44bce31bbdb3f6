"""The device ``metal-emulated``: the branch that Metal takes, and its kernels' logic, on a CPU.

``mac.install()``, called before a release is imported, lets MLX answer as on a Mac. A kernel given
to ``mx.fast.metal_kernel`` is compiled as C++ with ``shim.h`` and run one thread after the other;
MLX's own operations still run on the CPU. So the release's Python takes Metal's branch, and what
its kernels index, mask, read and write is measured. What is not: Apple's compiler, its fast math
and order of sums, races between threads, the limits of a GPU, MLX's own Metal kernels, speed.
"""
