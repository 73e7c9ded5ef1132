"""Names of things: the same from whichever side they are said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import identity

_NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
_INTERFACE = st.from_regex(r"[A-Za-z0-9_.@-]{1,15}", fullmatch=True)


@given(_NAME, _INTERFACE, _NAME, _INTERFACE)
def test_a_link_is_the_same_from_both_ends(a: str, port_a: str, b: str, port_b: str) -> None:
    one, other = identity.nic(a, port_a), identity.nic(b, port_b)
    assert identity.link(one, other) == identity.link(other, one)
    assert identity.parts(identity.link(one, other)).kind == "link"


@given(_NAME, _INTERFACE)
def test_what_is_put_together_can_be_taken_apart(node: str, interface: str) -> None:
    assert identity.parts(identity.nic(node, interface)) == ("nic", node, interface)
    assert identity.parts(identity.node(node)) == ("node", node, "")
    assert identity.parts(identity.rank(node, 7)) == ("rank", "", f"{node}/7")
    assert identity.parts(identity.job(node)) == ("job", "", node)
    assert identity.parts(identity.path(node, "10.0.0.1", "10.0.0.2")) == (
        "path",
        node,
        "10.0.0.1->10.0.0.2",
    )


@pytest.mark.parametrize(
    "address", ["0000:9b:00.0", "9b:00", "9B:00.0", "0000:9b:00", "00000000:9B:00.0", " 9b:00 "]
)
def test_a_gpu_has_one_name_in_all_spellings_of_its_address(address: str) -> None:
    assert identity.gpu("node-3", address) == "gpu:node-3/0000:9b:00.0"


@pytest.mark.parametrize("address", ["", "9b", "9b:0g", "1:9b:00.0", "9b:00.8", "GPU-1234"])
def test_what_is_no_pci_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        identity.pci(address)


@pytest.mark.parametrize(
    "subject",
    ["", "eth1", "nic:", "nic: x", "switch:a", "nic:a b", "nic:/eth1", "node:" + "x" * 600],
)
def test_what_is_no_subject_is_refused(subject: str) -> None:
    with pytest.raises(ValueError, match="not a subject"):
        identity.check_subject(subject)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "a" * 300, "ä"])
def test_what_is_no_node_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a node name"):
        identity.check_node(name)


@given(st.lists(st.one_of(st.text(max_size=20), st.integers()), min_size=1, max_size=5))
def test_an_id_follows_from_the_content_alone(content: list[str | int]) -> None:
    made = identity.content_id(*content)
    assert made == identity.content_id(*content)
    assert len(made) == 32
    assert set(made) <= set("0123456789abcdef")
    assert made != identity.content_id(*content, "more")


def test_ids_know_where_one_part_ends() -> None:
    assert identity.content_id("ab", "c") != identity.content_id("a", "bc")
