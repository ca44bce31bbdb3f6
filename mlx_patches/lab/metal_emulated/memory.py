"""Buffers for kernels, with guard pages that detect access out of bounds."""

import ctypes
import functools
import mmap
from typing import Any

PAGE = mmap.PAGESIZE
_READ_AND_WRITE, _PRIVATE_AND_ANONYMOUS = 3, 0x22
# The alignment that a kernel may assume.
_ALIGNED = 16


class Guarded:
    """``size`` bytes between two guard pages; the caller must call ``free``.

    Accesses beyond the end are detected exactly (up to the alignment); accesses before the start
    only from a page away.
    """

    def __init__(self, size: int):
        inner = -(-max(size, 1) // PAGE) * PAGE
        self.whole = inner + 2 * PAGE
        kind = (_READ_AND_WRITE, _PRIVATE_AND_ANONYMOUS, -1, 0)
        self.base = _libc().mmap(None, self.whole, *kind)
        if self.base == ctypes.c_void_p(-1).value:
            raise MemoryError(f"{self.whole} bytes for a kernel's buffer")
        for edge in (self.base, self.base + PAGE + inner):
            _libc().mprotect(edge, PAGE, 0)
        self.at = self.base + PAGE + inner - -(-size // _ALIGNED) * _ALIGNED
        self.size = size

    def array(self, dtype: Any) -> Any:
        """The buffer as a one-dimensional array, invalid after ``free``."""
        import numpy as np

        raw = (ctypes.c_char * self.size).from_address(self.at)
        return np.frombuffer(raw, dtype=dtype)

    def holds(self, address: int) -> bool:
        """Whether an address is in the buffer or in its guard pages."""
        return bool(self.base <= address < self.base + self.whole)

    def free(self) -> None:
        _libc().munmap(self.base, self.whole)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    number, size, place = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    libc.mmap.restype = place
    libc.mmap.argtypes = [place, size, number, number, number, ctypes.c_long]
    libc.mprotect.argtypes = [place, size, number]
    libc.munmap.argtypes = [place, size]
    return libc
