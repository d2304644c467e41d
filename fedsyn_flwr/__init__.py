"""fedsyn-flwr: HFMDS-FL and MrTF, with their baselines, as one Flower app.

The rooms, each importing only those after it: `cli` and the two Flower apps (`server_app`,
`client_app`), `simulation`, `report`, `server` and `client`, `build` and `preflight`, `synthesis`
and `privacy`, `messages`, `data` and `models`, `compute`, and what everyone may use (`config`,
`registry`, `losses`, `rng`, `files`, `errors`). Methods live beside the package, a file each in
`strategies/` and in `clients/`. docs/architecture.md shows a round on its way through them.
"""

__version__ = "0.1.0"
