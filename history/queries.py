"""The questions that operators ask of the history, by name.

Each query is SQL with named, typed parameters (ClickHouse's ``{name:Type}``); ``ask`` runs one and
returns its rows as dictionaries. Times come as integer nanoseconds UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


@dataclass(frozen=True, slots=True)
class Query:
    """A question: what it answers, and how."""

    about: str
    sql: str


def _ns(column: str, name: str | None = None) -> str:
    return f"toUnixTimestamp64Nano({column}) AS {name or column + '_ns'}"


QUERIES: dict[str, Query] = {
    "incidents": Query(
        "incidents since a time, newest first; open ones only where asked",
        f"""
        SELECT incident, state, kind, subject, severity, summary, {_ns("opened")},
               ifNull(toUnixTimestamp64Nano(resolved), 0) AS resolved_ns, reopened, jobs, cost_gpu_s,
               document
        FROM incidents
        WHERE (state != 'resolved' OR NOT {{open_only:Bool}})
          AND (opened >= fromUnixTimestamp64Nano({{since_ns:Int64}}) OR state != 'resolved')
          AND ({{kind:String}} = '' OR kind = {{kind:String}})
        ORDER BY opened DESC LIMIT {{limit:UInt32}}
        """,
    ),
    "incidents_by_prefix": Query(
        "ids of incidents that begin with some hex digits",
        """
        SELECT DISTINCT incident FROM incident_revisions
        WHERE startsWith(incident, {prefix:String}) ORDER BY incident LIMIT 20
        """,
    ),
    "revisions": Query(
        "every revision of one incident",
        """
        SELECT document FROM incident_revisions FINAL
        WHERE incident = {incident:String} ORDER BY revision
        """,
    ),
    "signals_of": Query(
        "all messages of some episodes, in time order",
        """
        SELECT document FROM signals FINAL
        WHERE episode IN {episodes:Array(String)} ORDER BY at, phase DESC
        """,
    ),
    "actions_of": Query(
        "what was told to happen about one incident",
        "SELECT document FROM actions FINAL WHERE incident = {incident:String} ORDER BY at",
    ),
    "outcomes_of": Query(
        "what came of the actions about one incident",
        "SELECT document FROM outcomes FINAL WHERE incident = {incident:String} ORDER BY at",
    ),
    "link_transitions": Query(
        "every transition of a node's links",
        f"""
        SELECT {_ns("at")}, subject, carrier, admin_up, present, carrier_losses, unseen
        FROM link_transitions FINAL
        WHERE node = {{node:String}} AND at >= fromUnixTimestamp64Nano({{since_ns:Int64}})
        ORDER BY at
        """,
    ),
    "flapping_links": Query(
        "links by carrier losses since a time",
        """
        SELECT subject, sum(NOT carrier) + sum(unseen) AS losses, max(at) AS last
        FROM link_transitions FINAL WHERE at >= fromUnixTimestamp64Nano({since_ns:Int64})
        GROUP BY subject HAVING losses > 0 ORDER BY losses DESC LIMIT {limit:UInt32}
        """,
    ),
    "path_transitions": Query(
        "every death and return of a node's paths",
        f"""
        SELECT {_ns("at")}, subject, peer, interface, alive, fault, {_ns("since")}, paths_alive
        FROM path_transitions FINAL
        WHERE node = {{node:String}} AND at >= fromUnixTimestamp64Nano({{since_ns:Int64}})
        ORDER BY at
        """,
    ),
    "failovers": Query(
        "routes that LinkPass moved, how fast, and how long flows stood still",
        """
        SELECT node, peer, reason, countDistinct(m.id) AS moves,
               quantileExact(0.5)((toUnixTimestamp64Nano(m.at) - toUnixTimestamp64Nano(m.failed)) / 1e6)
                   AS moved_p50_ms,
               max(s.stall_ns) / 1e6 AS stall_max_ms, sum(s.flows) AS flows
        FROM route_moves AS m FINAL
        LEFT JOIN flow_stalls AS s FINAL
            ON s.node = m.node AND s.subject = m.subject AND s.failed = m.failed
        WHERE m.at >= fromUnixTimestamp64Nano({since_ns:Int64}) AND NOT m.dry_run
          AND reason = 'failover'
        GROUP BY node, peer, reason ORDER BY moves DESC LIMIT {limit:UInt32}
        """,
    ),
    "path_health": Query(
        "paths by share of heartbeats lost",
        """
        SELECT node, path, peer, interface, sum(heartbeats_expected) AS expected,
               expected - sum(heartbeats_heard) AS lost, if(expected = 0, 0, lost / expected) AS loss,
               quantileTDigest(0.5)(rtt_p50_us) AS rtt_p50_us, max(rtt_max_us) AS rtt_max_us
        FROM path_health
        WHERE at >= fromUnixTimestamp64Nano({since_ns:Int64}) AND alive
        GROUP BY node, path, peer, interface ORDER BY loss DESC LIMIT {limit:UInt32}
        """,
    ),
    "slow_paths": Query(
        "pairs of hosts by share of segments sent again",
        """
        SELECT node, replaceRegexpOne(remote, ':\\d+$', '') AS destination, sum(segments_sent) AS sent,
               sum(segments_retransmitted) AS again, again / sent AS ratio,
               quantileTDigest(0.5)(rtt_us) AS rtt_p50_us, quantileTDigest(0.99)(rtt_us) AS rtt_p99_us
        FROM (SELECT node, at, remote, segments_sent, segments_retransmitted, rtt_us FROM tcp_flows
              UNION ALL
              SELECT node, at, remote, segments_sent, segments_retransmitted, rtt_us
              FROM tcp_flow_stats)
        WHERE at >= fromUnixTimestamp64Nano({since_ns:Int64})
        GROUP BY node, destination HAVING sent > 0 ORDER BY ratio DESC LIMIT {limit:UInt32}
        """,
    ),
    "xids": Query(
        "GPU error reports by node, GPU and code",
        """
        SELECT node, subject, code, sum(count) AS lines, min(first) AS first_seen, max(at) AS last_seen
        FROM kernel_reports FINAL
        WHERE category = 'xid' AND at >= fromUnixTimestamp64Nano({since_ns:Int64})
        GROUP BY node, subject, code ORDER BY lines DESC LIMIT {limit:UInt32}
        """,
    ),
    "cost": Query(
        "incidents, time open and GPU-hours lost by kind",
        """
        SELECT kind, count() AS incidents, sum(cost_gpu_s) / 3600 AS gpu_hours,
               quantileTDigest(0.5)(ifNull(toUnixTimestamp64Nano(resolved), 0)
                                    - toUnixTimestamp64Nano(opened)) / 1e9 AS open_p50_s
        FROM incidents WHERE opened >= fromUnixTimestamp64Nano({since_ns:Int64})
        GROUP BY kind ORDER BY gpu_hours DESC, incidents DESC
        """,
    ),
    "deadletters": Query(
        "messages that could not be read, by topic and reason",
        """
        SELECT topic, reason, count() AS messages, max(at) AS last FROM deadletters FINAL
        WHERE at >= fromUnixTimestamp64Nano({since_ns:Int64})
        GROUP BY topic, reason ORDER BY messages DESC LIMIT {limit:UInt32}
        """,
    ),
}


def ask(client: Client, name: str, **parameters: Any) -> list[dict[str, Any]]:
    """Run a named query.

    Raises:
        KeyError: no query of that name.
        clickhouse_connect.driver.exceptions.ClickHouseError: a parameter is missing, or the server
            refuses.
    """
    result = client.query(QUERIES[name].sql, parameters=parameters)
    return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]
