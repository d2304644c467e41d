"""Which node stands for which client: at the start of a run, and while nodes come and go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from logging import INFO, WARNING

from flwr.common import Code, GetPropertiesIns, Scalar, log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.transport import SEEN
from fedsyn_flwr.server.requests import THREADS, reason_of

Answer = Mapping[str, Scalar]
Shape = tuple[int, int, int]


class Roster(dict[int, ClientProxy]):
    """Partition id → the node that stands for this client.

    The clients are fixed when the run starts. One whose node has left stays among them: messages
    to it fail at once, and so count against ``min-success-fraction``, until the node is back or
    another one has taken its place.

    Parameters
    ----------
    timeout : float
        Seconds that a node has to say who it is.
    shape : tuple of int, optional
        (C, H, W) that the images of nodes with their own data must have.

    Attributes
    ----------
    names : dict
        Partition → name of its node.
    examples : dict
        Partition → samples that its first node had.
    spares : dict
        Connected nodes without a place → their names.
    """

    def __init__(self, timeout: float, shape: Shape | None = None) -> None:
        super().__init__()
        self.timeout, self.shape = timeout, shape
        self.names: dict[int, str] = {}
        self.examples: dict[int, int] = {}
        self.spares: dict[str, str] = {}

    def gather(self, manager: ClientManager, expected: int, question: Answer | None = None) -> bool:
        """Wait for the whole federation, and give each node its place.

        Parameters
        ----------
        manager : ClientManager
            Flower's list of connected nodes.
        expected : int
            How many clients the run wants; 0 = as many as the first node says there are.
        question : dict, optional
            `transport.Probe`'s.

        Returns
        -------
        bool
            Whether every client sees the memory that the question is about.

        Raises
        ------
        UserError
            If the federation has another size, too few appear in time, or two nodes have one name.
        """
        deadline = time.monotonic() + self.timeout
        _wait(manager, max(expected, 1), 1, deadline)
        # All that are there at once, not one to begin with: every actor loads PyTorch to answer.
        answers = self._ask(dict(manager.all()), question)
        announced = int(next(iter(answers.values())).get("num-partitions", expected))
        if expected and announced != expected:
            raise UserError(
                f"num-clients = {expected}, but the federation has {announced} SuperNodes: "
                f'pass --federation-config "num-supernodes={expected}" to flwr run, '
                f"or --clients {expected} to fedsyn run"
            )
        _wait(manager, announced, announced, deadline)
        proxies = dict(manager.all())
        late = {node: p for node, p in proxies.items() if node not in answers}
        answers |= self._ask(late, question)
        places = partitions_of({node: answers[node] for node in proxies}, self.shape)
        found = {places[node]: proxy for node, proxy in proxies.items()}
        if len(found) != announced:
            raise UserError(
                f"{len(proxies)} SuperNodes answer for {len(found)} of {announced} clients"
            )
        self.update(sorted(found.items()))
        self.names = {places[node]: name_of(answers[node]) for node in proxies}
        counts = {node: int(answers[node].get("num-examples", 0)) for node in proxies}
        self.examples = {places[node]: count for node, count in counts.items()}
        return all(answers[node].get(SEEN, False) for node in proxies)

    def renew(self, manager: ClientManager) -> list[int]:
        """Give the places of nodes that left to nodes that came; returns these places.

        A node of the same name comes first, then others by their names, whoever was quicker.
        Nodes are asked only if they are new, so a federation that stays as it is costs no message.
        """
        present = dict(manager.all())
        seated = {proxy.cid for proxy in self.values()}
        self.spares = {node: name for node, name in self.spares.items() if node in present}
        known = seated | self.spares.keys()
        for node, proxy in present.items():
            if node not in known:
                self.spares[node] = self._newcomer(proxy)
        vacant = sorted(place for place, proxy in self.items() if proxy.cid not in present)
        return self._seat(present, vacant) if vacant and self.spares else []

    def _seat(self, present: Mapping[str, ClientProxy], vacant: list[int]) -> list[int]:
        free = {self.names[place]: place for place in vacant}
        taken = {name for name in self.names.values() if name not in free}
        order = sorted(self.spares.items(), key=lambda spare: (spare[1] not in free, *spare[::-1]))
        joined = []
        for node, name in order:
            if not free or not name or name in taken:
                continue
            held = name if name in free else min(free, key=lambda other: free[other])
            place = free.pop(held)
            log(INFO, "node %s takes the place of client %s (%s)", name, place, held)
            self[place], self.names[place] = present[node], name
            del self.spares[node]
            taken.add(name)
            joined.append(place)
        return joined

    def _newcomer(self, proxy: ClientProxy) -> str:
        """The name of a node that came during the run; empty if it cannot take part."""
        try:
            answer = _properties(proxy, self.timeout)
            if "node-name" not in answer and len(self) <= int(answer["partition-id"]):
                raise UserError(f"the run has no partition {int(answer['partition-id'])}")
            check_shape(answer, self.shape)
        except UserError as error:
            log(WARNING, "a node that came during the run is left out: %s", error)
            return ""
        return name_of(answer)

    def _ask(
        self, proxies: Mapping[str, ClientProxy], question: Answer | None
    ) -> dict[str, Answer]:
        """Node → its properties, of all nodes at the same time."""
        ask = partial(_properties, timeout=self.timeout, question=question)
        return dict(zip(proxies, THREADS.map(ask, proxies.values()), strict=True))


def partitions_of(answers: Mapping[str, Answer], shape: Shape | None) -> dict[str, int]:
    """Node → partition: its own word, or its place in the order of the nodes' names.

    So the same nodes have the same places in every run, whoever comes first.

    Raises
    ------
    UserError
        If two nodes have one name, or a node's images are not of the given shape.
    """
    names = {node: name_of(answer) for node, answer in answers.items() if "node-name" in answer}
    if not names:
        return {node: int(answer["partition-id"]) for node, answer in answers.items()}
    for name, count in Counter(names.values()).items():
        if count > 1:
            raise UserError(
                f"{count} SuperNodes are called {name}: give each another node-name in its "
                "--node-config"
            )
    for node in names:
        check_shape(answers[node], shape)
    ranks = {name: place for place, name in enumerate(sorted(names.values()))}
    return {node: ranks[name] for node, name in names.items()}


def name_of(answer: Answer) -> str:
    """What a node is called: its own name, or the partition that it was started with."""
    return str(answer.get("node-name", answer.get("partition-id")))


def check_shape(answer: Answer, shape: Shape | None) -> None:
    """Refuse a node whose own images are not of the given shape."""
    wanted, found = "x".join(map(str, shape or ())), str(answer.get("image-shape", ""))
    if shape and "node-name" in answer and found != wanted:
        raise UserError(
            f"SuperNode {name_of(answer)}: its images are {found} (channels, height, width), "
            f"the server's test images {wanted}: resize them"
        )


def _wait(manager: ClientManager, wanted: int, needed: int, deadline: float) -> None:
    while manager.num_available() < needed:
        if time.monotonic() > deadline:
            raise UserError(
                f"{manager.num_available()} of {wanted} clients appeared within node-timeout: "
                "start more SuperNodes or raise node-timeout"
            )
        time.sleep(0.1)


def _properties(proxy: ClientProxy, timeout: float, question: Answer | None = None) -> Answer:
    ins = GetPropertiesIns(config=dict(question or {}))
    try:
        answer = proxy.get_properties(ins, timeout=timeout, group_id=0)
    except Exception as error:
        raise UserError(f"a client cannot start: {reason_of(str(error))}") from None
    if answer.status.code != Code.OK:
        raise UserError(f"a client cannot start: {reason_of(answer.status.message)}")
    return answer.properties
