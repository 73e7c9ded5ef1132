"""ClickHouse's engine inside this process (chDB), opened on one data folder.

Every statement runs on a connection of its own, which costs half a millisecond: settings, the
current database, parameters and temporary tables then cannot leak from one statement to the
next. Only a named session that was given state (SET, USE, CREATE TEMPORARY) keeps its
connection. One more connection stays open for as long as the engine does, since the engine
stops with the last one; it also runs KILL QUERY.

The engine is told to stay small: see `SERVER_ARGUMENTS` and `QUERY_SETTINGS`.
"""

import re
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from history import wire
from history.folder import DataFolder, DataFolderError

MIB = 1 << 20

# The caches default to 5 GiB each, meant for a machine of their own.
SERVER_ARGUMENTS: Mapping[str, int] = {
    "max_server_memory_usage": 900 * MIB,
    "mark_cache_size": 32 * MIB,
    "primary_index_cache_size": 32 * MIB,
    "index_mark_cache_size": 4 * MIB,
    "query_condition_cache_size": 4 * MIB,
    "compiled_expression_cache_size": 16 * MIB,
    "vector_similarity_index_cache_size": 0,
    "text_index_tokens_cache_size": 0,
    "text_index_header_cache_size": 0,
    "text_index_postings_cache_size": 0,
    "parquet_metadata_cache_size": 0,
    "iceberg_metadata_files_cache_size": 0,
    "background_pool_size": 2,
}
QUERY_SETTINGS: Mapping[str, int] = {
    "max_threads": 2,
    "max_insert_threads": 1,
    "max_memory_usage": 500 * MIB,
    "max_bytes_before_external_group_by": 150 * MIB,
    "max_bytes_before_external_sort": 150 * MIB,
    "input_format_parallel_parsing": 0,
    "output_format_parallel_formatting": 0,
    "log_queries": 0,
}
# The formats whose chunks may be joined as they are; the others repeat their head in each chunk.
STREAMED_FORMATS = frozenset(
    ("Native", "TabSeparated", "TSV", "CSV", "RowBinary", "JSONEachRow", "JSONCompactEachRow")
)
SESSIONS_KEPT = 64

_CODE = re.compile(r"Code: (\d+)\. .*", re.S)
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_SELECT = re.compile(r"^(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:SELECT\b|WITH\b|\()", re.I | re.S)
_STATEFUL = re.compile(r"^\s*(?:SET|USE|CREATE\s+(?:OR\s+REPLACE\s+)?TEMPORARY)\b", re.I)
_NOT_STREAMABLE = "Streaming query is not supported"


class QueryError(RuntimeError):
    """A statement failed. `code` is ClickHouse's error code, the message is the engine's."""

    def __init__(self, message: str, code: int | None = None) -> None:
        found = _CODE.search(message)
        self.code = code or (int(found.group(1)) if found else 1002)
        text = found.group(0).strip() if found else message
        super().__init__(text if found else f"Code: {self.code}. DB::Exception: {message}")


@dataclass(frozen=True)
class Statement:
    """One statement to run, as its HTTP request describes it."""

    query: str
    query_id: str
    pieces: Iterator[bytes]
    database: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    default_format: str = "TabSeparated"
    session_id: str = ""
    session_timeout_s: float = 60.0
    read_only: bool = False
    # External tables: name, structure, format, content.
    tables: tuple[tuple[str, str, str, bytes], ...] = ()


@dataclass(frozen=True)
class Head:
    """What is known of a result before its first byte."""

    format: str
    summary: Mapping[str, str]


@dataclass
class _Session:
    connection: Any
    expires_at_s: float
    busy: bool = True


def _load_chdb() -> Any:
    """Imports chdb without pyarrow, which it would load for results this front never asks for.

    Saves 40 MB in a process that does nothing else.
    """
    if "pyarrow" in sys.modules:
        import chdb
    else:
        sys.modules["pyarrow"] = None  # type: ignore[assignment]
        try:
            import chdb
        finally:
            del sys.modules["pyarrow"]
    return chdb


def _quote(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _name(value: str) -> str:
    return "`" + value.replace("\\", "\\\\").replace("`", "\\`") + "`"


@contextmanager
def _engine_errors() -> Iterator[None]:
    """chDB raises several classes of errors; the code is in the text of each."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, (QueryError, wire.WireError)):
            raise
        raise QueryError(str(error)) from error


class Engine:
    """The engine on one data folder. All methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Opens the folder. Raises `DataFolderError` if it is taken, foreign or unreadable."""
        self._folder = DataFolder(path)
        self._store = str(path.resolve() / "store")
        self._connect = _load_chdb().connect
        arguments = "&".join(f"{k}={v}" for k, v in {**SERVER_ARGUMENTS, **QUERY_SETTINGS}.items())
        self._arguments = "&".join(f"{k}={v}" for k, v in QUERY_SETTINGS.items())
        try:
            self._control = self._connect(f"{self._store}?{arguments}")
            self.version = self._control.query("SELECT version()", "TSV").bytes().decode().strip()
        except RuntimeError as error:
            self._folder.close()
            raise DataFolderError(f"data folder {path} cannot be opened: {error}") from error
        self._control_lock = threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._sessions_lock = threading.Lock()

    def run(self, statement: Statement) -> Iterator[Head | bytes]:
        """Runs a statement: a `Head`, then the result's bytes. Raises `QueryError`.

        A generator that is closed early cancels its query.
        """
        text, insert = wire.gather(statement.pieces, statement.query)
        with self._connection(statement, text) as connection, _engine_errors():
            for name, structure, format_, content in statement.tables:
                connection.query(f"CREATE TEMPORARY TABLE {_name(name)} ({structure})")
                into = wire.Insert(f"INSERT INTO {_name(name)}", format_, b"")
                self._insert(connection, into, iter([content]))
            if statement.read_only:
                # 2, not 1: as for a GET in ClickHouse, the statement may still bring settings.
                connection.query("SET readonly=2")
            if insert is not None:
                pieces = (p for source in ([insert.data], statement.pieces) for p in source)
                yield self._insert(connection, insert, pieces)
                return
            format_ = wire.output_format(text, statement.default_format)
            if format_ in STREAMED_FORMATS and _SELECT.match(text):
                try:
                    stream = connection.send_query(text, format_)
                except RuntimeError as error:
                    if _NOT_STREAMABLE not in str(error):
                        raise
                else:
                    yield from self._stream(stream, format_)
                    return
            result = connection.query(text, format_)
            yield Head(format_, _summary(result))
            yield result.bytes()

    def cancel(self, query_id: str | None = None) -> None:
        """Cancels the SELECT with this id, or every running statement; does not wait."""
        which = "1"
        if query_id is not None:
            which = f"query_kind = 'Select' AND Settings['log_comment'] = {_quote(query_id)}"
        with self._control_lock, _engine_errors():
            self._control.query(f"KILL QUERY WHERE {which} ASYNC")

    def close(self) -> None:
        """Closes the engine and gives the folder back; running statements must have ended."""
        with self._sessions_lock:
            for session in self._sessions.values():
                session.connection.close()
            self._sessions.clear()
        self._control.close()
        self._folder.close()

    def _stream(self, stream: Any, format_: str) -> Iterator[Head | bytes]:
        with stream:
            first = stream.fetch()
            yield Head(format_, {})
            chunk = first
            while chunk is not None:
                yield chunk.bytes()
                chunk = stream.fetch()

    def _insert(self, connection: Any, insert: wire.Insert, pieces: Iterator[bytes]) -> Head:
        """Inserts data through a file without a name, which is gone with its last reader.

        chDB's way to hand it over in pieces (`send_insert`) keeps what goes wrong behind the parser
        to itself, a full disk or a broken constraint, and reports the rows as written; data inside
        the statement is cut at its ends.
        """
        with tempfile.TemporaryFile(dir=Path(self._store).parent) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            result = connection.query(wire.from_file(insert, f"/proc/self/fd/{file.fileno()}"))
        return Head(insert.format, _summary(result))

    @contextmanager
    def _connection(self, statement: Statement, text: str) -> Iterator[Any]:
        session = self._session(statement, text) if statement.session_id else None
        if session is None:
            with _engine_errors():
                connection = self._connect(f"{self._store}?{self._arguments}")
            try:
                with _engine_errors():
                    _prepare(connection, statement)
                yield connection
            finally:
                connection.close()
            return
        try:
            with _engine_errors():
                if statement.read_only:
                    raise QueryError("a session with state takes no GET: use POST", 164)
                _prepare(session.connection, statement)
            yield session.connection
        finally:
            if statement.settings:
                with _engine_errors():
                    names = ", ".join(f"{name}=DEFAULT" for name in statement.settings)
                    session.connection.query(f"SET {names}")
            session.expires_at_s = time.monotonic() + statement.session_timeout_s
            session.busy = False

    def _session(self, statement: Statement, text: str) -> _Session | None:
        now_s = time.monotonic()
        with self._sessions_lock:
            for key, old in list(self._sessions.items()):
                idle = not old.busy and (
                    now_s > old.expires_at_s or len(self._sessions) > SESSIONS_KEPT
                )
                if idle and key != statement.session_id:
                    self._sessions.pop(key).connection.close()
            session = self._sessions.get(statement.session_id)
            if session is None:
                if not _STATEFUL.match(text):
                    return None
                connection = self._connect(f"{self._store}?{self._arguments}")
                session = self._sessions[statement.session_id] = _Session(connection, now_s)
            elif session.busy:
                raise QueryError(f"session {statement.session_id} is locked by another query", 373)
            session.busy = True
            self._sessions.move_to_end(statement.session_id)
            return session


def _prepare(connection: Any, statement: Statement) -> None:
    """Gives a connection what the request says: database, parameters, settings."""
    if statement.database != "default":
        connection.query(f"USE {_name(statement.database)}")
    assignments = {"log_comment": statement.query_id, **statement.settings}
    for name in (*assignments, *statement.params):
        if not _NAME.match(name):
            raise QueryError(f"Setting {name} is neither a setting nor a parameter", 115)
    assignments.update({f"param_{name}": value for name, value in statement.params.items()})
    connection.query("SET " + ", ".join(f"{k}={_quote(v)}" for k, v in assignments.items()))


def _summary(result: Any) -> dict[str, str]:
    return {
        "read_rows": str(result.storage_rows_read()),
        "read_bytes": str(result.storage_bytes_read()),
        "written_rows": str(result.rows_written()),
        "written_bytes": str(result.bytes_written()),
        "result_rows": str(result.rows_read()),
        "elapsed_ns": str(int(result.elapsed() * 1e9)),
    }
