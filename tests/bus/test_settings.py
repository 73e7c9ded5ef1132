"""Settings: which source is stronger, what is refused and how it is told, and that secrets stay so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from bus.settings import Section, Settings, SettingsError, Words, load, section

SECRET = "hunter2-and-more"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of this machine."""
    for name in list(os.environ):
        if name.upper().startswith("EVERTICK_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "evertick.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_hold_where_nothing_is_said() -> None:
    assert load().model_dump() == Settings().model_dump()
    assert load().kafka.bootstrap == "127.0.0.1:9092"


def test_each_source_is_stronger_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    write('zone = "file"\n[kafka]\nbootstrap = "file:1"\nprefix = "file."\nreplication = 3\n')
    assert load().zone == "file"
    monkeypatch.setenv("EVERTICK_KAFKA__BOOTSTRAP", "environment:2")
    monkeypatch.setenv("EVERTICK_KAFKA__PREFIX", "environment.")
    found = load(["kafka.bootstrap=flag:3"])
    assert found.kafka.bootstrap == "flag:3"
    assert found.kafka.prefix == "environment."
    assert found.kafka.replication == 3
    assert found.zone == "file"


def test_the_file_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write('zone = "usual"')
    other = write('zone = "other"', "other.toml")
    third = write('zone = "third"', "third.toml")
    assert load().zone == "usual"
    monkeypatch.setenv("EVERTICK_CONFIG", str(other))
    assert load().zone == "other"
    assert load(config=third).zone == "third"


def test_tables_of_registries_are_kept_for_their_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[collectors.link]\nenabled = false\n")
    monkeypatch.setenv("EVERTICK_COLLECTORS__TCP__INTERVAL_S", "5")
    found = load(["collectors.link.interval_s=2"])
    assert found.collectors["link"] == {"enabled": False, "interval_s": "2"}
    assert found.collectors["tcp"] == {"interval_s": "5"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["kafka.bootstrapp=a"], "setting kafka.bootstrapp: no such setting; did you mean boot"),
        (["kafkaa.bootstrap=a"], "setting kafkaa: no such setting; did you mean kafka"),
        (["xyzzy=1"], "setting xyzzy: no such setting$"),
        (["kafka.replication=many"], "setting kafka.replication: Input should be a valid integer"),
        (["kafka.replication=99"], "setting kafka.replication: Input should be less than"),
        (["clickhouse.url=ftp://a"], "setting clickhouse.url: String should match pattern"),
        (["clickhouse.url=http://[a"], "setting clickhouse.url: .*no host and port in it"),
        (["clickhouse.url=http://a:b"], "setting clickhouse.url: .*no host and port in it"),
        (["clickhouse.url=http://a:b@c"], "setting clickhouse.url: .*settings of their own"),
        (["zone=a b"], "setting zone: String should match pattern"),
        (["agent.node=a b"], "setting agent.node: Value error, not a node name"),
        (["log_level=loud"], "setting log_level: Input should be 'debug'"),
        (["kafka.bootstrap"], "--set kafka.bootstrap: write it as name=value"),
        (["=1"], "--set =1: write it as name=value"),
        (["kafka=1"], "setting kafka: "),
        (["zone=a", "zone.b=1"], "--set zone.b=1: zone is given twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(flags: list[str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load(flags)


def test_every_fault_has_a_line_of_its_own() -> None:
    with pytest.raises(SettingsError) as refused:
        load(["kafka.replication=many", "zonee=a", "log_level=loud"])
    assert len(str(refused.value).splitlines()) == 3


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_KAFKAA__BOOTSTRAP", "a:1")
    with pytest.raises(
        SettingsError,
        match="environment variable EVERTICK_KAFKAA__BOOTSTRAP: no such setting; "
        "did you mean EVERTICK_KAFKA",
    ):
        load()


def test_a_misspelt_variable_of_a_section_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_KAFKA__BOOTSTRAPP", "a:1")
    with pytest.raises(
        SettingsError, match=r"kafka.bootstrapp: no such setting; did you mean boot"
    ):
        load()


def test_a_file_that_is_not_there_or_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"settings file .*none.toml is not there"):
        load(config=tmp_path / "none.toml")
    broken = write("zone = ", "broken.toml")
    with pytest.raises(SettingsError, match=r"cannot read settings from broken.toml"):
        load(config=broken)
    (tmp_path / "latin.toml").write_bytes(b'zone = "\xff"')
    with pytest.raises(SettingsError, match=r"cannot read settings from .*latin.toml"):
        load(config=tmp_path / "latin.toml")


def test_a_table_in_the_environment_that_is_no_json_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVERTICK_KAFKA", f'{{"sasl_password": "{SECRET}"')
    with pytest.raises(SettingsError, match=r'"kafka".* as JSON') as refused:
        load()
    assert SECRET not in str(refused.value)


def test_a_name_in_the_file_that_nobody_knows_is_refused() -> None:
    write('[clickhouse]\nuserr = "a"\n')
    with pytest.raises(
        SettingsError, match=r"clickhouse.userr: no such setting; did you mean user"
    ):
        load()


def test_secrets_are_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_CLICKHOUSE__PASSWORD", SECRET)
    found = load([f"kafka.sasl_password={SECRET}", "kafka.security_protocol=SASL_SSL"])
    for text in (repr(found), str(found), str(found.model_dump()), found.model_dump_json()):
        assert SECRET not in text
    assert found.clickhouse.password.get_secret_value() == SECRET
    assert found.kafka.client("test")["sasl.password"] == SECRET


@pytest.mark.parametrize(
    "flags",
    [
        [f"kafka.sasl_passwort={SECRET}"],
        [f"clickhouse={SECRET}"],
        [f"kafka.replication={SECRET}"],
        [f"clickhouse.url={SECRET}"],
        [f"kafka.sasl_password.inner={SECRET}"],
        [f"log_level={SECRET}"],
    ],
)
def test_secrets_are_in_no_error(flags: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        load(flags)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


class Options(Section):
    """Settings of some owner."""

    patterns: Words = ["eth*"]
    limit: Annotated[int, Field(ge=1)] = 8


def test_an_owner_checks_its_own_table() -> None:
    assert section(Options, {}, "collectors.x") == Options()
    found = section(Options, {"patterns": "a, b,", "limit": "3"}, "collectors.x")
    assert (found.patterns, found.limit) == (["a", "b"], 3)
    with pytest.raises(SettingsError, match=r"collectors.x.limitt: no such setting; .* limit"):
        section(Options, {"limitt": 1}, "collectors.x")
    with pytest.raises(SettingsError, match=r"collectors.x.limit: Input should be greater"):
        section(Options, {"limit": 0}, "collectors.x")
