"""Delivery of one notice by HTTP POST: signed, bounded in time, with an answer that says what next.

Headers of every request:

* ``Idempotency-Key``: the action's id. The same notice sent again has the same key.
* ``X-Evertick-Delivery``: which attempt this is, from 1, since the sender's last start.
* ``X-Evertick-Signature: t=<unix seconds>,v1=<hex>``, where the receiver has a secret. The scheme is
  Stripe's. A receiver verifies it so, over the raw body and before parsing it::

      t, v1 = (part.split("=", 1)[1] for part in header.split(","))
      good = hmac.new(secret.encode(), f"{t}.".encode() + body, hashlib.sha256).hexdigest()
      accept = hmac.compare_digest(good, v1) and abs(time.time() - int(t)) < 300

An answer 2xx is delivery. 408, 425, 429, 5xx, a timeout and a failed connection are worth another
attempt, not before ``Retry-After``. Anything else is final: the receiver will not have it. The proxy of
the environment (``HTTPS_PROXY``, ``NO_PROXY``) is used, for other hosts than this one.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout, make_headers, parse_url

from remediators.base import Result

_AGAIN = {408, 425, 429}
_ANSWER_MAX_BYTES = 16 * 1024
_RETRY_AFTER_MAX_S = 3600.0
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}


def sign(secret: str, body: bytes, at_s: int) -> str:
    """The value of ``X-Evertick-Signature`` for a body sent at ``at_s`` (Unix seconds)."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def retry_after_s(value: str | None, now_s: float) -> float:
    """Seconds that a ``Retry-After`` header asks for (RFC 9110: a number or a date), at most 3,600;
    0 where there is none or it cannot be read."""
    if not value:
        return 0.0
    if value.strip().isdecimal():
        wait_s = float(value)
    else:
        try:
            wait_s = parsedate_to_datetime(value).timestamp() - now_s
        except (ValueError, OverflowError):
            return 0.0
    return min(max(wait_s, 0.0), _RETRY_AFTER_MAX_S)


class Webhook:
    """One receiver's address, with a pool of connections. Safe for use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        secret: str = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
        verify: bool = True,
        ca_file: str = "",
        connections: int = 4,
    ) -> None:
        """
        Args:
            url: ``http`` or ``https``; user and password in it are sent as basic authorization.
            secret: key of the signature; empty for none.
            headers: sent besides ours.
            timeout_s: for connecting, and for the answer.
            verify: check the certificate of an ``https`` receiver.
            ca_file: certificates to trust instead of the system's.
            connections: kept open at most.
        """
        parsed = parse_url(url)
        self._url = parsed._replace(auth=None).url
        self._secret = secret
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": "evertick",
            **(make_headers(basic_auth=parsed.auth) if parsed.auth else {}),
            **(headers or {}),
        }
        pool: dict[str, Any] = {
            "maxsize": connections,
            "timeout": Timeout(connect=timeout_s, read=timeout_s),
            "retries": False,
            "cert_reqs": "CERT_REQUIRED" if verify else "CERT_NONE",
            **({"ca_certs": ca_file} if ca_file else {}),
        }
        proxy = getproxies().get(parsed.scheme or "")
        host = parsed.host or ""
        if proxy and host not in _LOOPBACK and not proxy_bypass(host):
            self._pool: urllib3.PoolManager = urllib3.ProxyManager(proxy, **pool)
        else:
            self._pool = urllib3.PoolManager(**pool)

    def post(self, body: bytes, key: str, attempt: int) -> Result:
        """Send the body once."""
        now_s = time.time()
        headers = {**self._headers, "Idempotency-Key": key, "X-Evertick-Delivery": str(attempt)}
        if self._secret:
            headers["X-Evertick-Signature"] = sign(self._secret, body, int(now_s))
        try:
            answer = self._pool.request(
                "POST", self._url, body=body, headers=headers, preload_content=False, redirect=False
            )
        except (HTTPError, OSError) as error:
            return Result(False, _plainly(error), again=True)
        return judge(answer.status, _beginning(answer), answer.headers, now_s)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.clear()


def _beginning(answer: BaseHTTPResponse) -> str:
    """The beginning of an answer's body, as far as it is there; the connection is given back.

    The status has already said what became of the notice: a body that breaks off, cannot be decoded
    or comes byte by byte must neither have it sent again nor hold up the next.
    """
    try:
        text = answer.read1(_ANSWER_MAX_BYTES).decode(errors="replace").strip()[:200]
    except (HTTPError, HTTPException, OSError):
        answer.close()
        text = ""
    # A longer answer would have to be read to its end before the connection is of use again.
    if answer.length_remaining or answer.chunked:
        answer.close()
    answer.release_conn()
    return text


def judge(status: int, text: str, headers: Mapping[str, str], now_s: float) -> Result:
    """What an answer means; ``text`` is the beginning of its body."""
    said = f"HTTP {status}" + (f": {text}" if text else "")
    if 200 <= status < 300:
        return Result(True, f"HTTP {status}")
    if status in _AGAIN or status >= 500:
        wait_s = retry_after_s(headers.get("Retry-After"), now_s)
        return Result(False, said, again=True, retry_after_s=wait_s)
    if 300 <= status < 400:
        return Result(False, f"HTTP {status}: it redirects; set the url to where it redirects to")
    return Result(False, said)


def _plainly(error: Exception) -> str:
    """The error without the addresses of Python objects, which urllib3 puts into its texts."""
    reason = str(error)
    return f"{type(error).__name__}: {reason.partition('): ')[2] or reason}"[:300]
