"""HFMDS-FL and MrTF, with their baselines, as one Flower app."""

__version__ = "0.1.0"
