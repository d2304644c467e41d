"""What plain noise would hide: the privacy report of real images plus Gaussian noise.

    python benchmarks/noise_yardstick.py mnist-small-hfmds [-c data-dir=path/to/mnist …]

A yardstick for `privacy/…` in a run's metrics: every client shares as many of its real images as
it would synthesise, with noise of standard deviation sigma on pixels of range [0, 1], clamped.
Means over the clients, weighted by their images.
"""

import argparse

import torch

from fedsyn_flwr.client.worker import Worker, worker_for
from fedsyn_flwr.data import denormalise
from fedsyn_flwr.privacy.audit import privacy_report
from fedsyn_flwr.rng import torch_generator
from fedsyn_flwr.simulation.resolve import draft

SIGMAS = (0.05, 0.1, 0.2, 0.4, 0.8)
SHOWN = ("psnr_mean", "ssim_mean", "nearest_distance", "reid_pixel", "reid_chance")


def noisy_report(worker: Worker, partition: int, sigma: float, count: int) -> dict[str, float]:
    """The report of one client's images with noise."""
    data, indices = worker.data, worker.partitions[partition]
    g = torch_generator(0, partition, "noise-yardstick")
    positions = torch.randperm(len(indices), generator=g)[:count]
    real = data.x(indices[positions])
    mean, std = (torch.as_tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))
    pixels = denormalise(real, data.mean, data.std)
    noise = sigma * torch.randn(pixels.shape, generator=g)
    shared = ((pixels + noise).clamp(0, 1) - mean) / std
    return privacy_report(worker.data, indices, positions, shared, 500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("conf")
    parser.add_argument("-c", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    plan = draft(arguments.conf, arguments.overrides)
    worker = worker_for(plan.run_config, plan.options.clients)
    count = worker.settings.params.synthesis_per_client
    print("sigma  " + "  ".join(f"{name:>16}" for name in SHOWN))
    for sigma in SIGMAS:
        totals, images = dict.fromkeys(SHOWN, 0.0), 0
        for partition in range(len(worker.partitions)):
            n = min(count, len(worker.partitions[partition]))
            if n:
                report = noisy_report(worker, partition, sigma, count)
                images += n
                for name in SHOWN:
                    totals[name] += n * report[f"privacy/{name}"]
        print(f"{sigma:5.2f}  " + "  ".join(f"{totals[name] / images:16.4f}" for name in SHOWN))


if __name__ == "__main__":
    main()
