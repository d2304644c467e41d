"""Data: sources, partitions, resident tensors and the heat map of label counts."""

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
