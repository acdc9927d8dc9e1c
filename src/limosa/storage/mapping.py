"""How is a file read? Mapped into memory, and unmapped without blocking other threads.

Unmapping the last mapping of a removed file frees all of its pages, which can take a tenth of a
second. Arrow would hold Python's lock (the GIL) meanwhile; a call through ctypes releases it.
"""

import ctypes
import mmap
import os

import pyarrow as pa

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """A file's bytes, mapped as long as a buffer refers to them."""

    __slots__ = ("_unmap", "address", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        self._unmap = _libc.munmap  # at exit, this module may be cleared before the mapping
        self.size = size
        self.address = 0
        address: int = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address = address

    def __del__(self) -> None:
        if self.address:
            self._unmap(self.address, self.size)


def mapped(path: str) -> pa.Buffer:
    """The bytes of a file; they stay readable after the file is removed or replaced."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return pa.py_buffer(b"")
        mapping = _Mapping(descriptor, size)
    finally:
        os.close(descriptor)
    return pa.foreign_buffer(mapping.address, size, mapping)
