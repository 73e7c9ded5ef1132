"""What the ClickHouse HTTP protocol puts on the wire: compressed bodies and INSERT headers.

Bodies come in pieces: `clickhouse_connect` compresses each block as a frame of its own, so a
body is a *sequence* of frames, and reading only the first would silently lose the rest. The
decoder here yields bounded pieces, so that a small compressed body cannot fill the memory.
An INSERT carries its statement and its data in one stream; `split_insert` finds the border.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import lz4.frame
from backports import zstd

PIECE_BYTES = 1 << 18
ENCODINGS = ("lz4", "zstd", "gzip", "deflate")

# Strings, quoted names and comments are single tokens, so that FORMAT inside them is no keyword.
_TOKEN = re.compile(
    rb"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/|\w+|[^\s\w]",
    re.S,
)
_LAST_FORMAT = re.compile(r"\bFORMAT\s+(\w+)(?:\s+SETTINGS\s[^;]*)?\s*;?\s*$", re.I)


class WireError(ValueError):
    """The body cannot be read as its headers promise."""


class BodyTooLargeError(WireError):
    """The body, decoded, is larger than the server takes."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Zlib:
    """zlib's decompressor with the interface that lz4, zstd and the standard library share."""

    def __init__(self, window_bits: int) -> None:
        self._inner = zlib.decompressobj(window_bits)

    eof = property(lambda self: self._inner.eof)
    unused_data = property(lambda self: self._inner.unused_data)
    needs_input = property(lambda self: not self._inner.unconsumed_tail and not self._inner.eof)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max(max_length, 0))


def _decompressor(encoding: str) -> _Decompressor:
    if encoding == "lz4":
        return lz4.frame.LZ4FrameDecompressor()  # type: ignore[no-any-return]
    if encoding == "zstd":
        return zstd.ZstdDecompressor()
    if encoding in ("gzip", "deflate"):
        return _Zlib(31 if encoding == "gzip" else 15)
    raise WireError(
        f"Content-Encoding {encoding!r} is not supported; use one of {', '.join(ENCODINGS)}"
    )


def decode(body: bytes, encoding: str, limit_bytes: int) -> Iterator[bytes]:
    """Pieces of the decoded body, all of its frames, each piece at most `PIECE_BYTES`.

    Raises `BodyTooLargeError` past `limit_bytes` and `WireError` when a frame is cut or broken.
    """
    if encoding in ("", "identity"):
        for start in range(0, len(body), PIECE_BYTES):
            yield body[start : start + PIECE_BYTES]
        return
    total = 0
    rest: bytes | None = body
    while rest:
        frame = _decompressor(encoding)
        piece = rest
        while not frame.eof:
            try:
                out = frame.decompress(piece, PIECE_BYTES)
            except (RuntimeError, zstd.ZstdError, zlib.error, EOFError) as error:
                raise WireError(f"the {encoding} body is broken: {error}") from error
            total += len(out)
            if total > limit_bytes:
                raise BodyTooLargeError(f"the decoded body is larger than {limit_bytes} bytes")
            if out:
                yield out
            elif not frame.eof and frame.needs_input:
                raise WireError(f"the {encoding} body ends in the middle of a frame")
            piece = b""
        rest = frame.unused_data


class Encoder:
    """Compresses a response as one stream; `encoding` is a member of `ENCODINGS` or empty."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self._started = False
        if encoding == "lz4":
            self._lz4 = lz4.frame.LZ4FrameCompressor()
        elif encoding == "zstd":
            self._zstd = zstd.ZstdCompressor()
        elif encoding in ("gzip", "deflate"):
            self._zlib = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)

    def encode(self, data: bytes) -> bytes:
        """The compressed bytes that are ready so far; may be empty."""
        if self.encoding == "lz4":
            head = b"" if self._started else self._lz4.begin()
            self._started = True
            return bytes(head + self._lz4.compress(data))
        if self.encoding == "zstd":
            return self._zstd.compress(data)
        return self._zlib.compress(data) if self.encoding else data

    def finish(self) -> bytes:
        """What closes the stream."""
        if self.encoding == "lz4":
            return bytes((b"" if self._started else self._lz4.begin()) + self._lz4.flush())
        if self.encoding == "zstd":
            return self._zstd.flush()
        return self._zlib.flush() if self.encoding else b""


def accepted_encoding(accept_encoding: str) -> str:
    """The first encoding of the client's list that this server writes; empty when none is."""
    for item in accept_encoding.lower().split(","):
        name, _, quality = item.strip().partition(";")
        if name.strip() in ENCODINGS and quality.strip() not in ("q=0", "q=0.0"):
            return name.strip()
    return ""


class Insert(NamedTuple):
    """An INSERT taken apart: the statement without FORMAT, the format, the data's first bytes."""

    statement: str
    format: str
    data: bytes


def split_insert(text: bytes) -> Insert | None:
    """Takes `INSERT … FORMAT Name data` apart; None when `text` is not (yet) such a statement.

    As in ClickHouse, blanks after the format's name and one line end are not data.
    """
    words: list[bytes] = []
    pending: int | None = None
    for token in _TOKEN.finditer(text):
        word = token.group().upper()
        if word.startswith((b"--", b"/*")):
            continue
        if not words and word != b"INSERT":
            return None
        if pending is not None and word[:1].isalpha():
            if token.end() == len(text):
                return Insert(text[:pending].decode(), token.group().decode(), b"")
            tail = re.compile(rb"[ \t]*;?[ \t]*\r?\n?").match(text, token.end())
            end = tail.end() if tail else token.end()
            return Insert(text[:pending].decode(), token.group().decode(), text[end:])
        pending = token.start() if word == b"FORMAT" else None
        if word == b"VALUES":
            return None
        words = [word]
    return None


def from_infile(statement: str, path: str) -> str:
    """An INSERT without its FORMAT, reading from a file: that clause stands before any SETTINGS."""
    text, depth = statement.encode(), 0
    end = len(text)
    for token in _TOKEN.finditer(text):
        word = token.group().upper()
        depth += (word == b"(") - (word == b")")
        if word == b"SETTINGS" and depth == 0:
            end = token.start()
            break
    head, tail = text[:end].decode(), text[end:].decode()
    return f"{head.rstrip()}\nFROM INFILE '{path}' {tail}".rstrip()


def from_file(insert: Insert, path: str) -> str:
    """The statement of an INSERT, reading its data from a file instead of the request's body.

    ``INSERT … SELECT … FROM input('structure')`` reads it through the table function ``file``, every
    other through ``FROM INFILE``.
    """
    text, words = insert.statement.encode(), [b"", b""]
    for token in _TOKEN.finditer(text):
        words = [words[1], token.group().upper()]
        if words == [b"INPUT", b"("]:
            start = text.upper().rindex(b"INPUT", 0, token.start())
            head, tail = text[:start].decode(), text[token.end() :].decode()
            return f"{head}file('{path}', '{insert.format}', {tail}"
    return f"{from_infile(insert.statement, path)} FORMAT {insert.format}"


def gather(pieces: Iterator[bytes], query: str) -> tuple[str, Insert | None]:
    """Reads from `pieces` the statement that `query` (from the URL) begins or leaves out.

    Returns the whole text of a plain statement, or an `Insert` whose remaining data is still
    in `pieces`.
    """
    text = query.encode() + (b"\n" if query else b"")
    insert = split_insert(text)
    if insert is not None:
        return query, insert
    for piece in pieces:
        text += piece
        if len(text) <= 8 * PIECE_BYTES:
            insert = split_insert(text)
            if insert is not None:
                return insert.statement, insert
    try:
        return text.decode().strip(), None
    except UnicodeDecodeError as error:
        raise WireError(f"the statement is not UTF-8: {error}") from error


def output_format(statement: str, default: str) -> str:
    """The format a statement's result comes in: its own FORMAT clause, or `default`."""
    match = _LAST_FORMAT.search(statement)
    return match.group(1) if match else default


def form_fields(content_type: str, body: bytes) -> Iterable[tuple[str, bool, bytes]]:
    """Fields of a multipart form: name, whether it is a file, content."""
    from email import message_from_bytes

    message = message_from_bytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    if not message.is_multipart():
        raise WireError("the multipart body cannot be read")
    for part in message.walk():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            yield name, part.get_filename() is not None, content
