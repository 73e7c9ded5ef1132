"""The command line: what a person and a program get from it, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bus.producer import Publisher
from bus.settings import ClickHouseSettings, KafkaSettings, SettingsError
from bus.topics import ensure, name_on_broker
from evertick import reach
from evertick.cli import app, hoist, paragraphs
from evertick.commands.incidents import duration_ns
from evertick.commands.screen import printable
from evertick.sources import NoSuchIncident, check_prefix, fold
from schemas.action import Action, ActionMode, Outcome, OutcomeStatus
from schemas.identity import content_id
from schemas.incident import Incident, IncidentState, Symptom
from schemas.packet import LinkTransition
from schemas.signal import Evidence, Phase, Severity, Signal
from tests.conftest import KafkaServer, eventually

COMMANDS = ("up", "agent", "stream", "remediate", "history", "incidents", "show", "tail", "doctor",
            "schema", "bench")  # fmt: skip
NOW_NS = time.time_ns()
S = 1_000_000_000
NIC = "nic:node-3/eth1"
run = CliRunner()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of this machine, and nothing that listens where the defaults point."""
    for name in list(os.environ):
        if name.upper().startswith("EVERTICK_") and name != "EVERTICK_CACHE_DIR":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERTICK_KAFKA__BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("EVERTICK_CLICKHOUSE__URL", "http://127.0.0.1:1")


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """``evertick`` as a process of its own."""
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "evertick", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        **options,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    found = run.invoke(app, [command, "--help"])
    assert found.exit_code == 0
    assert "Example: evertick" in found.output or command == "schema"
    assert command in run.invoke(app, ["--help"]).output


def test_help_needs_nothing_that_is_slow_to_import() -> None:
    """A node agent carries what the command line imported before it."""
    slow = "{'confluent_kafka', 'clickhouse_connect', 'faust', 'pydantic', 'rich', 'structlog'}"
    program = f"import sys, evertick.cli; print(sorted({slow} & set(sys.modules)))"
    root = str(Path(__file__).parents[2])
    out = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert out.stdout.strip() == "[]"


def test_the_version_is_told() -> None:
    found = run.invoke(app, ["--version"])
    assert found.exit_code == 0
    assert found.output.strip()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "kafka.bootstrapp=a:1", "tail", "signals"], "did you mean bootstrap?"),
        (["tail", "signals", "--set", "kafka.bootstrapp=a:1"], "did you mean bootstrap?"),
        (["tail", "signals", "--set=zonee=a"], "setting zonee: no such setting"),
        (["agent", "--config", "none.toml"], "settings file none.toml is not there"),
        (["stream", "--set", "zone"], "--set zone: write it as name=value"),
        (["tail", "signal"], "no topic 'signal'; there are: telemetry.packet, "),
        (["tail", "signals"], "Kafka at 127.0.0.1:1 does not answer (Connection refused); start"),
        (["incidents"], "Kafka at 127.0.0.1:1 does not answer (Connection refused); start it"),
        (["incidents"], "ClickHouse at http://127.0.0.1:1 does not answer (Connection refused)"),
        (["show", "zz"], "'zz' is no incident's id: that has 32 hex digits"),
        (["show", "ab"], "Kafka at 127.0.0.1:1 does not answer"),
        (["doctor", "--set", "collectors.lnk.enabled=true"], "collectors.lnk: no such collector"),
        (["doctor", "--set", "collectors.link.x=1"], "setting collectors.link.x: no such setting"),
        (["history", "serve", "--set", "zone=a b"], "setting zone: String should match pattern"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_2(arguments: list[str], told: str) -> None:
    found = run.invoke(app, arguments)
    assert found.exit_code == 2
    assert told in found.stderr
    assert found.stdout == ""
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["tail"],
        ["incidents", "--since", "soon"],
        ["incidents", "--limit", "0"],
        ["--set"],
    ],
)
def test_a_wrong_command_line_is_exit_2(arguments: list[str]) -> None:
    assert run.invoke(app, arguments).exit_code == 2


_WORDS = st.lists(
    st.sampled_from(["tail", "signals", "--json", "--set", "--config", "--set=a=b", "a=b", "--"])
)


@given(_WORDS)
def test_hoisting_keeps_all_words_and_their_order(words: list[str]) -> None:
    moved = hoist(words)
    assert sorted(moved) == sorted(words)
    assert hoist(moved) == moved


def test_global_options_may_stand_anywhere() -> None:
    before = ["--set", "a=b", "--config", "f", "tail", "signals"]
    assert hoist(["tail", "--set", "a=b", "signals", "--config", "f"]) == before
    assert hoist(["tail", "--", "--set", "a=b"]) == ["tail", "--", "--set", "a=b"]


def test_paragraphs_are_unwrapped() -> None:
    assert paragraphs("a\n    b\n\n    c\n    d\n    ") == "a b\n\nc d"


@pytest.mark.parametrize(
    ("words", "seconds"), [("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800)]
)
def test_lengths_of_time(words: str, seconds: int) -> None:
    assert duration_ns(words) == seconds * S


@pytest.mark.parametrize("words", ["", "5", "h", "-1h", "1.5h", "9999999h", "1y", "²h"])
def test_what_is_no_length_of_time(words: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration_ns(words)


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\r\n\x9b") == "a\\x1b[2Jb\\x0d\\x0a\\x9b"


@pytest.mark.parametrize("words", ["", "xyz", "a" * 33, "../", "0x12"])
def test_what_is_no_id(words: str) -> None:
    with pytest.raises(NoSuchIncident):
        check_prefix(words)


def test_brokers_are_read_from_the_setting() -> None:
    assert reach.brokers("a:1, b,[::1]:2,SASL_SSL://c:3") == [
        ("a", 1),
        ("b", 9092),
        ("::1", 2),
        ("c", 3),
    ]
    for wrong in ("a:b", " , "):
        with pytest.raises(SettingsError, match=r"setting kafka.bootstrap"):
            reach.brokers(wrong)


def test_the_schema_is_exported_and_not_broken(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "contract"
    assert run.invoke(app, ["schema", "export", str(folder)]).exit_code == 0
    names = sorted(file.name for file in folder.iterdir())
    assert "asyncapi.json" in names
    assert "signal.1.json" in names
    assert run.invoke(app, ["schema", "export", str(folder)]).exit_code == 0

    signals = json.loads((folder / "signal.1.json").read_text())
    signals["properties"]["gone"] = {"type": "string"}
    (folder / "signal.1.json").write_text(json.dumps(signals))
    refused = run.invoke(app, ["schema", "export", str(folder)])
    assert refused.exit_code == 2
    assert "signal.1.json: field gone was removed" in refused.stderr
    assert json.loads((folder / "signal.1.json").read_text()) == signals
    assert run.invoke(app, ["schema", "export", str(folder), "--breaking"]).exit_code == 0
    assert "gone" not in (folder / "signal.1.json").read_text()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = run.invoke(app, ["schema", "export", str(tmp_path / "file")])
    assert found.exit_code == 2
    assert "cannot write to" in found.stderr


def incident(name: str, number: int, state: IncidentState, at_ns: int, **fields: Any) -> Incident:
    """A revision of an incident that began with the test run."""
    made = content_id(name)
    return Incident(
        **{
            "id": content_id(name, number),
            "at_ns": at_ns,
            "clock_error_ns": 1000,
            "incident": made,
            "revision": number,
            "state": state,
            "kind": "link.down",
            "subject": NIC,
            "severity": Severity.CRITICAL,
            "summary": f"{name} has no carrier",
            "confidence": 0.9,
            "opened_ns": NOW_NS,
            "symptoms": [
                Symptom(
                    episode=content_id("episode", name),
                    kind="link.down",
                    subject=NIC,
                    role="cause",
                    severity=Severity.CRITICAL,
                    summary="no carrier",
                    raised_ns=NOW_NS,
                    updated_ns=NOW_NS,
                    detector="link_down",
                    detector_version=1,
                )
            ],
            **fields,
        }
    )


def everything() -> list[Any]:
    """What the topics hold: one incident over, with its story, one still open, of another kind."""
    over = content_id("over")
    fired = Action(
        id=content_id("action"),
        at_ns=NOW_NS + 2 * S,
        clock_error_ns=1000,
        incident=over,
        incident_revision=1,
        remedy="notify",
        purpose="firing",
        mode=ActionMode.ACT,
        dry_run=False,
        target="control",
        subject=NIC,
        reason="policy",
    )
    return [
        Signal(
            id=content_id("signal"),
            at_ns=NOW_NS + 12_000_000,
            clock_error_ns=1000,
            episode=content_id("episode", "over"),
            kind="link.down",
            subject=NIC,
            phase=Phase.RAISED,
            raised_ns=NOW_NS,
            detector="link_down",
            detector_version=1,
            severity=Severity.CRITICAL,
            summary="no carrier",
            evidence=[Evidence(at_ns=NOW_NS, what="carrier lost \x1b[31m")],
        ),
        incident("over", 1, IncidentState.OPEN, NOW_NS + S),
        incident("over", 2, IncidentState.RESOLVED, NOW_NS + 9 * S, resolved_ns=NOW_NS + 9 * S),
        incident("open", 1, IncidentState.OPEN, NOW_NS + S, kind="gpu.xid", opened_ns=NOW_NS + S),
        fired,
        Outcome(
            id=content_id("outcome"),
            at_ns=NOW_NS + 3 * S,
            clock_error_ns=1000,
            action=fired.id,
            incident=over,
            remedy="notify",
            purpose="firing",
            target="control",
            status=OutcomeStatus.SUCCEEDED,
            detail="HTTP 200",
            attempts=1,
            started_ns=NOW_NS + 2 * S,
        ),
    ]


@pytest.fixture
def filled(kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> KafkaSettings:
    """A Kafka that holds it, which the commands find by the environment."""
    ensure(kafka)
    Publisher(kafka, "test").publish(*everything())
    monkeypatch.setenv("EVERTICK_KAFKA__BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("EVERTICK_KAFKA__PREFIX", kafka.prefix)
    return kafka


def ids(*arguments: str) -> list[str]:
    """The ids that ``evertick incidents`` lists."""
    found = run.invoke(app, ["incidents", "--json", *arguments])
    assert found.exit_code == 0, found.stderr
    return [one["incident"] for one in json.loads(found.stdout)]


def looks_right() -> None:
    """What the commands say of it, wherever they read it."""
    over, still_open = content_id("over"), content_id("open")
    assert ids() == [still_open]
    assert ids("--all") == [still_open, over]
    assert ids("--since", "1d", "--kind", "link") == [over]
    assert ids("--all", "--limit", "1") == [still_open]
    assert ids("--kind", "gpu.xid") == [still_open]
    assert ids("--kind", "gp") == []
    table = run.invoke(app, ["incidents", "--all"]).stdout.splitlines()
    assert len(table) == 3
    assert still_open[:8] in table[1]
    assert "gpu.xid" in table[1]
    assert "critical" in table[1]
    assert "\x1b" not in "".join(table)

    found = run.invoke(app, ["show", over[:8].upper(), "--json"])
    assert found.exit_code == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["incident"]["incident"] == over
    assert document["incident"]["state"] == "resolved"
    assert [(line["what"], line["offset_ns"]) for line in document["story"]] == [
        ("evidence", 0),
        ("symptom", 12_000_000),
        ("incident", S),
        ("action", 2 * S),
        ("outcome", 3 * S),
        ("incident", 9 * S),
    ]
    story = run.invoke(app, ["show", over]).stdout
    assert "link.down on nic:node-3/eth1" in story
    assert "+0.012 s" in story
    assert "resolved after 9 s" in story
    assert "\x1b" not in story

    missing = run.invoke(app, ["show", "0" * 32])
    assert missing.exit_code == 2
    assert "no incident 0000" in missing.stderr


def test_incidents_are_read_from_the_topics_where_there_is_no_history(
    filled: KafkaSettings,
) -> None:
    looks_right()
    assert "read from the topics: ClickHouse at" in run.invoke(app, ["incidents"]).stderr


def test_incidents_are_read_from_the_history(
    filled: KafkaSettings,
    clickhouse: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVERTICK_CLICKHOUSE__URL", clickhouse.url)
    monkeypatch.setenv("EVERTICK_CLICKHOUSE__DATABASE", clickhouse.database)
    monkeypatch.setenv("EVERTICK_METRICS__HISTORY_PORT", "0")
    # No tables yet: the topics answer.
    assert "read from the topics" in run.invoke(app, ["incidents"]).stderr
    writer = start("history")
    try:
        eventually(lambda: _story_in_history(content_id("over")), 90, "the story to be written")
        looks_right()
        assert run.invoke(app, ["incidents"]).stderr == ""
    finally:
        writer.send_signal(signal.SIGTERM)
        _, complaint = writer.communicate(timeout=30)
    assert writer.returncode == 0, complaint


def _story_in_history(which: str) -> bool:
    found = run.invoke(app, ["show", which, "--json"])
    return (
        found.exit_code == 0
        and "read from" not in found.stderr
        and len(json.loads(found.stdout)["story"]) == 6
    )


def test_an_id_that_several_share_is_refused_with_the_candidates(filled: KafkaSettings) -> None:
    first = content_id("over")[0]
    names = (f"more {n}" for n in range(1000))
    like = next(name for name in names if content_id(name).startswith(first))
    Publisher(filled, "test").publish(incident(like, 1, IncidentState.OPEN, NOW_NS))
    found = run.invoke(app, ["show", first])
    assert found.exit_code == 2
    assert "add digits" in found.stderr
    assert content_id("over") in found.stderr
    assert content_id(like) in found.stderr


def test_a_fold_keeps_the_newest_revision_in_any_order() -> None:
    messages = [m for m in everything() if isinstance(m, Incident)]
    newest = fold(reversed(messages))
    assert {one.incident: one.revision for one in newest.values()} == {
        content_id("over"): 2,
        content_id("open"): 1,
    }


def test_tail_shows_what_a_topic_holds(filled: KafkaSettings) -> None:
    found = run.invoke(app, ["tail", "incidents", "--from-start", "--count", "3"])
    assert found.exit_code == 0, found.stderr
    assert len(found.stdout.splitlines()) == 3
    assert f"{content_id('over')[:8]} revision 2 resolved link.down {NIC} critical" in found.stdout
    raw = run.invoke(app, ["tail", "signals", "--from-start", "--count", "1", "--json"])
    assert json.loads(raw.stdout)["schema"] == "signal"


def test_tail_shows_what_cannot_be_read(filled: KafkaSettings) -> None:
    producer = Producer({"bootstrap.servers": filled.bootstrap})
    producer.produce(name_on_broker(filled, "outcomes"), b"{not\njson", b"control")
    producer.produce(name_on_broker(filled, "inventory"), None, b"job:llm")
    producer.flush(10)
    broken = run.invoke(app, ["tail", "outcomes", "--from-start", "--count", "2"])
    assert "unreadable outcomes[" in broken.stdout
    assert "not JSON" in broken.stdout
    raw = run.invoke(app, ["tail", "outcomes", "--from-start", "--count", "2", "--json"])
    assert {"key": "control", "unreadable": "{not\njson"} in [
        json.loads(line) for line in raw.stdout.splitlines()
    ]
    gone = run.invoke(app, ["tail", "inventory", "--from-start", "--count", "1"])
    assert "job:llm is gone" in gone.stdout


def link(number: int) -> LinkTransition:
    return LinkTransition(
        id=content_id("link", number),
        at_ns=NOW_NS + number,
        clock_error_ns=0,
        node="node-3",
        subject=NIC,
        carrier=number % 2 == 0,
        admin_up=True,
        present=True,
        physical=True,
        since_ns=0,
        carrier_losses=number,
    )


@pytest.fixture
def following(filled: KafkaSettings) -> Iterator[subprocess.Popen[str]]:
    """A ``tail`` that has shown its first line."""
    process = start("tail", "telemetry.packet")
    publisher = Publisher(filled, "test")
    os.set_blocking(process.stdout.fileno(), False)  # type: ignore[union-attr]
    deadline = time.monotonic() + 60
    for number in range(600):
        publisher.publish(link(number))
        if process.stdout.readline():  # type: ignore[union-attr]
            break
        assert process.poll() is None, process.stderr.read()  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.set_blocking(process.stdout.fileno(), True)  # type: ignore[union-attr]
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_tail_follows_and_ctrl_c_ends_it_quietly(following: subprocess.Popen[str]) -> None:
    following.send_signal(signal.SIGINT)
    out, complaint = following.communicate(timeout=30)
    assert following.returncode == 130
    assert complaint == ""
    assert all("link.transition nic:node-3/eth1" in line for line in out.splitlines())


def test_a_reader_that_leaves_is_no_error(
    following: subprocess.Popen[str], filled: KafkaSettings
) -> None:
    assert following.stdout is not None
    following.stdout.close()
    publisher = Publisher(filled, "test")
    deadline = time.monotonic() + 30
    while following.poll() is None and time.monotonic() < deadline:
        publisher.publish(link(1))
        time.sleep(0.1)
    assert following.returncode == 0
    assert following.stderr is not None
    assert following.stderr.read() == ""


def test_a_kafka_that_goes_away_and_stays_away_ends_tail_with_exit_1(
    own_kafka: KafkaServer,
) -> None:
    kafka = KafkaSettings(bootstrap=own_kafka.bootstrap)
    ensure(kafka)
    Publisher(kafka, "test").publish(link(1))
    process = start(
        "tail", "telemetry.packet", "--from-start", "--set", f"kafka.bootstrap={kafka.bootstrap}"
    )
    assert process.stdout is not None
    assert NIC in process.stdout.readline()
    own_kafka.kill()
    _, complaint = process.communicate(timeout=90)
    assert process.returncode == 1
    assert complaint.splitlines() == [
        f"evertick: Kafka at {kafka.bootstrap} is away; waiting",
        f"evertick: lost Kafka at {kafka.bootstrap}: no answer for 15 s; is it still running?",
    ]


def test_a_table_into_a_closed_pipe_is_no_error(filled: KafkaSettings) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "evertick", "incidents", "--all"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": root},
    )
    os.close(write_end)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


def test_a_part_without_its_packages_says_which_to_install() -> None:
    program = (
        "import sys; sys.modules['faust'] = None; sys.argv = ['evertick', 'stream'];"
        "from evertick.cli import main; main()"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.returncode == 2
    assert "pip install -e '.[stream]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("part", ["agent", "stream", "remediate"])
def test_a_part_whose_settings_do_not_fit_does_not_start(part: str) -> None:
    process = start(part, "--set", "kafka.replication=many")
    out, complaint = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert complaint == (
        "evertick: setting kafka.replication: Input should be a valid integer, unable to parse "
        "string as an integer\n"
    )
