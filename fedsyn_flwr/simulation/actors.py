"""Living with Ray: replacing dead actors, and knowing of how many machines there are.

Flower 1.42 puts a killed actor back into its pool: it answers every later task at once with
ActorDiedError and so eats the whole queue, round after round. Here the pool gets a new actor for
a dead one, and `requests.exchange` repeats the message that died with it.
"""

from typing import Any


def replace_dead_actors() -> bool:
    """Make Flower's simulation pool replace an actor that died; once per process.

    Returns
    -------
    bool
        Whether there is a pool to mend: not on a machine without Ray, nor in a Flower whose pool
        works differently.
    """
    try:
        import ray
        from flwr.simulation.ray_transport.ray_actor import BasicActorPool
    except ImportError:
        return False
    fetch = getattr(BasicActorPool, "fetch_result_and_return_actor_to_pool", None)
    if fetch is None:
        return False
    if getattr(fetch, "replaces_dead_actors", False):
        return True

    def fetch_or_replace(pool: Any, future: Any) -> Any:
        try:
            return fetch(pool, future)
        except ray.exceptions.RayActorError:
            # Flower's handler returns whatever stands here to the pool.
            pool._future_to_actor[future] = pool.create_actor_fn()
            raise

    fetch_or_replace.replaces_dead_actors = True  # type: ignore[attr-defined]
    setattr(BasicActorPool, fetch.__name__, fetch_or_replace)
    return True
