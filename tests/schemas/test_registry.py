"""What is refused, and that the reason is told."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from schemas.deadletter import DeadLetter
from schemas.event import Event
from schemas.packet import LinkTransition, TcpFlowColumns, TcpFlows
from schemas.registry import Unreadable, decode, encode, event, topic_of

LINK = LinkTransition(
    id="0" * 32,
    at_ns=1_700_000_000_000_000_000,
    clock_error_ns=1_000,
    node="node-3",
    subject="nic:node-3/eth1",
    carrier=False,
    admin_up=True,
    present=True,
    physical=True,
    since_ns=0,
    carrier_losses=1,
)
FLOWS = TcpFlows(
    id="1" * 32,
    at_ns=2,
    from_ns=1,
    clock_error_ns=0,
    node="node-3",
    columns=TcpFlowColumns(
        local=["10.0.0.3:1"],
        remote=["10.0.0.9:2"],
        rtt_us=[80],
        cwnd_segments=[10],
        segments_sent=[1],
        segments_retransmitted=[0],
        bytes_sent=[100],
        bytes_received=[0],
        delivery_rate_bytes_per_s=[1],
    ),
)


def changed(message: Event, **fields: object) -> bytes:
    """A message with some fields as they must not be."""
    return json.dumps({**json.loads(encode(message)), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "empty message"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "a JSON list, not an object"),
        (b"null", "a JSON NoneType, not an object"),
        (b"{}", "no schema named"),
        (b'{"schema": 7}', "no schema named"),
        (b'{"schema": "link.transition"}', "without a version number"),
        (b'{"schema": "link.transition", "version": true}', "without a version number"),
        (b'{"schema": "link.transition", "version": "1"}', "without a version number"),
        (b'{"schema": "no.such", "version": 1}', "unknown schema 'no.such'"),
        (b'{"schema":"no.such","version":1}', "unknown schema 'no.such'"),
        (b'{"schema":"link.transition","version":99}', r"has no version 99 here \(known: \[1\]\)"),
        (b'{"schema":"link.transition","version":1}', "id: Field required.*and [0-9]+ more"),
        (changed(LINK, id="short"), "id: String should match pattern"),
        (changed(LINK, at_ns=-1), "at_ns: Input should be greater than or equal to 0"),
        (changed(LINK, at_ns=1 << 63), "at_ns: Input should be less than"),
        (changed(LINK, at_ns="1"), "at_ns: Input should be a valid integer"),
        (changed(LINK, at_ns=1.5), "at_ns: Input should be a valid integer"),
        (changed(LINK, at_ns=10**400), "at_ns"),
        (changed(LINK, carrier=1), "carrier: Input should be a valid boolean"),
        (changed(LINK, subject="eth1"), "subject: Value error, not a subject: 'eth1'"),
        (changed(LINK, node="a b"), "node: Value error, not a node name"),
        (changed(LINK, zone=""), "zone: String should match pattern"),
        (changed(FLOWS, from_ns=3), "from_ns 3 is after at_ns 2"),
        (changed(FLOWS, columns=[]), "columns"),
    ],
)
def test_an_unreadable_message_is_refused_with_its_reason(data: bytes | None, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        decode(data)


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("rtt_us", [], "columns of unequal length: local 1, remote 1, rtt_us 0"),
        ("rtt_us", [1, 2], "columns of unequal length"),
        ("rtt_us", [-1], "rtt_us: a value is negative or over 64 bits"),
        ("rtt_us", [1 << 64], "rtt_us: a value is negative or over 64 bits"),
        ("rtt_us", [1.5], "columns.rtt_us.0: Input should be a valid integer"),
        ("rtt_us", [None], "columns.rtt_us.0"),
        ("local", [1], "columns.local.0: Input should be a valid string"),
    ],
)
def test_a_batch_is_a_table_or_it_is_refused(
    column: str, values: list[object], reason: str
) -> None:
    columns = {**json.loads(encode(FLOWS))["columns"], column: values}
    with pytest.raises(Unreadable, match=reason):
        decode(changed(FLOWS, columns=columns))


def test_a_batch_of_too_many_rows_is_refused() -> None:
    rows = TcpFlows.ROWS_MAX + 1
    columns = {name: column * rows for name, column in json.loads(encode(FLOWS))["columns"].items()}
    with pytest.raises(Unreadable, match="10001 rows; at most 10000 in a batch"):
        decode(changed(FLOWS, columns=columns))


def test_a_message_over_the_bound_is_refused_before_it_is_parsed() -> None:
    huge = encode(LINK)[:-1] + b',"padding":"' + b"x" * (5 << 20) + b'"}'
    with pytest.raises(Unreadable, match=r"link.transition of \d+ bytes; at most 1048576 are read"):
        decode(huge)
    with pytest.raises(Unreadable, match="bytes without a schema at their head"):
        decode(b" " * (5 << 20))


def test_a_message_on_a_topic_where_it_does_not_belong_is_refused() -> None:
    with pytest.raises(Unreadable, match=r"belongs on topic telemetry.packet, not on signals"):
        decode(encode(LINK), "signals")


def test_deadletters_may_be_as_large_as_what_they_keep() -> None:
    letter = DeadLetter(
        id="2" * 32,
        at_ns=1,
        clock_error_ns=0,
        topic="signals",
        partition=0,
        offset=0,
        reader="test",
        reason="not JSON",
        key_base64="",
        original_base64="A" * (7 << 20),
        original_bytes=7 << 20,
    )
    assert decode(encode(letter), "deadletter") == letter


def test_a_null_is_left_out_and_read_back_as_none() -> None:
    assert b"speed_mbps" not in encode(LINK)
    assert decode(encode(LINK)) == LINK
    assert decode(changed(LINK, speed_mbps=None)) == LINK


def test_the_topic_of_a_message_is_that_of_its_model() -> None:
    assert topic_of(LINK) == topic_of(FLOWS) == "telemetry.packet"


def test_a_schema_and_version_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"link.transition version 1 is registered twice"):

        @event(topic="signals")
        class _Again(Event):
            schema_name: Literal["link.transition"] = Field(
                default="link.transition", alias="schema"
            )
            version: Literal[1] = 1


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match=r"."):
        decode(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutated_message_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(data.draw(st.sampled_from([LINK, FLOWS]))))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    try:
        message = decode(bytes(whole))
    except Unreadable:
        return
    assert decode(encode(message)) == message
