"""Dead actors are replaced and their messages repeated."""

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.common import Code, FitIns, FitRes, Parameters, Status

from fedsyn_flwr.compute.cluster import machines
from fedsyn_flwr.server.requests import ATTEMPTS, call, is_transient
from fedsyn_flwr.simulation.actors import replace_dead_actors

EMPTY = Parameters(tensors=[b"1234"], tensor_type="numpy.ndarray")
INS = FitIns(EMPTY, {"round": 3})
DIED = "Message contains an Error (reason: <class 'ray.exceptions.ActorDiedError'>:<'gone'>)"


class Flaky:
    """Fails ``times`` times with a message, then answers."""

    def __init__(self, times: int, message: str) -> None:
        self.times, self.message, self.calls = times, message, 0

    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        self.calls += 1
        if self.calls <= self.times:
            raise ValueError(self.message)
        return FitRes(Status(Code.OK, ""), EMPTY, 1, {})


def test_a_message_that_died_with_its_process_is_repeated() -> None:
    proxy = Flaky(ATTEMPTS - 1, DIED)
    reply = call(0, proxy, INS, None)
    assert reply.result is not None
    assert proxy.calls == ATTEMPTS


def test_it_is_given_up_after_some_attempts() -> None:
    proxy = Flaky(100, DIED)
    assert "ActorDiedError" in call(0, proxy, INS, None).reason
    assert proxy.calls == ATTEMPTS


def test_a_failure_of_the_client_itself_is_not_repeated() -> None:
    proxy = Flaky(100, "ClientAppException occurred. Message: division by zero")
    assert "division by zero" in call(0, proxy, INS, None).reason
    assert proxy.calls == 1
    assert not is_transient("division by zero")


def test_pool_gets_a_new_actor_for_a_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own pool code, with Ray's answers played."""
    import ray
    from flwr.simulation.ray_transport.ray_actor import BasicActorPool

    assert replace_dead_actors()
    assert replace_dead_actors()  # a second time changes nothing
    pool = BasicActorPool.__new__(BasicActorPool)
    pool.create_actor_fn = lambda: "new actor"
    pool.pool, pool._future_to_actor = [], {"f1": "dead actor", "f2": "live actor"}

    def get(future: str) -> Any:
        if future == "f1":
            raise ray.exceptions.RayActorError
        return "cid", "message", "context"

    monkeypatch.setattr("flwr.simulation.ray_transport.ray_actor.ray", SimpleNamespace(get=get))
    with pytest.raises(ray.exceptions.RayActorError):
        pool.fetch_result_and_return_actor_to_pool("f1")
    pool.add_actor_back_to_pool("f1")  # what Flower's backend does next
    assert pool.fetch_result_and_return_actor_to_pool("f2") == ("message", "context")
    assert pool.pool == ["new actor", "live actor"]


def test_machines_are_those_of_rays_nodes_that_have_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machines() == 1  # without Ray
    alive = {"Alive": True, "Resources": {"CPU": 2.0}}
    nodes = [alive, alive, {"Alive": False, "Resources": {}}, {"Alive": True, "Resources": {}}]
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    assert machines() == 2
