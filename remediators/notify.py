"""The remedy ``notify``: tells people and their tools that an incident began and that it is over.

Each receiver gets one firing and one resolved notice for an incident, in this order, however often it
flaps, reopens or changes its kind. Receivers are tables in the settings::

    [remedies.notify.receivers.pager]
    kind = "webhook"                 # or "apprise": chats and pagers, https://appriseit.com
    url = "https://alerts.example.com/evertick"
    format = "alertmanager"          # or "evertick": the whole incident
    secret = "…"                     # signs the notice (remediators.webhook says how to verify)
    severity_min = "critical"
    kinds = ["link.*"]

An address in ``urls`` is served like a receiver of its own, named ``pager/2`` and so on: a chat that is
away must not make a notice come twice to another.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from bus.settings import Section, SettingsError, Words
from remediators import notice
from remediators.base import Limits, Remedy, RemedySettings, Result, Step
from remediators.policy import in_scope
from remediators.webhook import Webhook
from schemas.action import Action, ActionMode
from schemas.incident import Incident, IncidentState
from schemas.signal import Severity


def _addresses(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


def _check_address(address: str) -> None:
    """Refuse, without showing it, an address that nothing could be sent to."""
    try:
        host = parse_url(address).host
    except HTTPError:
        host = None
    if not host:
        raise ValueError("the url of a webhook has no host and port that can be read")


def _check_headers(headers: Mapping[str, SecretStr]) -> None:
    """Refuse what HTTP cannot carry: a line break, or a letter beyond Latin-1."""
    for name, value in headers.items():
        for word in (name, value.get_secret_value()):
            if any(letter in "\r\n\0" or ord(letter) > 0xFF for letter in word):
                raise ValueError(
                    f"header {name!r} holds a line break or a letter beyond Latin-1; HTTP "
                    "carries neither"
                )
        if not name or ":" in name or name != name.strip():
            raise ValueError(f"{name!r} is no header's name")


class Receiver(Section):
    """Somebody who wants notices."""

    kind: Literal["webhook", "apprise"] = "webhook"
    url: SecretStr = SecretStr("")
    """Its address. Secret, since many hold a token."""
    urls: Annotated[list[SecretStr], BeforeValidator(_addresses)] = []
    """More addresses; in the environment with spaces between."""
    format: Literal["alertmanager", "evertick"] = "alertmanager"
    """Of a webhook's body."""
    secret: SecretStr = SecretStr("")
    """Key of the webhook's signature; empty sends none."""
    headers: dict[str, SecretStr] = {}
    """Sent with a webhook besides ours, such as ``Authorization``."""
    verify_tls: bool = True
    ca_file: str = ""
    """Certificates to trust instead of the system's."""
    severity_min: Severity = Severity.INFO
    kinds: Words = ["*"]
    """Patterns (``fnmatch``) of the kinds of incident it wants."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    """For connecting to a webhook, and for its answer."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    """Notices at a time once it is slow; while it answers promptly there is one at a time."""
    give_up_s: Annotated[float, Field(gt=0)] = 86400.0
    """A notice that could not be delivered for this long has failed."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        addresses = [secret.get_secret_value() for secret in self.addresses()]
        if not addresses:
            raise ValueError("a receiver needs a url")
        if self.kind == "webhook" and not all(
            address.startswith(("http://", "https://")) for address in addresses
        ):
            raise ValueError("the url of a webhook begins with http:// or https://")
        if self.kind == "webhook":
            for address in addresses:
                _check_address(address)
            _check_headers(self.headers)
        if self.ca_file:
            try:
                ssl.create_default_context(cafile=self.ca_file)
            except OSError as error:  # of which SSLError is one
                reason = error.strerror or str(error)
                raise ValueError(f"ca_file {self.ca_file}: {reason}") from None
        return self

    def addresses(self) -> list[SecretStr]:
        """All addresses: ``url``, then ``urls``."""
        return [*([self.url] if self.url.get_secret_value() else []), *self.urls]


class NotifySettings(RemedySettings):
    """Settings of ``remedies.notify``."""

    mode: ActionMode = ActionMode.ACT
    receivers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")], Receiver] = {}
    external_url: Annotated[str, Field(pattern=r"^(https?://.*)?$")] = ""
    """Where people find Evertick's pages, for the links in notices."""

    def doors(self) -> dict[str, tuple[Receiver, SecretStr]]:
        """Every address with its receiver, under the name that actions give it."""
        return {
            name if number == 1 else f"{name}/{number}": (receiver, address)
            for name, receiver in self.receivers.items()
            for number, address in enumerate(receiver.addresses(), start=1)
        }


class _Send(Protocol):
    def __call__(self, action: Action, incident: Incident, attempt: int) -> Result: ...


class Notify(Remedy):
    """Sends notices."""

    name = "notify"
    about = "tells receivers when an incident begins and when it is over"
    Settings: ClassVar[type[RemedySettings]] = NotifySettings

    settings: NotifySettings

    def __init__(self, settings: NotifySettings) -> None:
        super().__init__(settings)
        self._receivers: dict[str, Receiver] = {}
        self._senders: dict[str, _Send] = {}
        self._webhooks: list[Webhook] = []
        for name, (receiver, address) in settings.doors().items():
            self._receivers[name] = receiver
            open_door = self._webhook if receiver.kind == "webhook" else _apprise
            self._senders[name] = open_door(name, receiver, address.get_secret_value())

    @staticmethod
    def steps(incident: Incident, settings: NotifySettings) -> list[Step]:
        """A firing notice for each receiver that wants it, a resolved one for each once it is over."""
        step = partial(Step, remedy=Notify.name, subject=incident.subject)
        doors = settings.doors()
        proposed = [
            step(purpose=notice.FIRING, receiver=name)
            for name, (receiver, _) in doors.items()
            if in_scope(incident, receiver.kinds, receiver.severity_min)
            # One that goes on in another is told by that.
            and incident.merged_into is None
        ]
        if incident.state is IncidentState.RESOLVED:
            # To all: whoever heard of its beginning, under whatever kind, hears of its end.
            proposed += [
                step(purpose=notice.RESOLVED, receiver=name, follows=notice.FIRING)
                for name in doors
            ]
        return proposed

    def execute(self, action: Action, incident: Incident, attempt: int) -> Result:
        """Send the notice once."""
        receiver = str(action.parameters["receiver"])
        return self._senders[receiver](action, incident, attempt)

    def limits(self, receiver: str) -> Limits | None:
        """How a receiver is served."""
        found = self._receivers.get(receiver)
        return Limits(found.concurrency, found.give_up_s) if found is not None else None

    def idle_reason(self) -> str:
        """Without receivers, nobody hears of anything."""
        if self._receivers:
            return ""
        return "no receivers are configured, notices go nowhere; set remedies.notify.receivers"

    def close(self) -> None:
        """Close the connections."""
        for webhook in self._webhooks:
            webhook.close()

    def _webhook(self, name: str, receiver: Receiver, address: str) -> _Send:
        webhook = Webhook(
            address,
            secret=receiver.secret.get_secret_value(),
            headers={key: value.get_secret_value() for key, value in receiver.headers.items()},
            timeout_s=receiver.timeout_s,
            verify=receiver.verify_tls,
            ca_file=receiver.ca_file,
            connections=receiver.concurrency,
        )
        self._webhooks.append(webhook)

        def send(action: Action, incident: Incident, attempt: int) -> Result:
            if receiver.format == "evertick":
                body = notice.whole(incident, action.purpose, action.id)
            else:
                body = notice.alertmanager(
                    incident, action.purpose, name, self.settings.external_url.rstrip("/")
                )
            return webhook.post(body, action.id, attempt)

        return send


def _apprise(name: str, receiver: Receiver, address: str) -> _Send:
    import apprise  # only where it is used: it costs some 20 MB

    service = apprise.Apprise()
    complaints = logging.getLogger("apprise")
    complaints.disabled = True  # it would show the address
    try:
        known = service.add(address)
    finally:
        complaints.disabled = False
    if not known:
        raise SettingsError(
            f"setting remedies.notify.receivers.{name.partition('/')[0]}: apprise does not know this "
            "kind of url; see https://appriseit.com for those it knows"
        )

    def send(action: Action, incident: Incident, attempt: int) -> Result:
        kind = apprise.NotifyType.WARNING
        if action.purpose == notice.RESOLVED:
            kind = apprise.NotifyType.SUCCESS
        elif incident.severity is Severity.CRITICAL:
            kind = apprise.NotifyType.FAILURE
        sent = service.notify(
            title=notice.title(incident, action.purpose),
            body=notice.text(incident, action.purpose),
            body_format=apprise.NotifyFormat.TEXT,
            notify_type=kind,
        )
        if sent:
            return Result(True, "sent")
        # apprise logs why, with the secrets of the url taken out, and does not tell us.
        return Result(False, "apprise could not send it; the log says why", again=True)

    return send
