"""The ServerApp: Flower's entry, quick to load; the work is in `server.run`."""

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from flwr.app import Context
from flwr.common.logger import update_console_handler
from flwr.server import ServerApp, ServerAppComponents


def wants_colours(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether what is written to a stream may be coloured: on a terminal that has colours.

    ``NO_COLOR`` set to anything says no (no-color.org), ``TERM=dumb`` has none.
    """
    plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return stream.isatty() and not plain


def server_fn(context: Context) -> ServerAppComponents:
    """The parts of the run's server."""
    # Here, not above: a simulation loads this file, then the ClientApp's, then starts its actors,
    # and PyTorch would keep them waiting.
    from fedsyn_flwr.server.run import components
    from fedsyn_flwr.simulation.actors import replace_dead_actors

    replace_dead_actors()
    return components(context)


if not wants_colours(sys.stderr, os.environ):
    update_console_handler(colored=False)
app = ServerApp(server_fn=server_fn)
