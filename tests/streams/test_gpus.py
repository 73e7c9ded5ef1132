"""The XID detector: one episode for each code on each GPU, however many lines there are."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import identity
from schemas.kernel import KernelCategory, KernelReport
from schemas.signal import Phase, Severity
from streams.gpus import GpuXid, GpuXidSettings

S = 1_000_000_000
T0 = 1_750_000_000 * S
GPU = "0000:9b:00.0"
BOOT = "11111111-1111-1111-1111-111111111111"


def detector() -> GpuXid:
    return GpuXid("n1", "default", GpuXidSettings())


def report(
    at_ns: int,
    code: int | None = None,
    *,
    pci: str = GPU,
    category: KernelCategory = KernelCategory.XID,
    boot_id: str = BOOT,
    **more,
) -> KernelReport:
    on_gpu = category is KernelCategory.XID
    fields = {
        "node": "n1",
        "subject": identity.gpu("n1", pci) if on_gpu else "node:n1",
        "category": category,
        "code": code,
        "pci_address": None if category is KernelCategory.DRIVER_LOAD else pci,
        "message": f"{category} {code}",
        "first_ns": at_ns,
        "at_ns": at_ns,
        "clock_error_ns": 1000,
        "boot_id": boot_id,
    } | more
    content = [str(value) for value in fields.values()]
    return KernelReport(id=identity.content_id(*content), **fields)


def test_raised_at_once_with_the_catalogues_advice():
    gpus = detector()
    [signal] = gpus.observe(report(T0, 79, pid=12, process="python"))
    assert (signal.kind, signal.phase, signal.raised_ns) == ("gpu.xid", Phase.RAISED, T0)
    assert signal.subject == "gpu:n1/0000:9b:00.0"
    assert signal.severity is Severity.CRITICAL
    assert signal.remedy == "restart_node"
    assert "restart the machine" in signal.advice
    assert signal.attributes == {
        "xid": 79,
        "count": 1,
        "pci_address": GPU,
        "pid": 12,
        "process": "python",
    }
    assert not signal.sympathetic
    assert gpus.changed


def test_sympathetic_code_is_flagged():
    [signal] = detector().observe(report(T0, 45, count=100_000))
    assert signal.sympathetic
    assert signal.severity is Severity.INFO
    assert signal.remedy == ""
    assert signal.attributes["count"] == 100_000


def test_updates_at_most_every_five_seconds_and_counts_all():
    gpus = detector()
    signals = list(gpus.observe(report(T0, 45)))
    for i in range(1, 21):
        signals += gpus.observe(report(T0 + i * S, 45, count=10))
    assert [s.phase for s in signals] == [Phase.RAISED] + [Phase.UPDATED] * 4
    assert len({s.episode for s in signals}) == 1
    assert signals[-1].attributes["count"] == 201
    gpus.observe(report(T0 + 21 * S, 45, count=7))
    assert list(gpus.tick(T0 + 22 * S)) == []
    [last] = gpus.tick(T0 + 30 * S)
    assert last.phase is Phase.UPDATED and last.attributes["count"] == 208
    assert list(gpus.tick(T0 + 40 * S)) == []


def test_evidence_is_bounded():
    gpus = detector()
    for i in range(100):
        signals = list(gpus.observe(report(T0 + i * 10 * S, 45)))
    assert len(signals[0].evidence) + signals[0].evidence_dropped == 100
    assert len(signals[0].evidence) < 20


def test_codes_of_one_second_are_separate_episodes():
    gpus = detector()
    signals = [s for code in (48, 63, 94) for s in gpus.observe(report(T0, code))]
    raised = [s for s in signals if s.phase is Phase.RAISED]
    assert len({s.episode for s in raised}) == len({s.id for s in raised}) == 3


def test_what_needs_no_reset_clears_when_quiet():
    gpus = detector()
    [raised] = gpus.observe(report(T0, 31))
    assert list(gpus.tick(T0 + 599 * S)) == []
    [cleared] = gpus.tick(T0 + 600 * S)
    assert cleared.phase is Phase.CLEARED and cleared.episode == raised.episode
    assert cleared.at_ns == T0 + 600 * S
    assert list(gpus.tick(T0 + 700 * S)) == []


def test_late_reports_are_news_for_as_long_as_others():
    gpus = detector()
    list(gpus.tick(T0 + 10_000 * S))
    [raised] = gpus.observe(report(T0, 31))
    assert list(gpus.tick(T0 + 10_001 * S)) == []
    assert list(gpus.observe(report(T0 + 1, 31))) == []
    [cleared] = [s for s in gpus.tick(T0 + 10_602 * S) if s.phase is Phase.CLEARED]
    assert cleared.episode == raised.episode


@pytest.mark.parametrize("code", [79, 95, 119, 92])
def test_what_needs_more_stays_until_the_gpu_starts_afresh(code):
    gpus = detector()
    [raised] = gpus.observe(report(T0, code))
    assert list(gpus.tick(T0 + 86_400 * S)) == []
    [cleared] = gpus.observe(report(T0 + 90_000 * S, category=KernelCategory.DRIVER_LOAD))
    assert cleared.phase is Phase.CLEARED and cleared.episode == raised.episode


def test_a_new_boot_clears_before_it_raises():
    gpus = detector()
    [raised] = gpus.observe(report(T0, 79))
    cleared, again = gpus.observe(report(T0 + S, 79, boot_id=BOOT.replace("1", "2")))
    assert (cleared.phase, cleared.episode) == (Phase.CLEARED, raised.episode)
    assert again.phase is Phase.RAISED and again.episode != raised.episode


def test_a_report_that_began_after_it_ended_clears_no_later_than_it_came():
    gpus = detector()
    gpus.observe(report(T0, 79))
    restarted = report(T0 + S, boot_id=BOOT.replace("1", "2"), first_ns=2**63 - 1)
    [cleared] = gpus.observe(restarted)
    assert (cleared.phase, cleared.at_ns) == (Phase.CLEARED, T0 + S)


def test_report_without_boot_id_says_nothing_of_the_boot():
    gpus = detector()
    gpus.observe(report(T0, 79))
    assert list(gpus.observe(report(T0 + 1, 79, boot_id=""))) == []


def test_row_remap_turns_a_double_bit_error_into_drain_and_reset():
    first = detector()
    first.observe(report(T0, 48))
    raised, updated = first.observe(report(T0 + 1, 64))
    assert raised.attributes["xid"] == 64
    assert (updated.attributes["xid"], updated.remedy) == (48, "drain_and_reset")
    second = detector()
    second.observe(report(T0, 63))
    [raised] = second.observe(report(T0 + 1, 48))
    assert raised.remedy == "drain_and_reset"


def test_recovery_action_follows_the_driver():
    gpus = detector()
    [raised] = gpus.observe(report(T0, 154, subcode="GPU Reset Required"))
    assert raised.remedy == "reset_gpu"
    assert raised.attributes["xid"] == 154
    [updated] = gpus.observe(report(T0 + 1, 154, subcode="Node Reboot Required"))
    assert (updated.phase, updated.remedy) == (Phase.UPDATED, "restart_node")
    [cleared] = gpus.observe(report(T0 + 2, 154, subcode="None"))
    assert cleared.phase is Phase.CLEARED and cleared.episode == raised.episode


def test_power_smoothing_comes_back():
    gpus = detector()
    assert list(gpus.observe(report(T0, 162))) == []
    [raised] = gpus.observe(report(T0 + 1, 163))
    [cleared] = gpus.observe(report(T0 + 2, 162))
    assert cleared.phase is Phase.CLEARED and cleared.episode == raised.episode


def test_the_gravest_nvlink5_report_stands():
    gpus = detector()
    [raised] = gpus.observe(
        report(T0, 145, subcode="RLW_CTRL Nonfatal Link 00 0x00000003 0x80000000")
    )
    assert raised.severity is Severity.INFO
    [updated] = gpus.observe(
        report(T0 + 1, 145, subcode="RLW_REMAP Fatal Link 00 0x00000004 0x00000040")
    )
    assert (updated.severity, updated.remedy) == (Severity.CRITICAL, "reset_gpu")
    gpus.observe(report(T0 + 2, 145, subcode="RLW_CTRL Nonfatal Link 00 0x00000003 0x80000000"))
    [update] = gpus.tick(T0 + 10 * S)
    assert update.severity is Severity.CRITICAL


def test_switches_have_their_own_life():
    gpus = detector()
    sxid = KernelCategory.SXID
    [soft] = gpus.observe(report(T0, 12028, category=sxid, subcode="Non-fatal Link 38"))
    [hard] = gpus.observe(
        report(T0, 20034, category=sxid, subcode="Fatal Link 30", pci="0000:c1:00.0")
    )
    assert (soft.kind, soft.subject, soft.severity) == ("gpu.sxid", "node:n1", Severity.WARNING)
    assert hard.severity is Severity.CRITICAL
    assert hard.attributes["pci_address"] == "0000:c1:00.0"
    assert soft.episode != hard.episode
    [cleared] = gpus.tick(T0 + 601 * S)
    assert cleared.episode == soft.episode
    [cleared] = gpus.observe(report(T0 + 700 * S, category=KernelCategory.DRIVER_LOAD))
    assert cleared.episode == hard.episode


def test_other_reports_are_not_its_business():
    gpus = detector()
    assert list(gpus.observe(report(T0, category=KernelCategory.OOM_KILL))) == []


_events = st.lists(
    st.builds(
        report,
        st.integers(T0, T0 + 3000 * S),
        st.sampled_from([31, 45, 48, 63, 64, 79, 154, 162, 163, 145, 500]),
        pci=st.sampled_from([GPU, "0000:1b:00.0"]),
        subcode=st.sampled_from([None, "None", "GPU Reset Required"]),
        count=st.integers(1, 50),
        boot_id=st.sampled_from([BOOT, BOOT, BOOT, "", BOOT.replace("1", "2")]),
    ),
    max_size=25,
    unique_by=lambda event: event.id,
)


@settings(max_examples=60, deadline=None)
@given(_events, st.integers(0, 25))
def test_a_restart_and_a_second_reading_change_nothing(events, died_after):
    events = sorted(events, key=lambda event: event.at_ns)
    straight = detector()
    expected = [s for event in events for s in straight.observe(event)]
    expected += straight.tick(T0 + 4000 * S)

    first, got = detector(), []
    for event in events[:died_after]:
        got += first.observe(event)
    second = detector()
    second.restore(json.loads(json.dumps(first.state())))
    for event in events[max(0, died_after - 10) :]:
        got += second.observe(event)
    got += second.tick(T0 + 4000 * S)
    assert got == expected


@settings(max_examples=60, deadline=None)
@given(_events)
def test_episodes_are_well_formed(events):
    gpus = detector()
    phases: dict[str, list[Phase]] = {}
    for event in events:
        for signal in gpus.observe(event):
            phases.setdefault(signal.episode, []).append(signal.phase)
    for told in phases.values():
        assert told[0] is Phase.RAISED
        assert told.count(Phase.RAISED) == 1
        assert Phase.CLEARED not in told[:-1]


def test_storm_of_a_node_is_one_episode_a_gpu():
    gpus = detector()
    addresses = [f"0000:{bus:02x}:00.0" for bus in range(8)]
    others = [13, 31, 48, 63, 74, 79, 94, 95, 109, 119]
    chance = random.Random(1)
    signals, lines = [], 0
    for second in range(60):
        for address in addresses:
            count = chance.randrange(1, 700)
            lines += count
            at_ns = T0 + second * S
            signals += gpus.observe(report(at_ns, 45, pci=address, count=count))
        if second % 6 == 0:
            signals += gpus.observe(report(T0 + second * S, others[second // 6]))
    signals += gpus.tick(T0 + 70 * S)
    raised = [s for s in signals if s.phase is Phase.RAISED]
    assert sum(s.attributes["xid"] == 45 for s in raised) == 8
    assert sorted(s.attributes["xid"] for s in raised if not s.sympathetic) == others
    newest = {s.subject: s for s in signals if s.attributes["xid"] == 45}
    assert sum(s.attributes["count"] for s in newest.values()) == lines
    assert len(signals) < 250
