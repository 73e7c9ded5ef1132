"""The remedy's settings and what it proposes."""

from __future__ import annotations

from typing import Any

import pytest

from bus.settings import SettingsError, load, section
from remediators.base import registered
from remediators.notify import Notify, NotifySettings
from remediators.policy import Verdict
from remediators.worker import _action, configured
from schemas.action import ActionMode
from schemas.signal import Severity
from tests.remediators.samples import T0_NS, HttpReceiver, incident, resolved

HOOK = {"url": "http://127.0.0.1:9/x"}


def settings(**receivers: dict[str, Any]) -> NotifySettings:
    return section(NotifySettings, {"receivers": receivers}, "remedies.notify")


def proposed(of: Any, rules: NotifySettings) -> list[tuple[str, str]]:
    return [(step.purpose, step.receiver) for step in Notify.steps(of, rules)]


def test_it_is_registered() -> None:
    assert registered()["notify"] is Notify


def test_each_receiver_is_asked_about_kind_and_severity() -> None:
    rules = settings(
        all=HOOK,
        links=HOOK | {"kinds": "link.*"},
        gpus=HOOK | {"kinds": ["gpu.*"]},
        urgent=HOOK | {"severity_min": "critical"},
    )
    of = incident(severity=Severity.WARNING)
    assert proposed(of, rules) == [("firing", "all"), ("firing", "links")]
    # Whoever may have heard of its beginning hears of its end; the ledger knows who did.
    assert proposed(resolved(kind="gpu.xid"), rules)[-4:] == [
        ("resolved", name) for name in ("all", "links", "gpus", "urgent")
    ]


def test_each_address_is_served_on_its_own() -> None:
    rules = settings(chat={"kind": "apprise", "urls": "json://127.0.0.1:1/a json://127.0.0.1:1/b"})
    assert proposed(incident(), rules) == [("firing", "chat"), ("firing", "chat/2")]
    notify = Notify(rules)
    assert notify.limits("chat/2") is not None
    assert notify.limits("chat/3") is None
    assert notify.idle_reason() == ""


@pytest.mark.parametrize(
    ("receiver", "said"),
    [
        ({}, "receivers.r: Value error, a receiver needs a url"),
        ({"url": "ftp://x/token"}, "begins with http"),
        ({"url": "http://x", "sekret": "token"}, "receivers.r.sekret: no such setting"),
        ({"url": "http://x", "format": "xml"}, "receivers.r.format"),
        ({"url": "http://x", "concurrency": 0}, "receivers.r.concurrency"),
        ({"url": "http://u:token@[x"}, "no host and port that can be read"),
        ({"url": "http://u:token@x:99999/"}, "no host and port that can be read"),
        ({"url": "http://"}, "no host and port that can be read"),
        ({"url": "http://x", "headers": {"A": "token\n"}}, "header 'A' holds a line break"),
        ({"url": "http://x", "headers": {"A": "token\u2026"}}, "header 'A' holds a line break"),
        ({"url": "http://x", "headers": {"A:": "token"}}, "'A:' is no header's name"),
        ({"url": "https://x", "ca_file": "/nowhere"}, "ca_file /nowhere: No such file"),
    ],
)
def test_bad_settings_are_named_and_no_secret_is_shown(receiver: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as told:
        settings(r=receiver)
    assert said in str(told.value)
    assert "token" not in str(told.value)


def test_an_address_that_apprise_does_not_know(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SettingsError, match=r"remedies\.notify\.receivers\.chat") as told:
        Notify(settings(chat={"kind": "apprise", "url": "nonsense://token"}))
    assert "token" not in str(told.value) + caplog.text


def test_secrets_are_never_printed() -> None:
    rules = settings(r={"url": "http://x/token", "secret": "token", "headers": {"A": "token"}})
    assert "token" not in repr(rules)
    assert "token" not in rules.model_dump_json()


def test_receivers_can_be_set_by_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_REMEDIES__NOTIFY__RECEIVERS__HOOK__SECRET", "hush")
    loaded = load(
        [
            "remedies.notify.receivers.hook.url=http://127.0.0.1:9/x",
            "remedies.notify.receivers.hook.kinds=link.*,gpu.*",
            "remedies.notify.dry_run=true",
        ]
    )
    notify = configured(loaded)["notify"]
    assert isinstance(notify, Notify)
    hook = notify.settings.receivers["hook"]
    assert hook.kinds == ["link.*", "gpu.*"]
    assert hook.secret.get_secret_value() == "hush"
    assert notify.settings.dry_run


def test_an_unknown_remedy_is_told() -> None:
    with pytest.raises(SettingsError, match=r"remedies\.notfy: no such remedy \(known: notify\)"):
        configured(load(["remedies.notfy.mode=act"]))


def test_without_receivers_it_says_that_nobody_hears() -> None:
    assert "remedies.notify.receivers" in Notify(settings()).idle_reason()


def test_apprise_sends_words_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    receiver = HttpReceiver()
    try:
        address = receiver.url.replace("http://", "json://")
        notify = Notify(settings(chat={"kind": "apprise", "url": address}))
        [step] = Notify.steps(incident(), notify.settings)
        verdict = Verdict(ActionMode.ACT, False, "", "allowed")
        action = _action("0" * 32, step, incident(), verdict, T0_NS, 0)
        assert notify.execute(action, incident(), 1).done
        receiver.answer = lambda _: (500, {})
        refused = notify.execute(action, incident(), 2)
        assert not refused.done and refused.again
    finally:
        receiver.close()
    told = receiver.got[0].json
    assert told["title"] == "Critical: link.down on nic:node-0/eth1"
    assert told["type"] == "failure"
    assert told["message"].splitlines()[0] == "eth1 of node-0 lost its carrier"
    assert f"evertick show {incident().incident}" in told["message"]
