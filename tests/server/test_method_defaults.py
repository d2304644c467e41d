"""What is said of keys that change nothing."""

from typing import Any

import pytest

from fedsyn_flwr.config import load, merged
from fedsyn_flwr.server.method_defaults import remarks, unused


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({}, []),
        ({"strategy": "hfmds", "hfmds-mu": 0.25, "synthesis-every": 2}, []),
        ({"strategy": "fmds", "synthesis-every": 2}, []),
        ({"strategy": "fedavg", "moon-mu": 5.0}, ["moon-mu = 5.0 (strategy = fedavg)"]),
        ({"strategy": "moon", "moon-mu": 5.0}, []),
        ({"classes-per-client": 99}, ["classes-per-client = 99 (partition = dirichlet)"]),
        ({"classes-per-client": 3, "partition": "classes"}, []),
        ({"classes-per-client": 3, "partition": "pathological"}, []),
        ({"dirichlet-alpha": 0.5, "partition": "dirichlet-balanced"}, []),
        ({"shards-per-client": 3}, ["shards-per-client = 3 (partition = dirichlet)"]),
        ({"shards-per-client": 3, "partition": "shards"}, []),
        ({"partition-file": "/a.csv"}, ["partition-file = /a.csv (partition = dirichlet)"]),
        ({"partition-file": "/a.csv", "partition": "csv"}, []),
        ({"feature-skew-strength": 0.5}, ["feature-skew-strength = 0.5 (feature-skew = none)"]),
        ({"feature-skew-strength": 0.5, "feature-skew": "noise"}, []),
        (
            {"feature-skew": "noise", "partition": "own"},
            ["feature-skew = noise (partition = own)"],
        ),
        (
            {"dirichlet-alpha": 0.5, "partition": "iid"},
            ["dirichlet-alpha = 0.5 (partition = iid)"],
        ),
        ({"server-lr": 0.3}, ["server-lr = 0.3 (server-optimizer = none)"]),
        ({"server-lr": 0.3, "strategy": "fedadam"}, []),
        ({"server-lr": 0.3, "server-optimizer": "yogi"}, []),
        ({"mrtf-tau": 2.0}, ["mrtf-tau = 2.0 (refinement = none)"]),
        ({"mrtf-tau": 2.0, "strategy": "hfmds-mrtf"}, []),
        ({"server-threads": 2, "strategy": "fedgen"}, []),
        ({"dp-delta": 0.1}, ["dp-delta = 0.1 (dp-sigma = 0)"]),
        ({"dp-delta": 0.1, "dp-sigma": 1.0}, []),
        (
            {"fraction-evaluate": 0.5, "min-evaluate-clients": 3},
            [
                "min-evaluate-clients = 3 (client-test-fraction = 0)",
                "fraction-evaluate = 0.5 (client-test-fraction = 0)",
            ],
        ),
        ({"fraction-evaluate": 0.5, "client-test-fraction": 0.2}, []),
    ],
)
def test_keys_without_an_effect_are_named(keys: dict[str, Any], named: list[str]) -> None:
    assert unused(load(merged(keys))) == named


def test_they_are_one_line() -> None:
    config = load(merged({"strategy": "fedavg", "moon-mu": 5.0, "classes-per-client": 99}))
    assert remarks(config) == [
        "note: this run makes no use of moon-mu = 5.0 (strategy = fedavg), "
        "classes-per-client = 99 (partition = dirichlet)"
    ]
