"""The data folder of the embedded history: whose it is, and that one process has it at a time.

A marker file says that the folder is ours; a lock on it, which the kernel drops with its holder,
says that it is in use. So a folder opens again at once after a `kill -9`.
"""

import fcntl
import os
from pathlib import Path

MARKER = "evertick-history"


class DataFolderError(RuntimeError):
    """The data folder cannot be used; the message says why and what to do."""


class DataFolder:
    """A data folder, held by one process at a time through a lock that dies with the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        marker = path / MARKER
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not marker.exists() and any(path.iterdir()):
                raise DataFolderError(
                    f"data folder {path} holds files that are not Evertick's history:"
                    " choose an empty or new folder"
                )
            self._lock = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderError(f"data folder {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._lock, 64).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise DataFolderError(
                f"data folder {path} is in use by process {holder}:"
                " stop that process or choose another folder"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._lock)
