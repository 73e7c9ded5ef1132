"""``/metrics`` for Prometheus and ``/healthz`` for a supervisor, in a thread of their own.

A part reports progress by name; ``/healthz`` answers 503 once one of them has been silent for
longer than it promised. So a process that lives but no longer moves is seen from outside.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bus.settings import SettingsError


class Health:
    """What has moved lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, tuple[float, float]] = {}

    def progress(self, name: str, within_s: float) -> None:
        """Say that ``name`` just moved and will again within ``within_s`` seconds."""
        with self._lock:
            self._due[name] = (time.monotonic(), within_s)

    def forget(self, name: str) -> None:
        """``name`` ended in good order and is no longer awaited."""
        with self._lock:
            self._due.pop(name, None)

    def late(self) -> dict[str, float]:
        """What is overdue, with the seconds since it last moved."""
        now = time.monotonic()
        with self._lock:
            return {
                name: now - at for name, (at, within_s) in self._due.items() if now - at > within_s
            }


def serve(health: Health, host: str, port: int, what: str) -> ThreadingHTTPServer | None:
    """Serve metrics and health in a daemon thread; nothing where ``port`` is 0.

    Raises:
        SettingsError: the port is taken.
    """
    if port == 0:
        return None

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest())
            elif self.path == "/healthz":
                late = health.late()
                body = json.dumps({"healthy": not late, "late_s": late}).encode()
                self._answer(503 if late else 200, "application/json", body)
            else:
                self._answer(404, "text/plain", b"here are /metrics and /healthz\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A scrape every few seconds is not news."""

    ThreadingHTTPServer.daemon_threads = True
    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise SettingsError(
            f"cannot serve metrics on {host}:{port}: {error.strerror}; "
            f"set metrics.{what}_port to a free port, or to 0 for none"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
