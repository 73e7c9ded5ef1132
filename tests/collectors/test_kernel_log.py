"""The kernel log: its lines are read right, from every source, and no line is lost or told twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.settings import SettingsError, section
from collectors.base import Host, Unavailable
from collectors.kernel_lines import GpuIdentity, Report, parse
from collectors.kernel_log import KernelLog, KernelLogSettings
from collectors.kernel_stamps import export_entries, unstamp
from collectors.kernel_storm import Collapse, Run
from schemas.inventory import InventoryGpu
from schemas.kernel import KernelCategory, KernelReport
from schemas.signal import Phase, Severity
from streams.correlator import Correlator, CorrelatorSettings
from streams.gpus import GpuXid, GpuXidSettings
from streams.xid_catalog import lookup

DATA = Path(__file__).parents[3] / "shared" / "data" / "kmsg" / "dmesg-with-xid-119.log"
S = 1_000_000_000
NOW_NS = 1_760_000_000 * S
C = KernelCategory


# --- lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of "
            "waiting for RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC)",
            {"code": 119, "pid": 2024380, "process": "nvidia-smi", "pci_address": "0000:9b:00.0"},
        ),
        (
            "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus.",
            {"code": 79, "pid": None, "process": None, "pci_address": "0000:4e:00.0"},
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 45, pid=9684, name=python, channel 0x00000015",
            {"code": 45, "pid": 9684, "process": "python", "subcode": None},
        ),
        ("NVRM: Xid (PCI:0000:02:00): 8, Channel 00000001", {"code": 8, "pid": None}),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000001, engmask 00000101", {"code": 31}),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 13, pid=1, name=a b, Graphics Exception",
            {"code": 13, "pci_address": "0000:01:00.0", "process": "a b"},
        ),
        (
            "NVRM: Xid (PCI:0000:00:06): 31, pid=79749, name=exe, Ch 0000000a, intr 00000000. MMU "
            "Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_7 faulted @ 0x2b57_b3000000.",
            {"code": 31, "pid": 79749, "process": "exe"},
        ),
        (
            "NVRM: Xid (GPU-509665ad-b600-ac93-3616-d754b23d636d): 48, pid=7, DBE",
            {
                "code": 48,
                "pci_address": None,
                "gpu_uuid": "GPU-509665ad-b600-ac93-3616-d754b23d636d",
            },
        ),
        (
            "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
            "(Node Reboot Required)",
            {"code": 154, "subcode": "Node Reboot Required", "pci_address": "0009:01:00.0"},
        ),
        (
            "NVRM: Xid (PCI:0000:9b:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action "
            "changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            {"code": 154, "subcode": "None"},
        ),
        (
            "NVRM: Xid (PCI:0000:02:00): 154, Node Reboot Required",
            {"code": 154, "subcode": "Node Reboot Required"},
        ),
        (
            "NVRM: Xid (PCI:0000:04:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 "
            "0x80000000 0x00000000 0x00000000)",
            {"code": 145, "subcode": "RLW_CTRL Nonfatal Link 00 0x00000003 0x80000000"},
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 "
            "0x00000000 0x00000000)",
            {"code": 149, "subcode": "NETIR_LINK_EVT Fatal Link 09 0x025525c6 0x00000000"},
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_INT  Fatal   XC0 i0 Link -1",
            {"code": 149, "subcode": "NETIR_INT Fatal Link -1"},
        ),
        (
            "NVRM: Xid (PCI:0000:85:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error "
            "detected on link 6(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
            {"code": 74, "subcode": "Link 6"},
        ),
        (
            "NVRM: Xid (PCI:0000:05:00): 63, pid=1896, name=sh, Row Remapper: New row marked for "
            "remapping, reset gpu to activate.",
            {"code": 63, "pid": 1896},
        ),
        ("NVRM: Xid (PCI:0000:05:00): 94, Contained: SM (0x1). RST: No, D-RST: No", {"code": 94}),
    ],
)
def test_xid_lines(line, expected):
    found = parse(line)
    assert isinstance(found, Report)
    assert found.category is C.XID and found.message == line
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 38 egress non-posted "
            "PRIV error (First)",
            (C.SXID, 12028, "Non-fatal Link 38", "0000:c1:00.0", None),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            (C.SXID, 20034, "Fatal Link 30", "0000:00:00.0", None),
        ),
        (
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC",
            (C.DRIVER_LOAD, None, "550.163.01", None, None),
        ),
        (
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
            (C.DRIVER_LOAD, None, "570.86.15", None, None),
        ),
        (
            "pcieport 0000:00:01.0: AER: Corrected error message received from 0000:01:00.0",
            (C.PCIE_AER, None, "message received", "0000:01:00.0", True),
        ),
        (
            "pcieport 0000:00:1d.0: AER: Multiple Uncorrected (Non-Fatal) error received: "
            "0000:00:1d.0",
            (
                C.PCIE_AER,
                None,
                "message received, Uncorrected (Non-Fatal)",
                "0000:00:1d.0",
                False,
            ),
        ),
        (
            "pcieport 0000:00:1c.0: AER: Corrected error received: id=00e0",
            (C.PCIE_AER, None, "message received", None, True),
        ),
        (
            "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, "
            "(Receiver ID)",
            (C.PCIE_AER, None, "Physical Layer", "0000:00:1c.0", True),
        ),
        (
            "igb 0000:09:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), "
            "type=Transaction Layer, (Requester ID)",
            (C.PCIE_AER, None, "Transaction Layer, Uncorrected (Fatal)", "0000:09:00.0", False),
        ),
        (
            "pcieport 0000:00:1b.0: DPC: containment event, status:0x1f01 source:0x0000",
            (C.PCIE_AER, None, "DPC containment, Uncorrected", "0000:00:1b.0", False),
        ),
        (
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)",
            (C.MEMORY, None, "CE", None, True),
        ),
        (
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
            (C.MEMORY, None, "UE", None, False),
        ),
        (
            "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 4: e600000000020408",
            (C.MEMORY, None, "machine check", None, False),
        ),
        (
            "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: 8c00004000010091",
            (C.MEMORY, None, "machine check", None, True),
        ),
        (
            "mce: [Hardware Error]: Machine check events logged",
            (C.MEMORY, None, "machine check", None, None),
        ),
        (
            "Memory failure: 0x104000: recovery action for huge page: Recovered",
            (C.MEMORY, None, "memory failure", None, False),
        ),
    ],
)
def test_other_hardware_lines(line, expected):
    found = parse(line)
    assert isinstance(found, Report)
    got = (found.category, found.code, found.subcode, found.pci_address, found.correctable)
    assert got == expected


@pytest.mark.parametrize(
    ("line", "subcode", "interface", "pci"),
    [
        (
            "mlx5_core 0000:08:00.0 eth2: mlx5e_cq_error_event: cqn=0x000406 event=0x04",
            "error",
            "eth2",
            "0000:08:00.0",
        ),
        (
            "mlx5_core 0000:06:00.0: wait_func_handle_exec_timeout:1128:(pid 185911): cmd[-22]: "
            "CREATE_UCTX(0xa04) No done completion",
            "error",
            None,
            "0000:06:00.0",
        ),
        (
            "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power "
            "on the PCIe slot (27W).",
            "error",
            None,
            "0000:5c:00.0",
        ),
        ("mlx5_core 0000:5c:00.0 ens1f0np0: Link down", "link down", "ens1f0np0", "0000:5c:00.0"),
        (
            "bnxt_en 0000:19:00.0 enp25s0f0np0: NIC Link is Up, 25000 Mbps full duplex",
            "link up",
            "enp25s0f0np0",
            "0000:19:00.0",
        ),
        ("ice 0000:17:00.0 ens1f0: NIC Link is Down", "link down", "ens1f0", "0000:17:00.0"),
        ("igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down", "link down", "eth0", "0000:01:00.0"),
        ("e1000e: eth0 NIC Link is Down", "link down", "eth0", None),
        ("NETDEV WATCHDOG: eth2 (igb): transmit queue 4 timed out", "tx timeout", "eth2", None),
        (
            "NETDEV WATCHDOG: CPU: 3: ens5 (ena): transmit queue 0 timed out 5100 ms",
            "tx timeout",
            "ens5",
            None,
        ),
        (
            "bond0: (slave eth1): link status definitely down, disabling slave",
            "link down",
            "eth1",
            None,
        ),
        (
            "bonding: bond0: link status definitely up for interface eth1, 100 Mbps full duplex.",
            "link up",
            "eth1",
            None,
        ),
    ],
)
def test_nic_lines(line, subcode, interface, pci):
    found = parse(line)
    assert isinstance(found, Report)
    assert (found.category, found.subcode) == (C.NIC, subcode)
    assert (found.interface, found.pci_address) == (interface, pci)


def test_killed_processes_are_named():
    node = parse("Out of memory: Killed process 123 (python) total-vm:25004420kB, anon-rss:1kB")
    assert isinstance(node, Report)
    assert (node.category, node.subcode, node.pid) == (C.OOM_KILL, "node", 123)
    cgroup = parse("Memory cgroup out of memory: Kill process 46 (a (b) c) score 561 or sacrifice")
    assert isinstance(cgroup, Report)
    assert (cgroup.subcode, cgroup.process) == ("cgroup", "a (b) c")
    poisoned = parse("Memory failure: 0x1840200: Killing cellsrv:33395 due to hardware memory")
    assert isinstance(poisoned, Report)
    assert (poisoned.process, poisoned.pid) == ("cellsrv", 33395)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: GPU Board Serial Number: 1650124014249",
        "NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0000000000002081",
        "NVRM:      0    103  GSP_RM_ALLOC          0x0000000000002081 0x0000000000000004",
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every "
        "30).  The GPU likely needs to be reset.",
        "nvidia-nvswitch3: SXid (PCI:0000:0a:00.0): 22013, Severity 0 Engine instance 55 Sub-engine",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000}",
        "pcieport 0000:00:1c.0:   device [8086:9d13] error status/mask=00000001/00002000",
        "pcieport 0000:00:1c.0:    [ 0] RxErr",
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
        "EDAC sbridge MC0: HANDLING MCE MEMORY ERROR",
        "mce: [Hardware Error]: TSC 0 ADDR 12345 MISC 90040000004008c ",
        "mce: CPU supports 20 MCE banks",
        "mlx5_core 0000:01:00.1: E-Switch: Enable: mode(LEGACY), nvfs(1), necvfs(0)",
        "mlx5_core 0000:01:00.0: firmware version: 28.39.1002",
        "ice 0000:17:00.0: The DDP package was successfully loaded: ICE OS Default Package",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "docker0: port 1(veth12345) entered disabled state",
        "oom_reaper: reaped process 46433 (chrome), now anon-rss:0kB, file-rss:0kB",
        "device eth0 entered promiscuous mode",
        "audit: type=1400 apparmor=DENIED",
    ],
)
def test_ordinary_lines_tell_nothing(line):
    assert parse(line) is None


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=200)
    | st.builds(
        "{} {}: {}".format,
        st.sampled_from(
            ["NVRM: Xid (PCI:0000:01:00)", "NVRM:", "mlx5_core 0000:08:00.0", "EDAC MC0", "mce",
             "NETDEV WATCHDOG:", "bond0", "x: SXid (PCI:0000:00:00.0)", "Out of memory: Killed"]
        ),
        st.text(max_size=20),
        st.text(max_size=100),
    )
)  # fmt: skip
def test_no_text_raises(text):
    parse(text)
    unstamp(text, NOW_NS)


@settings(max_examples=100, deadline=None)
@given(
    code=st.integers(1, 999).filter(lambda code: code != 154 and not 144 <= code <= 150),
    bus=st.integers(0, 255),
    domain=st.integers(0, 0xFFFF),
    pid=st.none() | st.integers(1, 1 << 22),
    name=st.none() | st.from_regex(r"[A-Za-z0-9_./:-]{1,15}", fullmatch=True),
    rest=st.text("abcdef 0123456789", max_size=40),
)
def test_xid_lines_are_read_back(code, bus, domain, pid, name, rest):
    owner = "" if pid is None else f" pid={pid}," + ("" if name is None else f" name={name},")
    found = parse(f"NVRM: Xid (PCI:{domain:04x}:{bus:02x}:00): {code},{owner} {rest}")
    assert isinstance(found, Report)
    assert (found.code, found.pci_address) == (code, f"{domain:04x}:{bus:02x}:00.0")
    assert found.pid == pid
    assert found.process == (name if pid is not None else None)


# --- stamps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message", "seconds"),
    [
        ("[Sun Feb 23 16:24:18 2025] NVRM: x", "NVRM: x", time.mktime((2025, 2, 23, 16, 24, 18, 0, 0, -1))),
        ("[12345.678901] NVRM: x", "NVRM: x", 12345.678901),
        ("<3>[    0.000000][    T1] NVRM: x", "NVRM: x", 0),
        ("kernel: [16450076.435584] NVRM: x", "NVRM: x", 16450076.435584),
        ("Sep 19 10:30:06 host kernel: NVRM: x", "NVRM: x", time.mktime((2025, 9, 19, 10, 30, 6, 0, 0, -1))),
        ("Dec 24 10:30:06 host kernel: [ 12.345678] NVRM: x", "NVRM: x", time.mktime((2024, 12, 24, 10, 30, 6, 0, 0, -1))),
        ("2025-02-23T16:24:18.250000+00:00 host kernel: NVRM: x", "NVRM: x", 1740327858.25),
        ("2025-02-23T16:24:18,250000+00:00 NVRM: x", "NVRM: x", 1740327858.25),
        ("2025-02-23T17:24:18+0100 host kernel: NVRM: x", "NVRM: x", 1740327858),
        ("NVRM: x", "NVRM: x", None),
        ("[Sun Feb 31 16:24:18 2025] NVRM: x", "NVRM: x", None),
    ],
)  # fmt: skip
def test_stamps(line, message, seconds):
    stamped = unstamp(line, NOW_NS)
    assert stamped is not None
    assert stamped.message == message
    assert stamped.at_ns == (None if seconds is None else pytest.approx(seconds * 1e9, abs=1000))


def test_programs_in_the_syslog_are_not_the_kernel():
    assert unstamp("Sep 19 10:30:06 host sshd[12]: NVRM: Xid (PCI:0000:01:00): 79", NOW_NS) is None


def test_export_format_with_binary_fields_and_a_broken_tail():
    binary = b"MESSAGE\n" + (7).to_bytes(8, "little") + b"a\n\nb=c\n" + b"\n"
    data = b"__CURSOR=1\n" + binary + b"X=y\n\n" + b"__CURSOR=2\nMESSAGE=half"
    entries, used = export_entries(data)
    assert [fields for _, fields in entries] == [
        {"__CURSOR": "1", "MESSAGE": "a\n\nb=c\n", "X": "y"}
    ]
    assert data[used:] == b"__CURSOR=2\nMESSAGE=half"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_no_export(data):
    _, used = export_entries(data)
    assert used <= len(data)


# --- storms --------------------------------------------------------------------------------------


def _add(collapse: Collapse, key: str, at_ns: int, place: int) -> list[Run]:
    return list(collapse.add((key,), at_ns, 1000, str(place), dict))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40 * S)), max_size=80),
    st.lists(st.integers(0, 80), max_size=5),
)
def test_no_line_is_uncounted(lines, cuts):
    """Whatever the times, and however often the counts move to another process."""
    collapse, told = Collapse(S, 30 * S), []
    for i, (key, at_ns) in enumerate(lines):
        if i in cuts:
            state, collapse = json.loads(json.dumps(collapse.state())), Collapse(S, 30 * S)
            collapse.restore(state)
        told += _add(collapse, key, at_ns, i)
    told += collapse.advance(10_000 * S)
    assert sum(run.count for run in told) == len(lines)
    assert not collapse.state()


def test_first_leaves_at_once_and_windows_double():
    collapse, told = Collapse(S, 30 * S), []
    for i in range(10_000):
        told += [(i, run) for run in _add(collapse, "k", i * S // 100, i)]
    assert told[0][0] == 0 and told[0][1].count == 1
    assert [run.count for _, run in told[1:]] == [99, 200, 400, 800, 1600, 3000, 3000]
    assert sum(run.count for run in collapse.advance(1000 * S)) == 10_000 - 9100


def test_windows_do_not_depend_on_when_they_are_looked_at():
    lines = [(i * S // 7) for i in range(300)]
    eager, lazy = Collapse(S, 30 * S), Collapse(S, 30 * S)
    first, second = [], []
    for i, at_ns in enumerate(lines):
        first += _add(eager, "k", at_ns, i)
        first += eager.advance(at_ns)
        second += _add(lazy, "k", at_ns, i)
    assert first == second


# --- the collector -------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path):
    return Host("n1", "default", tmp_path / "data")


def collector(host, path, source="file", **more) -> KernelLog:
    return KernelLog(host, KernelLogSettings(source=source, path=path, **more))


def drain(kernel_log: KernelLog, runs: int = 2) -> list:
    return [event for _ in range(runs) for event in kernel_log.collect()]


XID79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=12, name=python, GPU has fallen off the bus.\n"


def test_the_real_log():
    if not DATA.is_file():
        pytest.skip("shared/data/kmsg is not beside the checkout")
    lines = [line.split("] ", 1)[1] for line in DATA.read_text().splitlines()]
    told = [found for line in lines if (found := parse(line)) is not None]
    named = [found for found in told if isinstance(found, GpuIdentity)]
    assert named == [GpuIdentity("0000:9b:00.0", "GPU-509665ad-b600-ac93-3616-d754b23d636d")]
    reports = [found for found in told if isinstance(found, Report)]
    assert [found.message for found in reports] == [line for line in lines if ": Xid (" in line]
    assert {(found.category, found.code, found.pci_address) for found in reports} == {
        (C.XID, 119, "0000:9b:00.0")
    }
    assert [found.process for found in reports] == ["nvidia-smi"] * 3 + ["cache_mgr_main", "gpud"]


def test_the_real_log_from_its_file(host, tmp_path):
    if not DATA.is_file():
        pytest.skip("shared/data/kmsg is not beside the checkout")
    log = tmp_path / "dmesg"
    shutil.copy(DATA, log)
    events = drain(collector(host, log))
    [gpu] = [event for event in events if isinstance(event, InventoryGpu)]
    assert gpu.uuid == "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    reports = [event for event in events if isinstance(event, KernelReport)]
    assert [(report.code, report.count) for report in reports] == [(119, 1)] * 5
    assert {report.subject for report in reports} == {"gpu:n1/0000:9b:00.0"}
    at_ns = int(time.mktime((2025, 2, 23, 16, 24, 18, 0, 0, -1))) * S
    assert reports[0].at_ns == at_ns
    assert reports[0].boot_id == "", "a log of long ago says nothing of this boot"
    gpus = GpuXid("n1", "default", GpuXidSettings())
    signals = [signal for report in reports for signal in gpus.observe(report)]
    assert len({signal.episode for signal in signals}) == 1
    assert signals[-1].attributes["count"] == 5 and signals[-1].remedy == "reset_gpu"


def test_restart_neither_loses_nor_doubles(host, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text(XID79)
    first = collector(host, log)
    [before] = drain(first)
    first.close()
    with log.open("a") as file:
        file.write("[5.000000] NVRM: Xid (PCI:0000:9b:00): 31, pid=1, MMU Fault\nchatter\npart")
    second = collector(host, log)
    [after] = drain(second)
    assert (before.code, after.code) == (79, 31)
    with log.open("a") as file:
        file.write(f"ial line\n{XID79}")
    [again] = [event for event in drain(second, 1) if event.code == 79]
    assert again.id != before.id


@pytest.mark.parametrize("same_process", [True, False])
def test_a_crash_before_handing_over_makes_the_same_ids(host, tmp_path, same_process):
    log = tmp_path / "kern.log"
    log.write_text(f"[1.000000] {XID79}[1.500000] {XID79}[9.000000] {XID79}")
    crashed = collector(host, log)
    first = next(iter(crashed.collect()))
    told = drain(crashed if same_process else collector(host, log))
    assert told[0].id == first.id
    assert [report.count for report in told] == [1, 1, 1]
    assert len({report.id for report in told}) == 3


def test_counts_outlive_the_agent(host, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text(XID79 * 5)
    first = collector(host, log, window_s=30)
    told = list(first.collect())
    first.close()
    second = collector(host, log, window_s=30)
    told += second._collapse.drain()
    assert sum(run.count for run in told) == 5


@pytest.mark.parametrize("copy_truncate", [False, True])
def test_rotation(host, tmp_path, copy_truncate):
    log = tmp_path / "kern.log"
    log.write_text(XID79)
    kernel_log = collector(host, log, window_s=0.001)
    assert len(drain(kernel_log, 1)) == 1
    time.sleep(0.01)
    if copy_truncate:
        os.truncate(log, 0)
        drain(kernel_log, 1)
    else:
        with log.open("a") as file:
            file.write(XID79.replace("79", "48"))
        log.rename(tmp_path / "kern.log.1")
    log.write_text(XID79.replace("79", "63"))
    codes = [event.code for event in drain(kernel_log, 4)]
    assert codes == ([63] if copy_truncate else [48, 63])


def test_rotation_while_nobody_read(host, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text(XID79)
    first = collector(host, log)
    drain(first, 1)
    first.close()
    with log.open("a") as file:
        file.write(XID79.replace("79", "48"))
    log.rename(tmp_path / "kern.log.1")
    log.write_text(XID79.replace("79", "63"))
    assert [event.code for event in drain(collector(host, log), 3)] == [48, 63]


def test_gpu_named_by_uuid_is_found_by_its_identity_line(host, tmp_path):
    uuid = "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    log = tmp_path / "kern.log"
    log.write_text(f"NVRM: GPU at PCI:0000:9b:00: {uuid}\nNVRM: Xid ({uuid}): 48, DBE\n")
    _, report = drain(collector(host, log))
    assert report.subject == "gpu:n1/0000:9b:00.0"


def test_unreadable_file_is_unavailable_with_the_fix(host, tmp_path):
    with pytest.raises(Unavailable, match=r"no-such.*collectors\.kernel_log\.path"):
        collector(host, tmp_path / "no-such")
    with pytest.raises(SettingsError, match="path"):
        section(KernelLogSettings, {"source": "file"}, "collectors.kernel_log")


def test_unreadable_state_is_no_end(host, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text(XID79)
    host.data_dir.mkdir()
    (host.data_dir / "kernel_log.json").write_text('{"source": 1')
    assert len(drain(collector(host, log))) == 1


def test_garbage_is_passed_over(host, tmp_path):
    log = tmp_path / "kern.log"
    log.write_bytes(random.Random(1).randbytes(3 << 20) + b"\n" + XID79.encode())
    assert [event.code for event in drain(collector(host, log), 6)] == [79]


def test_journal_export_file(host, tmp_path):
    export = tmp_path / "journal.export"
    boot = "0123456789abcdef0123456789abcdef"
    entry = (
        f"__CURSOR=s=1;i={{}}\n__REALTIME_TIMESTAMP=1740327858123456\n_BOOT_ID={boot}\n"
        "_TRANSPORT={}\nMESSAGE={}\n\n"
    )
    export.write_text(
        entry.format(1, "kernel", XID79.strip()) + entry.format(2, "syslog", XID79.strip())
    )
    [report] = drain(collector(host, export, "journal"))
    assert report.at_ns == 1740327858123456000
    assert report.boot_id == "01234567-89ab-cdef-0123-456789abcdef"


def test_journal_itself(host):
    if shutil.which("journalctl") is None:
        pytest.skip("journalctl is not on this machine")
    kernel_log = collector(host, None, "journal")
    try:
        drain(kernel_log, 1)
    except RuntimeError as error:
        pytest.skip(f"this machine has no journal to follow: {error}")
    finally:
        kernel_log.close()


def test_kmsg(host):
    try:
        first = collector(host, None, "kmsg")
    except Unavailable as reason:
        pytest.skip(str(reason))
    mine = f"bond{os.getpid()}"

    def told(kernel_log: KernelLog) -> list[tuple[str, int]]:
        return [
            (event.subcode, event.count)
            for event in drain(kernel_log, 3)
            if isinstance(event, KernelReport) and mine in event.message
        ]

    def say(state: str) -> None:
        with open("/dev/kmsg", "w") as kmsg:
            kmsg.write(f"<6>{mine}: (slave et-none): link status definitely {state}, a test\n")

    drain(first, 1)
    try:
        say("down")
    except OSError as error:
        first.close()
        pytest.skip(f"/dev/kmsg cannot be written here: {error}")
    assert told(first) == [("link down", 1)]
    first.close()
    say("up")
    second = collector(host, None, "kmsg")
    assert told(second) == [("link up", 1)], "what was written meanwhile, and nothing twice"
    second.close()


def test_capabilities_leave_no_trace(host):
    KernelLog.capabilities(host, KernelLogSettings())
    assert not host.data_dir.exists()


def test_storm(host, tmp_path):
    """168,924 lines of XID 45 on 8 GPUs and ten other XIDs: all counted, few messages."""
    chance = random.Random(45)
    others = [13, 31, 48, 63, 74, 79, 94, 95, 109, 119]
    lines = [
        f"NVRM: Xid (PCI:0000:{0x1B + 0x10 * (i % 8):02x}:00): 45, pid={chance.randrange(2000, 2064)}, "
        f"name=python, Ch {i % 64:08x}\n"
        for i in range(168_924)
    ]
    for n, code in enumerate(others):
        lines.insert(
            chance.randrange(len(lines)),
            f"NVRM: Xid (PCI:0000:{0x1B + 0x10 * (n % 8):02x}:00): {code}, pid=7, name=python, x\n",
        )
    log = tmp_path / "storm.log"
    start_s = 1_000_000
    log.write_text("".join(f"[{start_s + i / 100_000:.6f}] {line}" for i, line in enumerate(lines)))
    kernel_log = collector(host, log)
    cpu_s = time.process_time()
    events = list(kernel_log.collect())
    while kernel_log._source.position()["offset"] < log.stat().st_size:
        events += kernel_log.collect()
    cpu_s = time.process_time() - cpu_s
    deadline = time.monotonic() + 60
    while sum(event.count for event in events) < len(lines) and time.monotonic() < deadline:
        events += kernel_log.collect()
    print(f"storm: {cpu_s:.2f} s of CPU, {len(events)} messages")
    assert sum(event.count for event in events if event.code == 45) == 168_924
    assert sorted(event.code for event in events if event.code != 45) == others
    assert len(events) < 300
    assert len({event.id for event in events}) == len(events)

    gpus = GpuXid("n1", "default", GpuXidSettings())
    signals = [signal for event in events for signal in gpus.observe(event)]
    raised = [signal for signal in signals if signal.phase is Phase.RAISED]
    causes = [signal for signal in raised if not signal.sympathetic]
    assert len(raised) == 8 + 10
    assert {s.attributes["xid"]: s.advice for s in causes} == {
        code: lookup(code).advice for code in others
    }

    correlator = Correlator("default", CorrelatorSettings())
    incidents = {
        revision.incident: revision for signal in signals for revision in correlator.observe(signal)
    }
    storms = [one for one in incidents.values() if one.subject == "node:n1"]
    assert len(storms) == 1
    assert storms[0].severity is Severity.INFO
    assert storms[0].recommendation is None
    told_apart = [one for one in incidents.values() if one is not storms[0]]
    assert sorted(one.symptoms[0].attributes["xid"] for one in told_apart) == others
    assert all(one.recommendation is not None for one in told_apart if one.severity != "info")
