"""Telemetry of links, interfaces and TCP flows (topic ``telemetry.packet``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.event import Batch, Columns, Count, Nanoseconds, Occurrence
from schemas.registry import event


@event(topic="telemetry.packet")
class LinkTransition(Occurrence):
    """A network interface gained or lost its carrier, appeared or went away.

    A transition carries when the state before it began, so that a reader that missed that message
    still knows which loss this return ends.
    """

    schema_name: Literal["link.transition"] = Field(default="link.transition", alias="schema")
    version: Literal[1] = 1

    carrier: bool
    """The link has carrier after this transition."""
    admin_up: bool
    """The interface is administratively up; a link that somebody set down is not a fault."""
    present: bool
    """The interface exists; false once it was removed."""
    physical: bool
    """A device stands behind it (PCI, USB); false for veth, bridge, tun and the like."""
    since_ns: Nanoseconds
    """When the state before this one began, 0 where unknown. For a return: when carrier was lost."""
    carrier_losses: Count
    """Losses of carrier since the interface appeared, by the kernel's own count."""
    unseen: Count = 0
    """Losses counted by the kernel since the last report that were not seen one by one."""
    speed_mbps: Count | None = None
    """Speed in Mb/s, where the driver tells."""
    mtu_bytes: Count = 0


class InterfaceColumns(Columns):
    """One row an interface. All counters are totals since the interface appeared, as the kernel has
    them: a reader takes differences and handles a reset (smaller than before) and a wrap."""

    interface: list[str]
    carrier: list[bool]
    speed_mbps: list[int]
    """0 where the driver does not tell."""
    rx_bytes: list[int]
    tx_bytes: list[int]
    rx_packets: list[int]
    tx_packets: list[int]
    rx_errors: list[int]
    tx_errors: list[int]
    rx_crc_errors: list[int]
    rx_dropped: list[int]
    tx_dropped: list[int]
    rx_missed: list[int]
    """Frames lost for want of buffer space in the NIC."""
    rx_pause: list[int]
    """Pause frames received, all priorities together; 0 where the driver does not tell."""
    tx_pause: list[int]


@event(topic="telemetry.packet")
class InterfaceCounters(Batch):
    """Counters of a node's network interfaces."""

    schema_name: Literal["interface.counters"] = Field(default="interface.counters", alias="schema")
    version: Literal[1] = 1
    columns: InterfaceColumns


class TcpFlowColumns(Columns):
    """One row an established TCP flow. Flows come and go, so segments and bytes are those of the
    interval alone; round-trip time, window and delivery rate are as the kernel had them at its end."""

    local: list[str]
    """``address:port``, IPv6 addresses in brackets."""
    remote: list[str]
    rtt_us: list[int]
    """Smoothed round-trip time (RFC 6298)."""
    cwnd_segments: list[int]
    segments_sent: list[int]
    segments_retransmitted: list[int]
    bytes_sent: list[int]
    """Acknowledged by the peer in the interval."""
    bytes_received: list[int]
    delivery_rate_bytes_per_s: list[int]
    """The kernel's latest delivery rate sample."""


@event(topic="telemetry.packet")
class TcpFlows(Batch):
    """Every established TCP flow of a node, where no eBPF program can watch them."""

    schema_name: Literal["tcp.flows"] = Field(default="tcp.flows", alias="schema")
    version: Literal[1] = 1
    columns: TcpFlowColumns


class TcpFlowStatsColumns(Columns):
    """One row a TCP flow that is there or ended in the interval. Counts, bytes and times of round trips
    are those of the interval alone; window, smoothed time and delivery rate are as the kernel had them
    at its end."""

    local: list[str]
    """``address:port``, IPv6 addresses in brackets."""
    remote: list[str]
    cgroup: list[str]
    """Path of the cgroup that the socket belongs to, below the root of cgroup v2; empty where that is
    gone."""
    job: list[str]
    """The job that the cgroup is of, by its name; empty where it is of none that is known."""
    complete: list[bool]
    """Every event of the flow was seen. False for one that was there before the agent on a kernel
    before 6.12: it has no samples of round trips, no episodes of loss, no timeouts, and its end is
    not told."""
    closed: list[bool]
    """It ended in the interval: this is its last row."""
    rtt_us: list[int]
    """Smoothed round-trip time (RFC 6298)."""
    rtt_min_us: list[int]
    rtt_p50_us: list[int]
    """From the histogram, by interpolation within a bucket; so is the next. 0 without a sample."""
    rtt_p99_us: list[int]
    rtt_max_us: list[int]
    rtt_bucket_us: list[list[int]]
    """Histogram of round-trip times: the lower bounds of the buckets that have samples, ascending.
    Eight buckets an octave: 0, 1, 2 … 15, 16, 18, 20 … 30, 32, 36 … µs. Histograms are added up by
    ``sumMap(rtt_bucket_us, rtt_samples)`` in ClickHouse."""
    rtt_samples: list[list[int]]
    """Samples in each of these buckets; TCP takes about one a round trip."""
    cwnd_segments: list[int]
    segments_sent: list[int]
    segments_retransmitted: list[int]
    loss_episodes: list[int]
    """Times that something was sent again, of which what follows until all that was then on its way is
    acknowledged counts as one."""
    timeouts: list[int]
    """Times that the retransmission timer ran out (RFC 6298)."""
    bytes_sent: list[int]
    """Acknowledged by the peer in the interval."""
    bytes_received: list[int]
    delivery_rate_bytes_per_s: list[int]
    """The kernel's latest delivery rate sample."""


@event(topic="telemetry.packet")
class TcpFlowStats(Batch):
    """Every TCP flow of a node, as an eBPF program in its kernel sees them. A node sends either these
    or ``tcp.flows``."""

    schema_name: Literal["tcp.flow_stats"] = Field(default="tcp.flow_stats", alias="schema")
    version: Literal[1] = 1
    columns: TcpFlowStatsColumns
