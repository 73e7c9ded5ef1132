"""As much of libbpf as is needed, through ctypes: load an object, attach its programs, read them.

libbpf is a few hundred KB of C that every Debian and Ubuntu with iproute2 has installed, and it does
what is hard: relocation to the types of the running kernel. A Python binding is not needed for a dozen
calls. What is attached goes by BPF links, which the kernel takes away with the process that holds them,
however that ends.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

_LIBRARY = "libbpf.so.1"
_POINTER = ctypes.c_void_p
_SAMPLE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_size_t)
_READ_BYTES = 1 << 16
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "libbpf_set_print": (_POINTER, (_POINTER,)),
    "bpf_object__open_mem": (_POINTER, (ctypes.c_char_p, ctypes.c_size_t, _POINTER)),
    "bpf_object__load": (ctypes.c_int, (_POINTER,)),
    "bpf_object__close": (None, (_POINTER,)),
    "bpf_object__find_program_by_name": (_POINTER, (_POINTER, ctypes.c_char_p)),
    "bpf_object__find_map_fd_by_name": (ctypes.c_int, (_POINTER, ctypes.c_char_p)),
    "bpf_program__attach_cgroup": (_POINTER, (_POINTER, ctypes.c_int)),
    "bpf_program__attach_iter": (_POINTER, (_POINTER, _POINTER)),
    "bpf_link__fd": (ctypes.c_int, (_POINTER,)),
    "bpf_link__destroy": (ctypes.c_int, (_POINTER,)),
    "bpf_iter_create": (ctypes.c_int, (ctypes.c_int,)),
    "bpf_map_lookup_elem": (ctypes.c_int, (ctypes.c_int, _POINTER, _POINTER)),
    "bpf_map_update_elem": (ctypes.c_int, (ctypes.c_int, _POINTER, _POINTER, ctypes.c_uint64)),
    "ring_buffer__new": (_POINTER, (ctypes.c_int, _SAMPLE, _POINTER, _POINTER)),
    "ring_buffer__consume": (ctypes.c_int, (_POINTER,)),
    "ring_buffer__free": (None, (_POINTER,)),
}


class NoLibbpf(Exception):
    """libbpf is not installed here, or is one that lacks what is needed."""


def library() -> Any:
    """libbpf with the signatures of what is used.

    Raises:
        NoLibbpf: it is not there.
    """
    try:
        loaded = ctypes.CDLL(_LIBRARY, use_errno=True)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NoLibbpf(str(error)) from None
    # Its complaints on standard error are for people who write programs.
    loaded.libbpf_set_print(None)
    return loaded


class BpfObject:
    """Programs and maps of one object file, in the kernel."""

    def __init__(self, image: bytes) -> None:
        """Load the object.

        Raises:
            NoLibbpf: libbpf is not there.
            OSError: the kernel refuses; its errno says what it thinks of it.
        """
        self._bpf = library()
        self._links: list[int] = []
        self._rings: list[tuple[int, Any]] = []
        self._object = self._found(self._bpf.bpf_object__open_mem(image, len(image), None), "open")
        try:
            self._done(self._bpf.bpf_object__load(self._object), "load")
        except OSError:
            self.close()
            raise

    def attach_cgroup(self, program: str, folder: int) -> None:
        """Attach a program to a cgroup, given as a descriptor of its folder, and all below it."""
        self._link(self._bpf.bpf_program__attach_cgroup(self._program(program), folder), program)

    def attach_iterator(self, program: str) -> Callable[[], bytes]:
        """Make an iterator; each call of what is returned runs it in the network namespace of the
        calling thread and returns all that the program wrote."""
        link = self._link(self._bpf.bpf_program__attach_iter(self._program(program), None), program)

        def run() -> bytes:
            descriptor = self._done(self._bpf.bpf_iter_create(self._bpf.bpf_link__fd(link)), "run")
            try:
                pieces = []
                while piece := os.read(descriptor, _READ_BYTES):
                    pieces.append(piece)
                return b"".join(pieces)
            finally:
                os.close(descriptor)

        return run

    def ring(self, name: str) -> Callable[[], list[bytes]]:
        """Open a ring buffer; each call of what is returned takes out all that is in it."""
        taken: list[bytes] = []

        def take(_context: int, data: int, size: int) -> int:
            taken.append(ctypes.string_at(data, size))
            return 0

        callback = _SAMPLE(take)
        buffer = self._found(
            self._bpf.ring_buffer__new(self._map(name), callback, None, None), f"map {name}"
        )
        # The callback must live as long as the buffer does.
        self._rings.append((buffer, callback))

        def consume() -> list[bytes]:
            taken.clear()
            self._done(self._bpf.ring_buffer__consume(buffer), f"map {name}")
            return taken.copy()

        return consume

    def write(self, name: str, value: bytes) -> None:
        """Set the one entry of an array."""
        key = ctypes.c_uint32(0)
        self._done(
            self._bpf.bpf_map_update_elem(self._map(name), ctypes.byref(key), value, 0), name
        )

    def read(self, name: str, size: int) -> bytes:
        """The one entry of an array, of so many bytes."""
        key, value = ctypes.c_uint32(0), ctypes.create_string_buffer(size)
        self._done(self._bpf.bpf_map_lookup_elem(self._map(name), ctypes.byref(key), value), name)
        return value.raw

    def close(self) -> None:
        """Detach and unload everything."""
        for buffer, _ in self._rings:
            self._bpf.ring_buffer__free(buffer)
        for link in self._links:
            self._bpf.bpf_link__destroy(link)
        self._rings, self._links = [], []
        if self._object:
            self._bpf.bpf_object__close(self._object)
            self._object = 0

    def _program(self, name: str) -> int:
        found = self._bpf.bpf_object__find_program_by_name(self._object, name.encode())
        return self._found(found, f"program {name}")

    def _map(self, name: str) -> int:
        found = self._bpf.bpf_object__find_map_fd_by_name(self._object, name.encode())
        return self._done(found, f"map {name}")

    def _link(self, link: int | None, name: str) -> int:
        made = self._found(link, f"attach {name}")
        self._links.append(made)
        return made

    @staticmethod
    def _found(pointer: int | None, what: str) -> int:
        if not pointer:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"eBPF: {what}")
        return pointer

    @staticmethod
    def _done(result: int, what: str) -> int:
        if result < 0:
            raise OSError(-result, os.strerror(-result), f"eBPF: {what}")
        return result
