"""The size of a simulation: clients, actors, and what of the machine each actor gets."""

from dataclasses import dataclass

from fedsyn_flwr.compute.hardware import cpu_count, gpu_count
from fedsyn_flwr.config import Scalar
from fedsyn_flwr.errors import UserError


@dataclass(frozen=True)
class Options:
    """Size of the simulation.

    Attributes
    ----------
    clients : int
        Virtual clients, K.
    actors : int
        Processes that take turns at playing them.
    cpus_per_client : int
        Cores Ray reserves for an actor.
    gpus_per_client : float
        Share of a GPU Ray reserves for an actor.
    """

    clients: int
    actors: int
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0

    @classmethod
    def fit(
        cls,
        clients: int,
        cpus_per_client: int = 1,
        gpus_per_client: float = 0.0,
        actors: int | None = None,
    ) -> "Options":
        """As many actors as the machine holds and the clients can use.

        Raises
        ------
        UserError
            When the machine cannot hold a single one.
        """
        cores, gpus = cpu_count(), gpu_count() if gpus_per_client > 0 else 0
        for name, value in (("clients", clients), ("cpus-per-client", cpus_per_client)):
            _at_least_one(name, value)
        if cpus_per_client > cores:
            raise UserError(f"--cpus-per-client {cpus_per_client}: this machine has {cores} cores")
        if gpus_per_client < 0 or gpus_per_client > gpus:
            have = f"PyTorch sees {gpus} CUDA GPUs here; 0 shares the machine's device freely"
            raise UserError(f"--gpus-per-client {gpus_per_client:g}: {have}")
        if gpus_per_client > 1 and gpus_per_client % 1:
            raise UserError(
                f"--gpus-per-client {gpus_per_client:g}: must be a whole number, or a share below 1"
            )
        most = min(clients, actors if actors is not None else cores // cpus_per_client)
        _at_least_one("actors", most)
        if gpus_per_client > 0:
            most = min(most, _per_gpu(gpus, gpus_per_client))
        return cls(clients, most, cpus_per_client, gpus_per_client)

    @property
    def cpus(self) -> int:
        """Cores of all actors together: the number that Ray is told."""
        return self.actors * self.cpus_per_client

    def federation(self) -> dict[str, Scalar]:
        """Keys of ``--federation-config``."""
        return {
            "num-supernodes": self.clients,
            "client-resources-num-cpus": self.cpus_per_client,
            "client-resources-num-gpus": float(self.gpus_per_client),
            "init-args-num-cpus": self.cpus,
        }

    def device(self, device: str) -> str:
        """The device in words; asks PyTorch only where the configuration leaves it open."""
        if device == "auto":
            device = "cuda" if gpu_count() else "cpu"
        if device == "cpu":
            return device
        share = self.gpus_per_client
        return f"{device} ({f'{share:g} GPU each' if share else 'shared by all actors'})"


def likely_cpus(clients: int | None, cpus_per_client: int, actors: int | None) -> int:
    """`Options.cpus` as far as it can be told before the configuration is known."""
    most = actors if actors is not None else cpu_count() // max(cpus_per_client, 1)
    return max(1, min(most, clients or most) * cpus_per_client)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"--{name} {value}: must be at least 1")


def _per_gpu(gpus: int, share: float) -> int:
    """Actors that fit: Ray never spreads a share below 1 over two GPUs."""
    return int(gpus // share) if share >= 1 else gpus * int(1 / share + 1e-9)
