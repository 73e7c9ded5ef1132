"""The spool keeps order, keeps its bound, and survives the death of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.settings import SettingsError
from bus.spool import Spool


def test_keeps_order_and_forgets_what_arrived(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s.db", 1 << 20)
    seqs = [spool.append("t", b"k", b"v%d" % i, i, durable=True) for i in range(5)]
    spool.delete(seqs[1:3])
    assert [row.value for row in spool.after(0, 10)] == [b"v0", b"v3", b"v4"]
    assert [row.value for row in spool.after(seqs[0], 1)] == [b"v3"]
    assert spool.last() == seqs[-1]
    spool.close()


def test_drops_the_oldest_samples_first_and_counts_them(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s.db", 1000)
    spool.append("t", b"", b"o" * 100, 1, durable=True)
    for at in range(10, 30):
        spool.append("t", b"", b"s" * 100, at, durable=False)
    values = spool.after(0, 100)
    assert values[0].value == b"o" * 100
    assert [row.at_ns for row in values[1:]] == list(range(21, 30))
    dropped = spool.take_dropped()
    assert dropped is not None
    assert (dropped.messages, dropped.message_bytes) == (11, 1100)
    assert (dropped.from_ns, dropped.to_ns) == (10, 20)
    assert spool.take_dropped() is None
    spool.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=60))
def test_never_over_its_bound_and_no_message_unaccounted(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[int, bool]]
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool") / "s.db", 1000)
    for at, (size, durable) in enumerate(messages):
        spool.append("t", b"", b"x" * size, at, durable)
        assert spool.message_bytes <= 1000
    dropped = spool.take_dropped()
    held = spool.after(0, 1000)
    assert sum(len(row.value) for row in held) == spool.message_bytes
    assert len(held) + (dropped.messages if dropped else 0) == len(messages)
    assert [row.at_ns for row in held] == sorted(row.at_ns for row in held)
    spool.close()


def test_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    code = f"""
        import os, signal
        from pathlib import Path
        from bus.spool import Spool
        spool = Spool(Path({str(path)!r}), 1 << 20)
        for i in range(100):
            spool.append("t", b"k", b"%d" % i, i, durable=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=False, cwd=os.getcwd()
    )
    assert ended.returncode == -signal.SIGKILL
    spool = Spool(path, 1 << 20)
    assert [row.value for row in spool.after(0, 1000)] == [b"%d" % i for i in range(100)]
    spool.close()


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s.db", 1 << 20)
    spool.append("t", b"", b"x", 1, durable=True)
    with pytest.raises(SettingsError, match="another agent"):
        Spool(tmp_path / "s.db", 1 << 20)
    spool.close()
