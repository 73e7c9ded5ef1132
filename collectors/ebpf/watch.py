"""Every TCP flow of this host, summed in the kernel by ``flows.bpf.c``.

The program is built beforehand and kept beside its source (a test builds it anew and compares), and is
fitted to the kernel it meets by libbpf: a node needs neither a compiler nor headers, and the agent does
not grow, whereas bcc would bring LLVM into a node and take a second of a core and 130 MB at each start.

The record of a flow hangs on its socket (``BPF_MAP_TYPE_SK_STORAGE``) rather than in a table of bounded
size: none is evicted, and it goes when the socket goes. Reading is one pass of an iterator over the
sockets of each namespace, which also takes in those that were there before; a flow that ends leaves
its last record in a ring buffer.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from collectors.ebpf.libbpf import BpfObject, NoLibbpf
from collectors.ebpf.namespaces import Namespaces
from collectors.ebpf.record import Record, records

_OBJECT = Path(__file__).with_name("flows.bpf.o")
_BTF = Path("/sys/kernel/btf/vmlinux")
_SETTINGS = struct.Struct("=QQ")
_SO_NETNS_COOKIE = 71
_NEEDS_CAPABILITIES = "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_SYS_ADMIN"


class NoEbpf(Exception):
    """Flows cannot be watched in this kernel; the text says why."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix
        """What would help; empty where nothing would."""


def load() -> BpfObject:
    """Put the programs into the kernel, attached to nothing yet.

    Raises:
        NoEbpf: it cannot be done here.
    """
    if not _BTF.exists():
        raise NoEbpf(
            f"no kernel types in {_BTF}; without them fields of kernel structures cannot be found",
            "a kernel built with CONFIG_DEBUG_INFO_BTF",
        )
    try:
        return BpfObject(_OBJECT.read_bytes())
    except NoLibbpf as error:
        raise NoEbpf(f"no libbpf 1.x: {error}", "apt-get install libbpf1") from None
    except OSError as error:
        raise refused(error) from None


class FlowWatch:
    """The programs, at work. To be read by the thread that made it."""

    def __init__(self, cgroup: int, all_namespaces: bool) -> None:
        """Load and attach them.

        Args:
            cgroup: descriptor of the root of the cgroup2 file system.
            all_namespaces: watch all network namespaces, not only that of this thread.

        Raises:
            NoEbpf: it cannot be done here.
        """
        self._object = load()
        self._others: Namespaces | None = None
        try:
            cookie = 0 if all_namespaces else _namespace_cookie()
            self._object.write("settings", _SETTINGS.pack(cookie, 0))
            self._ended: Callable[[], list[bytes]] = self._object.ring("closed")
            self._visit: Callable[[], bytes] = self._object.attach_iterator("visit")
            self._object.attach_cgroup("watch", cgroup)
            if all_namespaces:
                self._others = Namespaces()
        except OSError as error:
            self.close()
            raise refused(error) from None

    def read(self) -> list[Record]:
        """Every flow as it is now, and as they were at their ends those that ended since the last
        call.

        Raises:
            OSError: the kernel refuses.
        """
        pieces = [self._visit()]
        if self._others is not None:
            pieces += self._others.each(self._visit)
        # Behind the visits: what ended meanwhile is in both, and this is the later word.
        pieces += self._ended()
        found = {record.cookie: record for piece in pieces for record in records(piece)}
        return list(found.values())

    def ends_lost(self) -> int:
        """Flows whose end found no room in the ring buffer."""
        return int(_SETTINGS.unpack(self._object.read("settings", _SETTINGS.size))[1])

    def close(self) -> None:
        """Detach and unload the programs."""
        if self._others is not None:
            self._others.close()
        self._object.close()


def _namespace_cookie() -> int:
    with socket.socket() as own:
        data = own.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
    return int(struct.unpack("=Q", data)[0])


def refused(error: OSError) -> NoEbpf:
    """What to say of a call that the kernel refused."""
    what = f"{error.filename or 'eBPF'}: {error.strerror}"
    if error.errno in (errno.EPERM, errno.EACCES):
        return NoEbpf(f"{what}; it needs {_NEEDS_CAPABILITIES}", "run the agent as root")
    return NoEbpf(f"{what}; it needs Linux 5.15 with BPF, BTF and cgroup v2", "a newer kernel")
