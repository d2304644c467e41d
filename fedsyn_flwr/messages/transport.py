"""Whether messages carry their arrays or point at shared memory.

`shared_memory` is how it is done, `payload` where. Memory is shared in a simulation on one machine,
once every client has been seen to see it; everywhere else (SuperNodes, whose processes may end
before their answer is read; other machines of a Ray cluster; systems without such memory) messages
carry their arrays. The results are the same bit for bit.
"""

import json

import numpy as np

from fedsyn_flwr.compute.cluster import in_simulation, machines
from fedsyn_flwr.compute.process import many_open_files
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages import shared_memory

PROBE = "memory-probe"
SEEN = "sees-memory"


class Probe:
    """A piece of shared memory that the clients are asked to look at; there as long as this object.

    Parameters
    ----------
    transport : str
        ``auto``, ``shared`` or ``inline``.

    Attributes
    ----------
    question : dict
        For the clients; empty where there is nothing to look at.
    """

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.question: dict[str, str] = {}
        if transport != "inline" and shared_memory.supported():
            self.file = shared_memory.File()
            self.question[PROBE] = json.dumps(self.file.write([np.arange(16)]))

    def decide(self, all_see: bool) -> bool:
        """Whether messages are to point at shared memory, given the clients' answers.

        Raises
        ------
        UserError
            If the run asks for it and it cannot be.
        """
        all_see = all_see and bool(self.question)  # whoever was not asked cannot have seen it
        if self.transport == "shared" and not all_see:
            raise UserError(
                'transport = "shared", but not every client sees the server\'s memory: it takes '
                'Linux and one machine; use "auto" or "inline"'
            )
        if self.transport == "auto" and not (in_simulation() and machines() == 1):
            return False
        if all_see:
            many_open_files()  # every answer that waits for its turn is one
        return all_see


def seen(probe: object) -> bool:
    """Whether this process sees what the server asks it to look at."""
    try:
        (numbers,) = shared_memory.opened(json.loads(str(probe)))
    except (shared_memory.SenderGone, KeyError, TypeError, ValueError, OSError):
        return False
    return numbers.tolist() == list(range(16))
