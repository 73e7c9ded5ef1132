"""The embedded history front, spoken to by the real client over real sockets."""

import contextlib
import datetime as dt
import gzip
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import clickhouse_connect
import lz4.frame
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError
from clickhouse_connect.driver.external import ExternalData
from hypothesis import given, settings
from hypothesis import strategies as st

from history import asgi, wire

REPOSITORY = Path(__file__).parents[2]
START_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A front as its own process on a data folder."""

    def __init__(self, path: Path, password: str = "") -> None:
        self.port = free_port()
        self.password = password
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        if password:
            environment["EVERTICK_CLICKHOUSE__PASSWORD"] = password
        self.process = subprocess.Popen(
            [sys.executable, "-m", "history.front", "--path", str(path), "--port", str(self.port)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.http("GET", "/ping")[0] == 200:
                    return
            time.sleep(0.05)
        self.kill()
        raise AssertionError(f"the front did not start: {self.process.communicate()[1]}")

    def http(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def client(self, **options: object) -> Client:
        return clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, password=self.password, **options
        )

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("history") / "data")
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


def test_every_column_type_comes_back_as_it_went(client: Client) -> None:
    columns = {
        "u": ("UInt64", 2**64 - 1),
        "i": ("Int64", -(2**63)),
        "f": ("Float64", 0.1),
        "s": ("String", "o'x\n\t\\é"),
        "c": ("LowCardinality(String)", "eth0"),
        "t": ("DateTime64(9, 'UTC')", 1_796_000_000_123_456_789),
        "a": ("Array(String)", ["a", "", "b'c"]),
        "m": ("Map(String, String)", {"k": "v", "": "w"}),
        "n": ("Nullable(Int64)", None),
        "b": ("FixedString(16)", bytes(range(16))),
        "j": ("String", '{"a": [1, 2]}'),
    }
    table = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    client.command(f"CREATE OR REPLACE TABLE types ({table}) ENGINE = MergeTree ORDER BY u")
    row = [value for _, value in columns.values()]
    client.insert("types", [row, row], column_names=list(columns))
    rows = client.query("SELECT * REPLACE (toUnixTimestamp64Nano(t) AS t) FROM types").result_rows
    assert [list(r) for r in rows] == [row, row]


def test_parameters_settings_and_database(client: Client) -> None:
    values = {
        "n": 4,
        "s": "o'x\n\ty\\",
        "l": ["a", "b'c"],
        "d": dt.datetime(2026, 1, 1),
    }
    query = "SELECT {n:Int64} + 1, {s:String}, {l:Array(String)}, {d:DateTime}"
    row = client.query(query, parameters=values).result_rows[0]
    assert row == (5, "o'x\n\ty\\", ["a", "b'c"], values["d"])
    setting = "SELECT getSetting('max_threads')"
    assert client.query(setting, settings={"max_threads": 3}).result_rows == [(3,)]
    assert client.query(setting).result_rows == [(2,)]
    client.command("CREATE DATABASE IF NOT EXISTS other")
    client.command("CREATE OR REPLACE TABLE other.t (x Int8) ENGINE = Memory")
    client.insert("t", [[7]], database="other")
    assert client.query("SELECT x FROM other.t").result_rows == [(7,)]


def test_session_keeps_its_state_and_no_other_sees_it(server: Server, client: Client) -> None:
    client.command("CREATE TEMPORARY TABLE mine (x Int32)")
    client.command("INSERT INTO mine VALUES (1)")
    client.command("SET max_block_size = 77")
    state = "SELECT x, getSetting('max_block_size') FROM mine"
    assert client.query(state).result_rows == [(1, 77)]
    with server.client() as another, pytest.raises(ClickHouseError, match="Code: 60"):
        another.query(state)


def test_external_table(client: Client) -> None:
    data = ExternalData(file_name="ext", data=b"1\n2\n", fmt="CSV", structure="x Int32")
    assert client.query("SELECT sum(x) FROM ext", external_data=data).result_rows == [(3,)]


@pytest.mark.parametrize(
    ("sql", "code", "status"),
    [
        ("SELECT * FROM nosuch", 60, 404),
        ("SELEC 1", 62, 400),
        ("SELECT 1 SETTINGS nope = 1", 115, 404),
        ("SELECT throwIf(1)", 395, 500),
        ("INSERT INTO nosuch FORMAT TSV\n1\n", 60, 404),
        ("INSERT INTO FUNCTION null('x Int8') FORMAT TSV\nword\n", 27, 400),
    ],
)
def test_error_keeps_its_code(server: Server, sql: str, code: int, status: int) -> None:
    got, headers, body = server.http("POST", "/", sql.encode())
    assert (got, headers["x-clickhouse-exception-code"]) == (status, str(code))
    assert f"Code: {code}. DB::Exception".encode() in body
    assert server.http("POST", "/", b"SELECT 1")[2] == b"1\n"


def test_get_only_reads(server: Server) -> None:
    assert server.http("GET", "/?query=SELECT+1")[2] == b"1\n"
    status, headers, _ = server.http(
        "GET", "/?query=CREATE+TABLE+w+(x+Int8)+ENGINE=MergeTree+ORDER+BY+x"
    )
    assert (status, headers["x-clickhouse-exception-code"]) == (403, "164")


def test_error_in_the_middle_of_a_result_reaches_the_client(server: Server) -> None:
    with server.client() as client, pytest.raises(ClickHouseError, match="Code: 395"):
        _ = client.query("SELECT throwIf(number = 1500000) FROM numbers(3000000)").result_rows
    with pytest.raises(http.client.IncompleteRead):
        server.http("POST", "/", b"SELECT throwIf(number = 1500000) FROM numbers(3000000)")


@pytest.mark.parametrize(
    ("rows", "code"), [([1, 7], 469), (list(range(1000, 1200)), 252)], ids=["check", "partitions"]
)
def test_an_insert_that_the_table_refuses_is_an_error(
    client: Client, rows: list[int], code: int
) -> None:
    client.command(
        "CREATE TABLE refusing (a UInt64, CONSTRAINT odd CHECK a != 7) ENGINE = MergeTree"
        " PARTITION BY a ORDER BY a"
    )
    with pytest.raises(DatabaseError) as caught:
        client.insert("refusing", [rows], column_names=["a"], column_oriented=True)
    assert caught.value.code == code
    assert client.query("SELECT count() FROM refusing").result_rows == [(0,)]
    client.command("DROP TABLE refusing")


def test_a_million_rows_are_all_stored(client: Client) -> None:
    rows = 1_000_000
    client.command("CREATE OR REPLACE TABLE m (x UInt64, s String) ENGINE = MergeTree ORDER BY x")
    for start in range(0, rows, 250_000):
        numbers = list(range(start, start + 250_000))
        client.insert(
            "m", [numbers, ["v"] * len(numbers)], column_names=["x", "s"], column_oriented=True
        )
    expected = (rows, rows * (rows - 1) // 2)
    assert client.query("SELECT count(), sum(x) FROM m").result_rows == [expected]
    with client.query_row_block_stream("SELECT x FROM m ORDER BY x") as blocks:
        assert sum(len(block) for block in blocks) == rows


@pytest.mark.parametrize("encoding", ["", "lz4", "zstd", "gzip", "deflate"])
def test_request_and_response_encodings(server: Server, encoding: str) -> None:
    compressor = wire.Encoder(encoding)
    body = compressor.encode(b"SELECT number FROM numbers(3)") + compressor.finish()
    headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
    status, got, data = server.http("POST", "/?enable_http_compression=1", body, headers)
    assert (status, got.get("content-encoding", "")) == (200, encoding)
    assert b"".join(wire.decode(data, encoding, 1000)) == b"0\n1\n2\n"


def test_bad_bodies_are_refused(server: Server) -> None:
    cut = lz4.frame.compress(b"INSERT INTO FUNCTION null('x Int8') FORMAT TSV\n1\n" * 9)[:-9]
    assert server.http("POST", "/", cut, {"Content-Encoding": "lz4"})[0] == 400
    assert server.http("POST", "/", b"SELECT 1", {"Content-Encoding": "rot13"})[0] == 400
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("POST", "/")
    connection.putheader("Content-Length", str(asgi.BODY_LIMIT_BYTES + 1))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert b"smaller blocks" in response.read()
    connection.close()


def test_web_pages_are_refused(server: Server) -> None:
    assert server.http("POST", "/", b"SELECT 1", {"Origin": "http://a.example"})[0] == 403


def test_long_queries_and_slow_clients_hold_up_nobody(server: Server, client: Client) -> None:
    endless = b"SELECT count() FROM numbers(1000000000000) WHERE sipHash64(number) = 1"
    slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    slow.request("POST", "/", b"SELECT * FROM numbers(100000000)")
    long = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    long.request("POST", "/?query_id=endless", endless)
    running = "SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'endless'"
    wait_for(lambda: client.query(running).result_rows == [(1,)])
    long.close()
    wait_for(lambda: client.query(running).result_rows == [(0,)])
    assert client.query("SELECT 1").result_rows == [(1,)]
    slow.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "waited 30 s in vain"
        time.sleep(0.05)


DEDUPLICATED = "SETTINGS non_replicated_deduplication_window = 1000"


def test_token_and_data_survive_kill(tmp_path: Path) -> None:
    first = Server(tmp_path / "data")
    with first.client() as client:
        for engine in ("MergeTree", "ReplacingMergeTree"):
            client.command(
                f"CREATE TABLE {engine} (x UInt64) ENGINE = {engine} ORDER BY x {DEDUPLICATED}"
            )
            for _ in range(2):
                insert(client, engine, "token-1")
    first.kill()
    second = Server(tmp_path / "data")
    with second.client() as client:
        for engine in ("MergeTree", "ReplacingMergeTree"):
            insert(client, engine, "token-1")
            assert client.query(f"SELECT count() FROM {engine}").result_rows == [(3,)]
            insert(client, engine, "token-2")
            assert client.query(f"SELECT count() FROM {engine}").result_rows == [(6,)]
    assert second.stop() == 0


def insert(client: Client, table: str, token: str) -> None:
    client.insert(
        table, [[1], [2], [3]], column_names=["x"], settings={"insert_deduplication_token": token}
    )


def test_token_covers_materialized_views(client: Client) -> None:
    client.command(
        f"CREATE OR REPLACE TABLE src (x UInt64) ENGINE = MergeTree ORDER BY x {DEDUPLICATED}"
    )
    client.command(
        "CREATE OR REPLACE TABLE per_x (x UInt64, n UInt64) ENGINE = SummingMergeTree ORDER BY x "
        + DEDUPLICATED
    )
    client.command("DROP VIEW IF EXISTS to_per_x")
    client.command(
        "CREATE MATERIALIZED VIEW to_per_x TO per_x AS SELECT x, count() AS n FROM src GROUP BY x"
    )
    for _ in range(3):
        insert(client, "src", "token-1")
    counts = "SELECT (SELECT count() FROM src), (SELECT sum(n) FROM per_x)"
    assert client.query(counts).result_rows == [(3, 3)]


def run_front(path: Path, port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "history.front", "--path", str(path), "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


def test_unusable_folders_and_ports_are_named(tmp_path: Path) -> None:
    running = Server(tmp_path / "data")
    try:
        taken = run_front(tmp_path / "data", free_port())
        assert taken.returncode == 2
        assert f"in use by process {running.process.pid}" in taken.stderr
        assert running.http("POST", "/", b"SELECT 1")[2] == b"1\n"
        busy = run_front(tmp_path / "other", running.port)
        assert busy.returncode == 2
        assert f"cannot listen on 127.0.0.1:{running.port}" in busy.stderr
    finally:
        running.stop()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    foreign = run_front(tmp_path / "photos", free_port())
    assert foreign.returncode == 2
    assert "not Evertick's history" in foreign.stderr
    assert [entry.name for entry in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_stops_with_a_query_running(tmp_path: Path) -> None:
    running = Server(tmp_path / "data")
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.request(
        "POST", "/", b"SELECT count() FROM numbers(1000000000000) WHERE sipHash64(number) = 1"
    )
    with running.client() as client:
        wait_for(
            lambda: (
                client.query(
                    "SELECT count() FROM system.processes WHERE query LIKE '%sipHash64(number)%' AND query NOT LIKE '%LIKE%'"
                ).result_rows
                == [(1,)]
            )
        )
    assert running.stop() == 0
    connection.close()


def test_password(tmp_path: Path) -> None:
    running = Server(tmp_path / "data", password="hüsh")
    try:
        with running.client() as client:
            assert client.query("SELECT 1").result_rows == [(1,)]
        assert running.http("GET", "/?query=SELECT+1&password=h%C3%BCsh")[0] == 200
        for headers in ({}, {"X-ClickHouse-Key": "no"}, {"Authorization": "Basic %%"}):
            status, got, _ = running.http("POST", "/", b"SELECT 1", headers)
            assert (status, got["x-clickhouse-exception-code"]) == (403, "516")
    finally:
        running.stop()


def test_serve_in_this_process_until_told_to_stop(tmp_path: Path) -> None:
    code = (
        "import threading, sys, pathlib; from history.front import serve;"
        "stop = threading.Event(); threading.Timer(0.5, stop.set).start();"
        "serve(pathlib.Path(sys.argv[1]), port=int(sys.argv[2]), stop=stop)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data"), str(free_port())],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0


@given(
    parts=st.lists(st.binary(max_size=2000), max_size=5),
    encoding=st.sampled_from(["lz4", "zstd", "gzip", "deflate"]),
)
@settings(max_examples=60, deadline=None)
def test_all_frames_of_a_body_are_decoded(parts: list[bytes], encoding: str) -> None:
    frames = []
    for part in parts:
        encoder = wire.Encoder(encoding)
        frames.append(encoder.encode(part) + encoder.finish())
    body = b"".join(frames)
    assert b"".join(wire.decode(body, encoding, 100_000)) == b"".join(parts)
    if body:
        with pytest.raises(wire.WireError):
            list(wire.decode(body[:-1], encoding, 100_000))


def test_small_body_cannot_grow_without_bound() -> None:
    with pytest.raises(wire.BodyTooLargeError):
        list(wire.decode(gzip.compress(bytes(50 << 20)), "gzip", 1 << 20))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"INSERT INTO t FORMAT TSV\n1\n", ("INSERT INTO t ", "TSV", b"1\n")),
        (b"insert into t (`format`) format CSV 1", ("insert into t (`format`) ", "CSV", b"1")),
        (b"INSERT INTO t /* FORMAT X */ FORMAT Native\n\n\x00", None),
        (b"INSERT INTO t SETTINGS a='FORMAT B' FORMAT RowBinary\r\n\n", None),
        (b"INSERT INTO t VALUES (1)", "plain"),
        (b"SELECT 1 FORMAT JSON", "plain"),
    ],
)
def test_split_insert(text: bytes, expected: object) -> None:
    got = wire.split_insert(text)
    if expected == "plain":
        assert got is None
    elif expected is not None:
        assert got == expected
    else:
        assert got is not None
        assert got.statement + "FORMAT " + got.format == text.rsplit(b"\n", 2)[0].decode().strip()
        assert got.data in (b"\n\x00", b"\n")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("INSERT INTO t", "INSERT INTO t\nFROM INFILE '/f'"),
        ("INSERT INTO t -- x\n", "INSERT INTO t -- x\nFROM INFILE '/f'"),
        ("INSERT INTO t (settings)", "INSERT INTO t (settings)\nFROM INFILE '/f'"),
        (
            "INSERT INTO `settings` SETTINGS a=1",
            "INSERT INTO `settings`\nFROM INFILE '/f' SETTINGS a=1",
        ),
    ],
)
def test_from_infile(statement: str, expected: str) -> None:
    assert wire.from_infile(statement, "/f") == expected


def test_concurrent_clients(server: Server) -> None:
    results: list[int] = []

    def ask(number: int) -> None:
        with server.client() as client:
            results.append(client.query(f"SELECT {number}").result_rows[0][0])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == list(range(12))
