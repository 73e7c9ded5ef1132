"""Delivery by HTTP against a real receiver."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remediators.webhook import Webhook, judge, retry_after_s, sign
from tests.conftest import free_port
from tests.remediators.samples import HttpReceiver

BODY = b'{"event":"incident.firing","incident":{"incident":"x"}}'


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    server = HttpReceiver()
    yield server
    server.close()


def test_headers_and_signature(receiver: HttpReceiver) -> None:
    url = receiver.url.replace("http://", "http://ann:s%C3%A9same@")
    webhook = Webhook(url, secret="hush", headers={"X-Team": "fabric"})
    assert webhook.post(BODY, "the-key", 3).done
    [got] = receiver.got
    assert got.body == BODY
    assert got.key == "the-key"
    assert got.headers["x-evertick-delivery"] == "3"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-team"] == "fabric"
    assert base64.b64decode(got.headers["authorization"].removeprefix("Basic ")).startswith(b"ann:")
    assert got.signed_with("hush")
    assert not got.signed_with("hash")


def test_no_secret_no_signature(receiver: HttpReceiver) -> None:
    assert Webhook(receiver.url).post(BODY, "k", 1).done
    assert "x-evertick-signature" not in receiver.got[0].headers


def test_the_signature_is_stripes() -> None:
    # printf '1700000000.{}' | openssl dgst -sha256 -hmac secret
    assert sign("secret", b"{}", 1700000000) == (
        "t=1700000000,v1=b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163"
    )


def test_connections_are_used_again_also_after_an_error(receiver: HttpReceiver) -> None:
    webhook = Webhook(receiver.url)
    answers = iter([(500, {}), (200, {}), (404, {}), (200, {})])
    receiver.answer = lambda _: next(answers)
    assert [webhook.post(BODY, "k", 1).done for _ in range(4)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("status", "done", "again"),
    [
        (200, True, False),
        (202, True, False),
        (204, True, False),
        (301, False, False),
        (400, False, False),
        (404, False, False),
        (408, False, True),
        (410, False, False),
        (425, False, True),
        (429, False, True),
        (500, False, True),
        (503, False, True),
    ],
)
def test_what_an_answer_means(status: int, done: bool, again: bool) -> None:
    result = judge(status, "the reason", {"Retry-After": "7"}, 0.0)
    assert (result.done, result.again) == (done, again)
    assert result.retry_after_s == (7.0 if again else 0.0)
    assert str(status) in result.detail


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        (None, 0),
        ("", 0),
        ("120", 120),
        ("999999999", 3600),
        ("-5", 0),
        ("soon", 0),
        ("nan", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 30),
        ("Wed, 21 Oct 2020 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2026 07:28:00 +9999999999999", 0),
    ],
)
def test_retry_after(value: str | None, wait_s: float) -> None:
    assert retry_after_s(value, 1792567680.0 - 30) == wait_s


def test_nobody_listens() -> None:
    result = Webhook(f"http://127.0.0.1:{free_port()}/").post(BODY, "k", 1)
    assert result.again
    assert "refused" in result.detail
    assert "0x" not in result.detail


def test_a_receiver_that_never_answers_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        webhook = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=0.2)
        began_s = time.monotonic()
        result = webhook.post(BODY, "k", 1)
    assert result.again
    assert "timed out" in result.detail.lower()
    assert time.monotonic() - began_s < 5


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    receiver = HttpReceiver(tls=context)
    try:
        refused = Webhook(receiver.url).post(BODY, "k", 1)
        assert not refused.done and refused.again
        assert "certificate" in refused.detail.lower()
        assert receiver.got == []
        assert Webhook(receiver.url, ca_file=str(certificate)).post(BODY, "k", 1).done
        assert Webhook(receiver.url, verify=False).post(BODY, "k", 1).done
    finally:
        receiver.close()


def test_something_that_is_not_http_is_no_delivery() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        webhook = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=1)

        def answer() -> None:
            with server.accept()[0] as peer:
                peer.recv(65536)
                peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=answer, daemon=True).start()
        assert webhook.post(BODY, "k", 1).again


@pytest.mark.parametrize(
    ("head", "body", "done"),
    [
        (b"200 OK\r\nContent-Length: 100", b"cut off", True),
        (b"200 OK\r\nContent-Length: 5\r\nContent-Encoding: gzip", b"plain", True),
        (b"202 Accepted\r\nTransfer-Encoding: chunked", b"zz\r\nno", True),
        (b"400 Bad\r\nContent-Length: 100", b"cut off", False),
    ],
)
def test_the_status_counts_also_where_the_body_cannot_be_read(
    head: bytes, body: bytes, done: bool
) -> None:
    """Sending again what was accepted would be a notice twice, for a day."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        webhook = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=5)

        def answer() -> None:
            with server.accept()[0] as peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 " + head + b"\r\n\r\n" + body)

        threading.Thread(target=answer, daemon=True).start()
        result = webhook.post(BODY, "k", 1)
    assert (result.done, result.again) == (done, False)
