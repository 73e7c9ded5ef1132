"""Which packages an extra of this distribution needs that are not installed.

The list is the distribution's own, as it was installed; it stands nowhere else.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

NAME = "evertick"
EXTRAS = ("agent", "stream", "remediate", "history", "embedded")
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w, -]*)\])?.*extra == ['\"](\w+)['\"]")


def missing(extra: str) -> list[str]:
    """Names of the packages that the extra needs and that are not there; none where the code runs
    without having been installed."""
    try:
        requirements = distribution(NAME).requires or []
    except PackageNotFoundError:
        return []
    absent: list[str] = []
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement)
        if found is None or found[3] != extra:
            continue
        if found[1] == NAME:
            for inner in (found[2] or "").split(","):
                absent += missing(inner.strip())
        elif not _installed(found[1]):
            absent.append(found[1])
    return absent


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
