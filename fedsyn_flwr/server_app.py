"""The ServerApp: read the configuration, build the parts, hand over."""

import time
import uuid
from logging import ERROR
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.server import ServerApp, ServerAppComponents, ServerConfig, SimpleClientManager

from fedsyn_flwr import assembly, config, preflight, registry
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.evaluation import Evaluator
from fedsyn_flwr.server import FedServer
from fedsyn_flwr.tracking import Tracker, default_results, write_text
from fedsyn_flwr.worker import flat_model, resident


def run_folder(run_config: config.RunConfig) -> Path:
    """Where this run's results go; named after method, dataset, seed and time by default."""
    root = Path(str(run_config.get("results-dir") or default_results()))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    parts = (run_config.get(key, "") for key in ("strategy", "dataset"))
    default = "-".join([*map(str, parts), f"seed{run_config.get('seed', '')}", stamp])
    return root / str(run_config.get("run-name") or default)


def build(run_config: config.RunConfig) -> ServerAppComponents:
    """All parts of the server.

    Raises
    ------
    UserError
        For anything wrong in the configuration or the data; nothing has been written then.
    """
    settings = config.load(run_config)
    preflight.check(settings, settings.federation.num_clients or 1)
    device = assembly.device(settings)
    test = resident(settings, assembly.images(settings, "test"), device)
    tracker = Tracker(run_folder(run_config).absolute())
    run = uuid.uuid4().hex[:12]
    flat = flat_model(settings, test.shape, device)
    tracker.config(settings, run=run, layout=flat.layout, parameters=flat.trainable.numel())
    method = registry.method(settings.federation.strategy)
    evaluator = Evaluator(test, settings.output.eval_batch_size)
    strategy = method.strategy(settings, flat, evaluator, run)
    manager = SimpleClientManager()
    return ServerAppComponents(
        server=FedServer(client_manager=manager, strategy=strategy, tracker=tracker),
        config=ServerConfig(
            num_rounds=settings.federation.num_server_rounds,
            round_timeout=settings.federation.round_timeout,
        ),
        client_manager=manager,
    )


def server_fn(context: Context) -> ServerAppComponents:
    """Flower's entry. A user's mistake ends the run with one line and no traceback."""
    try:
        return build(context.run_config)
    except UserError as error:
        log(ERROR, "error: %s", error)
        report_failure(run_folder(context.run_config), str(error))
        raise SystemExit(2) from None


def report_failure(folder: Path, reason: str) -> None:
    """Say in the status file why nothing started, unless a run lives there."""
    if folder.is_absolute() and not folder.exists():
        folder.mkdir(parents=True)
        content = config_error(reason)
        write_text(folder / "status.json", content)


def config_error(reason: str) -> str:
    """The status file of a run that never started."""
    import json

    return json.dumps({"status": "failed", "rounds": 0, "reason": reason}) + "\n"


app = ServerApp(server_fn=server_fn)
