"""Every method's bits: two short runs of each on the embedded digits, as hashes of their models.

A change that is to change no result is checked by running this before and after it:

    python benchmarks/golden_runs.py --out before.json        # in a checkout of the old commit
    python benchmarks/golden_runs.py --out after.json --against before.json

Rounds are few, so what methods do seldom (synthesis, clusters, the GAN) is made to happen in them.
Takes about ten seconds a run, 36 runs. Bits are those of one machine: never compare two.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

METHODS = (
    "fedavg,fedprox,moon,fedmmd,scaffold,fedavgm,fedadagrad,fedadam,fedyogi,fedgen,fedgan,"
    "fedmix,naivemix,fmds,hfmds,feddf,mrtf,hfmds-mrtf"
)
OVERRIDES = (
    "num-server-rounds=3",
    "synthesis-every=2",
    "synthesis-steps=40",
    "gan-rounds=3",
    "mrtf-clr-start=2",
    "scaffold:momentum=0",
)
MEASURED = ("seconds/", "client_seconds/", "memory/", "bytes/")


def run(folder: Path, seeds: str) -> None:
    """All runs, by the public command, in a results folder."""
    command = [str(Path(sys.executable).with_name("fedsyn")), "compare", "digits-fedavg"]
    command += ["--methods", METHODS, "--seeds", seeds, "--results-dir", str(folder)]
    for override in OVERRIDES:
        command += ["-c", override]
    subprocess.run(command, check=True)


def digest(run: Path) -> dict[str, str]:
    """SHA-256 of a run's model and of the numbers in its metrics that no clock or bus decides."""
    model = hashlib.sha256()
    for name, array in sorted(load_file(run / "model.safetensors").items()):
        model.update(name.encode() + array.tobytes())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in rows]
    return {
        "model": model.hexdigest(),
        "metrics": hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest(),
    }


def main() -> None:
    """Run, hash, print; with ``--against`` also compare, and fail where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--results-dir", type=Path, help="keep the runs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.results_dir or Path(scratch)
        run(folder.absolute(), options.seeds)
        found = {r.parent.name: digest(r.parent) for r in sorted(folder.glob("*/metrics.jsonl"))}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.against is None:
        return
    before = json.loads(options.against.read_text())
    for name in sorted({*before, *found}):
        print("same  " if before.get(name) == found.get(name) else "DIFFERS", name)
    sys.exit(before != found)


if __name__ == "__main__":
    main()
