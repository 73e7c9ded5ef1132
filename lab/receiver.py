"""An HTTP receiver of alert webhooks that notes when each arrived."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class Receiver:
    """Takes webhooks in Alertmanager's format on loopback; a context manager."""

    def __init__(self) -> None:
        self.arrived_ns: dict[tuple[str, str], int] = {}
        """When the first notice came, by incident and status (``firing`` or ``resolved``), on the
        monotonic clock."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._take(body, time.monotonic_ns())
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """A notice is no news here."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, body: bytes, at_ns: int) -> None:
        notice = json.loads(body)
        for alert in notice["alerts"]:
            self.arrived_ns.setdefault((alert["labels"]["incident"], alert["status"]), at_ns)
