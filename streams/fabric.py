"""What broke in the network, judged by all symptoms together: a path, a link, a switch or a node.

A pure function of the symptoms and the cabling, so that it does not matter in which order the
symptoms came. Every dead path is an edge between two cables (or NICs, where the cabling is unknown);
a cable that lost carrier is known dead and explains the edges at it. Of the other edges the cable
common to most is blamed, again and again, until only edges remain that have nothing in common:

- one cable explains everything: the link;
- one edge and no more: the path, either end or what lies between may be at fault;
- most of the cables of one switch: the switch;
- cables of one node that several peers have lost every path to: the node;
- else several links that failed together.

Paths that have become worse are judged in the same way where nothing is dead. Where paths lose
packets, single deaths follow from that; only deaths of all of them at once are a fault of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from statistics import median
from typing import NamedTuple

from schemas import identity
from schemas.incident import Symptom
from schemas.signal import Severity, Signal
from streams.explain import KNOWN_TIE, PLACE_AND_TIME, SAME_DEVICE, Diagnosis
from streams.victims import Inventory

NIC_KINDS = ("link.flapping", "link.down", "interface.errors")
DEATHS = ("path.flapping", "path.down", "path.failover")
KINDS = (*NIC_KINDS, *DEATHS, "path.degraded")
LOST = ("link.flapping", "link.down")

_TOGETHER_NS = 200_000_000
_MOST = 0.75
_LEADS = (*LOST, "path.flapping", "path.down", "path.degraded", "interface.errors", "path.failover")


class Ends(NamedTuple):
    """NICs that a symptom is about; the far one only of paths. Empty where unknown."""

    near: str
    far: str
    node: str
    peer: str

    def nics(self) -> list[str]:
        """Those that are known."""
        return [nic for nic in (self.near, self.far) if nic]

    def places(self) -> set[str]:
        """NICs and nodes that it touches."""
        nodes = {identity.node(name) for name in (self.node, self.peer) if name}
        return {*self.nics(), *nodes}


def of_network(one: Signal | Symptom) -> bool:
    """It is of ``KINDS``, and on what such a symptom can be on; the contract lets a detector say
    anything of anything."""
    return one.kind in KINDS and _parts(one.subject).kind == (
        "nic" if one.kind in NIC_KINDS else "path"
    )


def ends(one: Signal | Symptom, inventory: Inventory) -> Ends:
    """The NICs that a symptom of ``KINDS`` is about."""
    kind, node, name = _parts(one.subject)
    if kind != "path":
        return Ends(one.subject if kind == "nic" else "", "", node, "")
    source, _, destination = name.partition("->")
    # Attributes are whatever a detector says; what names nothing is passed over.
    peer = str(one.attributes.get("peer", ""))
    if identity.NODE.fullmatch(peer) is None:
        peer = ""
    return Ends(
        _nic(node, str(one.attributes.get("interface", "")), source, inventory),
        _nic(peer, str(one.attributes.get("peer_interface", "")), destination, inventory),
        node,
        peer,
    )


def cut_off(symptoms: Iterable[Symptom]) -> set[str]:
    """Nodes that several others have lost every path to. None of them where nobody reaches anybody:
    then the fault lies between."""
    pairs = _parted(symptoms)
    blamed, loose = _common(set(), pairs)
    nodes = {node for pair in pairs for node in pair}
    return blamed if blamed and 2 * (len(blamed) + len(loose)) <= len(nodes) else set()


def only_pair(symptoms: Iterable[Symptom], inventory: Inventory) -> set[str]:
    """The two nodes that lost every path to one another, where there are no others who could tell
    which of them is cut off."""
    nodes = {node for pair in _parted(symptoms) for node in pair}
    return nodes if nodes and inventory.topology.are_all(nodes) and len(nodes) == 2 else set()


def _parted(symptoms: Iterable[Symptom]) -> set[tuple[str, str]]:
    """Pairs of nodes that have lost every path to one another."""
    pairs = set()
    for one in symptoms:
        if one.kind == "path.down" and one.attributes.get("paths_alive") == 0:
            a, b = sorted((_parts(one.subject).node, str(one.attributes.get("peer", ""))))
            pairs.add((a, b))
    return pairs


def diagnose(symptoms: Sequence[Symptom], inventory: Inventory) -> Diagnosis | None:
    """What broke; None where no symptom is of the network."""
    case = _Case(symptoms, inventory)
    return case.diagnosis() if case.ours else None


class _Case:
    """The symptoms of one incident, laid out for judgement."""

    def __init__(self, symptoms: Sequence[Symptom], inventory: Inventory) -> None:
        self.symptoms = symptoms
        self.inventory = inventory
        self.topology = inventory.topology
        self.ours = [i for i, one in enumerate(symptoms) if of_network(one)]
        self.ends = {i: ends(symptoms[i], inventory) for i in self.ours}
        self._nic_of = self._addresses()
        self.retransmits_known = all(
            inventory.nic_of(*_source(one)) is not None
            for one in symptoms
            if one.kind == "tcp.retransmits"
        )

    def diagnosis(self) -> Diagnosis:
        lost = self._cables(LOST)
        deaths = self._edges(DEATHS)
        worse = self._edges(("path.degraded",))
        flaps = any(self.symptoms[i].kind.endswith(".flapping") for i in self.ours)
        if lost or (deaths and not (worse and not self._at_once())):
            return self._name(lost, deaths, "flapping" if flaps else "down")
        return self._name(self._cables(("interface.errors",)), worse | deaths, "degraded")

    def _name(self, dead: set[str], edges: set[tuple[str, str]], how: str) -> Diagnosis:
        dead |= {a for a, b in edges if a == b}
        blamed, loose = _common(dead, edges)
        if not blamed and len(loose) <= 1:
            return self._path(how)
        if len(blamed) == 1 and not loose:
            return self._link(next(iter(blamed)), how, bool(dead))
        count = Counter(filter(None, (self._switch(one) for one in blamed)))
        count.update(filter(None, (self._switch_of_edge(edge) for edge in loose)))
        for switch, links in sorted(count.items(), key=lambda item: (-item[1], item[0])):
            total = len(self.topology.behind(switch))
            # All of them; of the paths between n links n - 1 suffice to explain every death.
            most = max(2, total - (0 if dead else 1))
            if links >= most or (links >= 3 and 2 * links >= total):
                return self._switch_down(switch, links, total, blamed, how)
        if how != "degraded":
            pair = only_pair(self.symptoms, self.inventory)
            heard = {self.ends[i].node for i in self.ours}
            for node in sorted(pair or cut_off(self.symptoms)):
                cables = {one for one in blamed if self._host(one) == node}
                # Of a pair, a dead path blames neither end; but a host that runs would speak, too.
                if not pair or node not in heard:
                    cables |= {end for edge in loose for end in edge if self._host(end) == node}
                if len(cables) >= 2:
                    return self._node(node, cables)
        return self._several(blamed, loose, how)

    def _path(self, how: str) -> Diagnosis:
        lead = self._lead(self.ours)
        if self.symptoms[lead].kind == "interface.errors":
            return self._link(self._cable(self.ends[lead].near), how, False)
        paths = sorted(
            one.subject for i in self.ours if (one := self.symptoms[i]).subject.startswith("path:")
        )
        hurt = frozenset(nic for i in self.ours for nic in self.ends[i].nics())
        return Diagnosis(
            f"path.{how}",
            paths[0],
            SAME_DEVICE if len(self.symptoms) == 1 else self._known(),
            lead,
            "",
            "One path only: look at both ends and at the switch and its routing between them.",
            frozenset(),
            hurt or frozenset(paths),
            how != "degraded",
        )

    def _link(self, cable: str, how: str, seen: bool) -> Diagnosis:
        """One cable; ``seen``: an end of it itself says so."""
        here = [i for i in self.ours if cable in self._cables_of(i)]
        lead = self._lead(here or self.ours)
        one = self.symptoms[lead]
        nics = self._nics(cable)
        own = one.kind in NIC_KINDS
        paths = [self.symptoms[i] for i in here if self.symptoms[i].subject.startswith("path:")]
        kind = one.kind if own else f"link.{how}"
        if own and one.kind == "interface.errors" and how != "degraded":
            kind = f"link.{how}"
        peers = len({self._far_cable(i, cable) for i in here if self.ends[i].peer})
        of_paths = (
            f"{len(paths)} {'path' if len(paths) == 1 else 'paths'}, {peers} at the other end"
        )
        summary = ""
        if not own and how == "degraded":
            summary = f"{_words(cable)}: {_worse(paths)} on {of_paths}; {one.summary}"
        elif not own:
            verb = "dead again and again" if how == "flapping" else "dead"
            summary = f"{_words(cable)}: {verb} though no carrier was lost ({of_paths})"
        certain = {symptom.subject for symptom in self.symptoms} <= set(nics)
        subject = self._subject(cable, lead)
        return Diagnosis(
            kind,
            subject,
            SAME_DEVICE if certain else self._known(),
            lead,
            summary,
            ""
            if own
            else "Nothing passes though carrier is there: look at the port's forwarding, its queues "
            "and filters, and at the transceivers."
            if how != "degraded"
            else "Look for errors, drops and a changed speed at both ends of this cable; clean or "
            "replace it.",
            frozenset(nics),
            frozenset((subject,)),
            kind in ("link.down", "link.flapping"),
        )

    def _switch_down(
        self, switch: str, links: int, total: int, blamed: set[str], how: str
    ) -> Diagnosis:
        behind = frozenset(self.topology.behind(switch))
        here = [i for i in self.ours if behind & set(self.ends[i].nics())] or self.ours
        subject = identity.node(switch)
        if how == "degraded":
            kind, says = "switch.degraded", f"{_worse(self.symptoms)} on most paths across it"
        else:
            kind = "switch.down"
            carrier = len(self._cables(LOST) & {self._cable(nic) for nic in behind})
            says = (
                f"{carrier} of its {total} links have no carrier"
                if carrier
                else (f"nothing passes between its {total} links, though they have carrier")
            )
        return Diagnosis(
            kind,
            subject,
            self._known(),
            self._lead(here),
            f"{switch}: {says}; that is one fault, not {max(links, len(blamed))}",
            "Look at the switch: its power, its control plane, its uplinks.",
            frozenset(self.topology.ports(switch)),
            frozenset((subject, *behind)),
            how != "degraded",
            None if how == "degraded" else Severity.CRITICAL,
        )

    def _node(self, node: str, cables: set[str]) -> Diagnosis:
        peers = {
            other
            for i in self.ours
            for other in (self.ends[i].node, self.ends[i].peer)
            if node in (self.ends[i].node, self.ends[i].peer)
        } - {node, ""}
        nics = {nic for i in self.ours for nic in self.ends[i].nics() if _node_of(nic) == node}
        subject = identity.node(node)
        here = [i for i in self.ours if node in (self.ends[i].node, self.ends[i].peer)]
        return Diagnosis(
            "node.unreachable",
            subject,
            self._known(),
            self._lead(here),
            f"{node}: {len(peers)} {'peer' if len(peers) == 1 else 'peers'} lost every path to it, "
            f"over {len(cables)} links",
            "Look whether the host runs: its console, its power, its kernel log.",
            frozenset(nics),
            frozenset((subject,)),
            True,
            Severity.CRITICAL,
        )

    def _several(self, blamed: set[str], loose: set[tuple[str, str]], how: str) -> Diagnosis:
        weight = Counter(cable for i in self.ours for cable in set(self._cables_of(i)))
        ranked = sorted(blamed, key=lambda one: (-weight[one], one)) or sorted(
            end for edge in loose for end in edge
        )
        lead = self._lead([i for i in self.ours if ranked[0] in self._cables_of(i)])
        names = ", ".join(_words(one) for one in ranked[:4])
        more = f" and {len(ranked) - 4} more" if len(ranked) > 4 else ""
        which = "links" if blamed else "of these links"
        return Diagnosis(
            f"link.{how}",
            self._subject(ranked[0], lead),
            PLACE_AND_TIME,
            lead,
            f"{len(blamed) + len(loose)} {which} {how} together: {names}{more}",
            "They failed at one time: look first at what they have in common.",
            frozenset(nic for one in blamed for nic in self._nics(one)),
            frozenset(self._subject(one, lead) for one in ranked),
            how != "degraded",
        )

    def _addresses(self) -> dict[str, str]:
        """NICs by node and address, as the symptoms themselves tell: both ends report a path, each
        knows its own interface best."""
        known = {}
        for i, one in self.ends.items():
            if one.near and one.peer:
                known[f"{one.node}/{self._addressed(i)[0]}"] = one.near
        return known

    def _addressed(self, i: int) -> tuple[str, str]:
        source, _, destination = _parts(self.symptoms[i].subject).name.partition("->")
        return source, destination

    def _at_once(self) -> bool:
        """Most paths died in one moment, not each in its own."""
        deaths = [
            self.symptoms[i].raised_ns for i in self.ours if self.symptoms[i].kind == "path.down"
        ]
        peers = {self._pair(i) for i in self.ours if self.symptoms[i].kind == "path.down"}
        if len(peers) < 2:
            return False
        middle = median(deaths)
        near = sum(abs(at_ns - middle) <= _TOGETHER_NS for at_ns in deaths)
        return near >= _MOST * len(deaths)

    def _known(self) -> float:
        return KNOWN_TIE if self.retransmits_known else PLACE_AND_TIME

    def _lead(self, of: Sequence[int]) -> int:
        return min(
            of,
            key=lambda i: (_LEADS.index(self.symptoms[i].kind), self.symptoms[i].subject),
        )

    def _cables(self, kinds: Sequence[str]) -> set[str]:
        return {
            self._cable(self.ends[i].near)
            for i in self.ours
            if self.symptoms[i].kind in kinds and self.ends[i].near
        }

    def _edges(self, kinds: Sequence[str]) -> set[tuple[str, str]]:
        return {self._pair(i) for i in self.ours if self.symptoms[i].kind in kinds}

    def _pair(self, i: int) -> tuple[str, str]:
        """The cables at the two ends of a path; a node or an address where no NIC is known."""
        near, far, node, peer = self.ends[i]
        source, destination = self._addressed(i)
        here, there = f"{node}/{source}", f"{peer}/{destination}"
        near, far = near or self._nic_of.get(here, ""), far or self._nic_of.get(there, "")
        a = self._cable(near) if near else here
        b = self._cable(far) if far else there
        return (a, b) if a <= b else (b, a)

    def _cables_of(self, i: int) -> tuple[str, ...]:
        if self.symptoms[i].subject.startswith("path:"):
            return self._pair(i)
        return (self._cable(self.ends[i].near),)

    def _far_cable(self, i: int, cable: str) -> str:
        a, b = self._pair(i)
        return a if b == cable else b

    def _subject(self, end: str, lead: int) -> str:
        """The name of an end: where neither NIC nor cable is known, that of the path to it."""
        return end if end.startswith(("link:", "nic:")) else self.symptoms[lead].subject

    def _cable(self, nic: str) -> str:
        return self.topology.link_of(nic) or nic

    def _nics(self, cable: str) -> tuple[str, ...]:
        return self.topology.ends(cable) or ((cable,) if cable.startswith("nic:") else ())

    def _switch(self, cable: str) -> str | None:
        return next(filter(None, map(self.topology.switch_of, self._nics(cable))), None)

    def _switch_of_edge(self, edge: tuple[str, str]) -> str | None:
        a, b = map(self._switch, edge)
        return a if a == b else None

    def _host(self, cable: str) -> str:
        switch = self._switch(cable)
        nodes = [_node_of(nic) for nic in self._nics(cable)] or [cable.partition("/")[0]]
        return next((node for node in nodes if node != switch), "")


def _common(
    dead: set[str], edges: Iterable[tuple[str, str]]
) -> tuple[set[str], set[tuple[str, str]]]:
    """The fewest ends (nearly: the commonest first) that explain the edges, given those that are
    known dead, and the edges that have nothing in common with any other."""
    blamed = set(dead)
    left = {edge for edge in edges if not blamed.intersection(edge)}
    while left:
        degree = Counter(end for edge in left for end in edge)
        most = max(degree.values())
        if most == 1:
            break
        worst = min(end for end, times in degree.items() if times == most)
        blamed.add(worst)
        left = {edge for edge in left if worst not in edge}
    return blamed, left


_parts = lru_cache(8192)(identity.parts)
"""Each signal has all symptoms of its incident looked at again."""


def _nic(node: str, interface: str, address: str, inventory: Inventory) -> str:
    if interface and node:
        with suppress(ValueError):
            return identity.check_subject(identity.nic(node, interface))
    return inventory.nic_of(node, address) or ""


def _source(one: Symptom) -> tuple[str, str]:
    _, node, name = _parts(one.subject)
    return node, name.partition("->")[0]


def _node_of(nic: str) -> str:
    return _parts(nic).node


def _words(cable: str) -> str:
    if cable.startswith(("link:", "nic:")):
        cable = cable.partition(":")[2]
    return cable.replace("--", " – ")


def _worse(symptoms: Iterable[Symptom]) -> str:
    """Loss, delay or rate: what most of the paths say."""
    said = Counter(
        str(one.attributes["degraded"]) for one in symptoms if "degraded" in one.attributes
    )
    return max(sorted(said), key=lambda one: said[one], default="worse")
