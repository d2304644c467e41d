"""`make docs`: the site is built in strict mode, without a network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra: pip install -e '.[docs]'")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    nowhere["NO_MKDOCS_2_WARNING"] = "1"  # an advertisement of Material's, not a warning
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **nowhere}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr, result.stderr
    text = (tmp_path / "site/api/strategies.html").read_text()
    assert "SCAFFOLD" in text
    assert "server_step" in text
    assert "https://fonts." not in text
