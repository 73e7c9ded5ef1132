"""What an extra needs is read from the distribution as it was installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from evertick import extras


class Distribution:
    def __init__(self, *requires: str) -> None:
        self.requires = list(requires)


def test_names_what_is_not_there_through_inner_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {
        extras.NAME: Distribution(
            "pydantic>=2",
            'evertick[history,stream]; extra == "embedded"',
            "chdb==4.4.0 ; extra == 'embedded'",
            'lz4>=4.4; extra == "history"',
            'aiokafka==0.14.0; extra == "stream"',
            'ruff; extra == "dev"',
        ),
        "lz4": Distribution(),
    }

    def distribution(name: str) -> Distribution:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(extras, "distribution", distribution)
    assert extras.missing("embedded") == ["aiokafka", "chdb"]
    assert extras.missing("history") == []
    del there[extras.NAME]
    assert extras.missing("embedded") == []
