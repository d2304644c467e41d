"""What Ray tells of itself: whether it plays the clients, and on how many machines."""


def in_simulation() -> bool:
    """Whether Ray plays this process's clients."""
    try:
        import ray
    except ImportError:
        return False
    return bool(ray.is_initialized())


def machines() -> int:
    """How many machines of a Ray cluster play this simulation's clients; 1 without Ray."""
    if not in_simulation():
        return 1
    import ray

    return max(1, sum(bool(node["Alive"] and node["Resources"].get("CPU")) for node in ray.nodes()))
