"""``fedsyn demo``: FedAvg beside HFMDS-FL on the embedded digits."""

from fedsyn_flwr.cli.options import ResultsDir, Seed
from fedsyn_flwr.cli.run import follow

DEMO = ("digits-fedavg", "digits-hfmds")


def demo(seed: Seed = None, results_dir: ResultsDir = None) -> None:
    """Compare FedAvg with HFMDS-FL in a minute or two.

    Both are trained on the embedded digits, spread very unevenly over 10 clients.
    """
    from fedsyn_flwr.report.page.render import write
    from fedsyn_flwr.report.summary import comparison
    from fedsyn_flwr.simulation.resolve import prepare
    from fedsyn_flwr.simulation.superlink import LocalSuperLink

    flags = {"seed": seed, "results-dir": results_dir}
    with LocalSuperLink(wait=False) as superlink:
        plans = [prepare(conf, flags=flags, clients=10) for conf in DEMO]
        results = {}
        for plan in plans:
            results[plan.config.federation.strategy] = follow(plan, superlink)
            print()
    print("\n".join(comparison(results)))
    folder = plans[0].folder.parent
    print(f"results in {folder}")
    page = write([str(plan.folder) for plan in plans], folder / "report.html", pictures=False)
    print(f"report in {page}: open it in a browser; `fedsyn report` adds images and features")
