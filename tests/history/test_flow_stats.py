"""Flows that eBPF told, in the history: histograms that add up, and queries that count both kinds."""

from __future__ import annotations

from bus.settings import ClickHouseSettings
from history.client import connect
from history.insert import Inserter
from history.migrate import migrate
from history.queries import ask
from history.tables import Blocks
from schemas.registry import encode
from tests.streams.test_flow_stats import stats
from tests.streams.test_flows import T0, S, flows


def test_histograms_add_up_and_both_kinds_count(clickhouse: ClickHouseSettings) -> None:
    migrate(clickhouse)
    client = connect(clickhouse)
    blocks = Blocks()
    row = ("10.0.0.3:1", "10.0.0.9:80", 100, 5)
    told = stats(T0, [row, row])
    columns = told.columns.model_copy(
        update={"rtt_bucket_us": [[10, 12], [12, 20]], "rtt_samples": [[1, 2], [3, 4]]}
    )
    for event in (told.model_copy(update={"columns": columns}), flows(T0 + S, [row])):
        blocks.add(event, encode(event))
    inserter = Inserter(client)
    for table, block in blocks.by_table():
        inserter.insert(table, block, f"token-{table}")
    sums = "SELECT sumMap(rtt_bucket_us, rtt_samples), any(closed), count() FROM tcp_flow_stats"
    assert client.query(sums).result_rows == [(([10, 12, 20], [1, 5, 4]), True, 2)]
    (path,) = ask(client, "slow_paths", since_ns=0, limit=10)
    assert (path["destination"], path["sent"], path["again"]) == ("10.0.0.9", 300, 15)
    client.close()
