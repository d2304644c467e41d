"""The real `fedsyn` command over the fake app; data and model are not looked at.

``python fedsyn.py APP_DIR run --name hang-1 …``
"""

import sys
from functools import partial
from pathlib import Path

from fedsyn_flwr import preflight
from fedsyn_flwr.cli.app import main
from fedsyn_flwr.simulation import runner

app_dir = Path(sys.argv.pop(1))
preflight.check = lambda config, num_clients: None
runner.execute = partial(runner.execute, app_dir=app_dir)
main()
