"""The XID catalogue: the facts of the field hold, and every entry can be told to a person."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.signal import Severity
from streams.xid_catalog import lookup, with_row_remap

SOURCE = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (13, "restart_app"),
        (31, "restart_app"),
        (43, ""),
        (45, ""),
        (48, "reset_gpu"),
        (62, "reset_gpu"),
        (63, ""),
        (64, "reset_gpu"),
        (79, "restart_node"),
        (92, "contact_support"),
        (94, "restart_app"),
        (95, "reset_gpu"),
        (109, "reset_gpu"),
        (119, "reset_gpu"),
        (120, "reset_gpu"),
        (140, "reset_gpu"),
        (143, "reset_gpu"),
    ],
)
def test_action_of_the_codes_that_matter(code, remedy):
    entry = lookup(code)
    assert entry.known
    assert entry.remedy == remedy
    assert entry.ends_when_quiet == (remedy in ("", "restart_app"))


def test_sympathetic_codes_are_information():
    for code in (43, 45):
        assert lookup(code).sympathetic
        assert lookup(code).severity is Severity.INFO
        assert lookup(code).remedy == ""
    assert "alone" in lookup(45).advice
    assert not lookup(79).sympathetic


def test_double_bit_error_with_row_remap_is_drained_first():
    assert with_row_remap(lookup(48)).remedy == "drain_and_reset"
    assert "support" in lookup(64).advice


def test_unknown_code_is_told_as_unknown():
    entry = lookup(999)
    assert not entry.known
    assert entry.remedy == ""
    assert "not in the catalogue" in entry.advice


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ("None", ""),
        ("GPU Reset Required", "reset_gpu"),
        ("Node Reboot Required", "restart_node"),
        ("Drain P2P", "drain_p2p"),
        ("Drain and Reset", "drain_and_reset"),
    ],
)
def test_recovery_action_is_followed(asked, remedy):
    assert lookup(154, asked).remedy == remedy
    assert asked in lookup(154, asked).description


def test_unknown_recovery_action_is_quoted():
    assert '"Replace Fan"' in lookup(154, "Replace Fan").advice


@pytest.mark.parametrize(
    ("code", "subcode", "immediate"),
    [
        (145, "RLW_CTRL Nonfatal Link 00 0x00000003 0x80000000", "IGNORE"),
        (145, "RLW_REMAP Nonfatal Link 00 0x00000004 0x00000001", "XID_154_EVAL"),
        (145, "RLW_REMAP Fatal Link 00 0x00000004 0x00000040", "RESET_GPU"),
        # From driver R575 and before it: bit 7 and bit 10 turn the first action into the second.
        (145, "RLW_RXPIPE Nonfatal Link 02 0x00000006 0x00000001", "IGNORE"),
        (145, "RLW_RXPIPE Nonfatal Link 02 0x00000086 0x00000001", "RESET_GPU"),
        (145, "RLW_RXPIPE Nonfatal Link 02 0x000004c2 0x00000001", "RESET_GPU"),
        (149, "NETIR_LINK_EVT Fatal Link 01 0x021425c6 0x00000000", "RESET_GPU"),
        (149, "NETIR_BER_EVENT Nonfatal Link 03 0x00086226 0x00000001", "IGNORE"),
        (149, "NETIR_INT Fatal Link -1", "RESET_GPU"),
        (150, "MSE_WATCHDOG Fatal Link -1 0x00000000 0x00000000", "RESET_GPU"),
        (144, "NEW_UNIT Fatal Link 00 0x00000001 0x00000001", "RESET_GPU"),
        (144, "NEW_UNIT Nonfatal Link 00 0x00000001 0x00000001", "IGNORE"),
        (144, "garbled", "WORKFLOW_NVLINK5_ERR"),
    ],
)
def test_nvlink5_is_read_as_far_as_the_line_goes(code, subcode, immediate):
    entry = lookup(code, subcode)
    assert entry.immediate == immediate
    assert (entry.remedy == "reset_gpu") == (immediate == "RESET_GPU")
    assert subcode in entry.description


def test_peer_at_fault_is_told():
    entry = lookup(149, "NETIR_LINK_EVT Fatal Link 01 0x021425c6 0x00000000")
    assert "far end" in entry.advice


@given(st.integers(-10, 1 << 40), st.none() | st.text(max_size=80))
def test_any_code_has_an_entry(code, subcode):
    entry = lookup(code, subcode)
    assert entry.code == code
    assert 0 < len(entry.advice) <= 1024
    assert entry.description


@given(
    st.integers(144, 150),
    st.sampled_from(["RLW_REMAP", "NETIR_LINK_EVT", "SAW_MVB", "X"]),
    st.sampled_from(["Fatal", "Nonfatal"]),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
)
def test_any_words_are_decoded(code, unit, fatal, interrupt, status):
    entry = lookup(code, f"{unit} {fatal} Link 00 0x{interrupt:08x} 0x{status:08x}")
    assert entry.immediate in ("IGNORE", "XID_154_EVAL", "RESET_GPU")


def test_our_table_agrees_with_its_source():
    if not SOURCE.is_dir():
        pytest.skip("shared/data with NVIDIA's catalogue is not beside the checkout")
    with (SOURCE / "xid_catalog.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 172
    for row in rows:
        entry = lookup(int(row["code"]))
        assert (entry.mnemonic, entry.immediate) == (row["mnemonic"], row["immediate_action"])
