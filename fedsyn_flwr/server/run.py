"""The server of a run: read the configuration, build the parts, hand over."""

import json
import re
import time
import uuid
from logging import ERROR, WARNING
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.server import ServerAppComponents, ServerConfig, SimpleClientManager

from fedsyn_flwr import build, config, preflight, registry
from fedsyn_flwr.build import flat_model, resident
from fedsyn_flwr.compute.process import keep_freed_memory
from fedsyn_flwr.data.own import SCHEME
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.files import write_whole
from fedsyn_flwr.server.checkpoint import Checkpoint, Checkpoints
from fedsyn_flwr.server.evaluation import Evaluator
from fedsyn_flwr.server.loop import FedServer
from fedsyn_flwr.server.method_defaults import decided, remarks
from fedsyn_flwr.server.parts import Parts
from fedsyn_flwr.server.tracking import Tracker, default_results


def run_folder(run_config: config.RunConfig) -> Path:
    """Where this run's results go; named after method, dataset, seed and time by default."""
    root = Path(str(run_config.get("results-dir") or default_results())).absolute()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    parts = (run_config.get(key, "") for key in ("strategy", "dataset"))
    default = "-".join([*map(str, parts), f"seed{run_config.get('seed', '')}", stamp])
    default = re.sub(r"[^\w.+=-]", "_", default)  # a plug-in is called module:METHOD
    return root / str(run_config.get("run-name") or default)


def build_server(run_config: config.RunConfig) -> ServerAppComponents:
    """All parts of the server.

    Raises
    ------
    UserError
        For anything wrong in the configuration or the data; nothing has been written then.
    """
    keep_freed_memory()
    settings = config.load(run_config)
    if settings.data.partition == SCHEME:
        preflight.check_own(settings)
    else:
        preflight.check(settings, settings.federation.num_clients or 1)
    device = build.device(settings)
    test = resident(settings, build.images(settings, "test"), device)
    folder = run_folder(run_config)
    flat = flat_model(settings, test.shape, device)
    checkpoints = Checkpoints(folder / "checkpoints", settings, flat.layout)
    last = resumable(folder, checkpoints) if settings.output.resume else None
    run = last.run if last else uuid.uuid4().hex[:12]
    method = registry.method(settings.federation.strategy)
    evaluator = Evaluator(test, settings.output.eval_batch_size)
    parts = Parts.build(settings, method.strategy, flat, evaluator, run)
    strategy = method.strategy(parts)
    if last:
        strategy.resume(last)
    start = (last.round if last else 0) if settings.output.resume else None
    tracker = Tracker(folder, resumed_from=start)
    more = {"run": run, "layout": flat.layout, "parameters": flat.trainable.numel()}
    tracker.config(settings, decided(settings), **more)
    for remark in [*remarks(settings), *preflight.label_notes(settings)]:
        log(WARNING, "%s", remark)
    manager = SimpleClientManager()
    return ServerAppComponents(
        server=FedServer(
            client_manager=manager, strategy=strategy, tracker=tracker, checkpoints=checkpoints
        ),
        config=ServerConfig(
            num_rounds=settings.federation.num_server_rounds,
            round_timeout=settings.federation.round_timeout,
        ),
        client_manager=manager,
    )


def resumable(folder: Path, checkpoints: Checkpoints) -> Checkpoint | None:
    """The checkpoint to go on from; None where the run never got to its first one.

    Raises
    ------
    UserError
        If there is no such run, it is completed, or its checkpoint cannot be used.
    """
    try:
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))["status"]
    except (OSError, ValueError, KeyError):
        raise UserError(
            f"{folder} holds no run to resume: check results-dir and run-name"
        ) from None
    if status == "completed":
        raise UserError(f"{folder} is completed: there is nothing to resume")
    return checkpoints.latest()


def components(context: Context) -> ServerAppComponents:
    """`build_server` for Flower: a user's mistake ends the run with one line and no traceback."""
    try:
        return build_server(context.run_config)
    except UserError as error:
        log(ERROR, "error: %s", error)
        report_failure(run_folder(context.run_config), str(error))
        raise SystemExit(2) from None


def report_failure(folder: Path, reason: str) -> None:
    """Say in the status file why nothing started, unless a run lives there."""
    if folder.is_absolute() and not folder.exists():
        content = {"status": "failed", "rounds": 0, "reason": reason}
        write_whole(folder / "status.json", json.dumps(content) + "\n")
