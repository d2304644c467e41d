"""Data: where images come from, who gets which, and batches of resident tensors.

Decoded once per machine (`cache`), an index array per client (`partition`), sliced on the device
(`resident`). Not here: what is trained on them. Read `sources` first.
"""

from fedsyn_flwr.data.cache import ImageSet
from fedsyn_flwr.data.partition import label_table, make_partitions
from fedsyn_flwr.data.resident import ResidentData, adapt, augment, denormalise, normalise
from fedsyn_flwr.data.sources import DATASETS, DatasetSpec, get_spec, load

__all__ = [
    "DATASETS",
    "DatasetSpec",
    "ImageSet",
    "ResidentData",
    "adapt",
    "augment",
    "denormalise",
    "get_spec",
    "label_table",
    "load",
    "make_partitions",
    "normalise",
]
