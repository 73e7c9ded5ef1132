"""Incidents for tests, and a real HTTP receiver that can be told to misbehave."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from schemas.identity import content_id, nic
from schemas.incident import Incident, IncidentState, Recommendation, Symptom
from schemas.signal import Severity

T0_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000


def incident(number: int = 0, revision: int = 1, **changes: Any) -> Incident:
    """Revision ``revision`` of the incident ``number``: a link down, open unless told otherwise."""
    name = content_id("incident", number)
    state = changes.get("state", IncidentState.OPEN)
    ended = {"resolved_ns": T0_NS + 192 * SECOND_NS} if state is IncidentState.RESOLVED else {}
    fields: dict[str, Any] = {
        "id": content_id(name, revision),
        "at_ns": T0_NS + revision,
        "clock_error_ns": 1000,
        "incident": name,
        "revision": revision,
        "state": state,
        "kind": "link.down",
        "subject": nic(f"node-{number}", "eth1"),
        "severity": Severity.CRITICAL,
        "summary": f"eth1 of node-{number} lost its carrier",
        "confidence": 1.0,
        "opened_ns": T0_NS,
        "symptoms": [
            Symptom(
                episode=content_id("episode", number),
                kind="link.down",
                subject=nic(f"node-{number}", "eth1"),
                role="cause",
                severity=Severity.CRITICAL,
                summary="lost its carrier",
                raised_ns=T0_NS,
                updated_ns=T0_NS,
                detector="link_down",
                detector_version=1,
            )
        ],
        "recommendation": Recommendation(remedy="notify", advice="Look at the cable."),
    }
    return Incident(**{**fields, **ended, **changes})


def resolved(number: int = 0, revision: int = 2, **changes: Any) -> Incident:
    """The incident's last revision."""
    return incident(number, revision, state=IncidentState.RESOLVED, **changes)


@dataclass(frozen=True)
class Got:
    """One request that a receiver got."""

    at_s: float
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    @property
    def notice(self) -> tuple[str, str]:
        """Incident and status, of either format."""
        told = self.json
        if "event" in told:
            return told["incident"]["incident"], told["event"].removeprefix("incident.")
        return told["alerts"][0]["labels"]["incident"], told["status"]

    def signed_with(self, secret: str) -> bool:
        """The signature is right; written from the documentation, not with the sender's code."""
        parts = dict(part.split("=", 1) for part in self.headers["x-evertick-signature"].split(","))
        signed = f"{parts['t']}.".encode() + self.body
        good = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        return hmac.compare_digest(good, parts["v1"]) and abs(time.time() - int(parts["t"])) < 300


Answer = Callable[[Got], tuple[int, dict[str, str]]]


class HttpReceiver:
    """Listens on loopback and keeps what it got. ``answer`` says what to reply; it may wait."""

    def __init__(
        self,
        answer: Answer = lambda _: (200, {}),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer
        self.got: list[Got] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body leave in one segment, or the client's delayed ACK costs 40 ms.
            wbufsize = -1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                got = Got(time.time(), headers, body)
                receiver.got.append(got)
                status, more = receiver.answer(got)
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A sender that was killed is part of the test."""

        self._scheme = "https" if tls else "http"
        self._server = Server(("127.0.0.1", port), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/hook"

    def notices(self) -> Counter[tuple[str, str]]:
        """How often each notice (incident, status) came."""
        return Counter(got.notice for got in list(self.got))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
