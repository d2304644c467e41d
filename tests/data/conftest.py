"""Every data test has a cache of its own, and can forbid the Hub."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network\nhere")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
