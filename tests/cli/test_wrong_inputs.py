"""A user's mistake is one clear line and exit code 2 before anything starts or is written."""

import sys
from pathlib import Path

import pytest

from fedsyn_flwr.cli import app


def fedsyn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """Exit code and standard error of a call."""
    monkeypatch.setattr(sys, "argv", ["fedsyn", *arguments])
    with pytest.raises(SystemExit) as exit_:
        app.main()
    return int(exit_.value.code or 0), capsys.readouterr().err


def unreadable(folder: Path) -> str:
    """A folder whose parquet files are rubbish."""
    (folder / "data").mkdir(parents=True)
    for split in ("train", "test"):
        (folder / "data" / f"{split}-00000-of-00001.parquet").write_bytes(b"PAR1 not really")
    return str(folder / "data")


CASES = {
    "strategy": (["-c", "strategy=fedsup"], "strategy = 'fedsup': allowed are fedavg"),
    "dataset": (["-c", "dataset=minst"], "did you mean mnist?"),
    "model": (["-c", "model=resnet8"], "did you mean resnet18?"),
    "conf": (["digits-hfmd"], "did you mean digits-hfmds?"),
    "data-dir": (["-c", "data-dir=/no/such/folder"], "/no/such/folder"),
    "alpha": (["-c", "dirichlet-alpha=0"], "dirichlet-alpha = 0: must be greater than 0"),
    "classes": (
        ["-c", "partition=classes", "-c", "classes-per-client=11"],
        "classes-per-client = 11",
    ),
    "too deep": (["-c", "model=vgg8"], "needs images of 16x16 or larger, these are 8x8"),
    "rate": (["-c", "learning-rate=fast"], "learning-rate = 'fast': must be a valid number"),
    "unknown key": (["-c", "learning-rat=1"], "did you mean learning-rate?"),
    "rounds": (["-c", "num-server-rounds=2.5"], "num-server-rounds = 2.5"),
    "no conf": (["nowhere.toml"], "nowhere"),
    "clients": (["--clients", "5000"], "5000"),
    "name": (["--name", "a/b"], "run-name = 'a/b'"),
    "no value": (["-c", "seed"], "seed"),
    "own": (["-c", "partition=own"], "partition = 'own' is for real SuperNodes"),
    "natural": (["-c", "partition=natural"], "natural-column"),
    "csv": (["-c", "partition=csv"], "partition = 'csv' needs partition-file"),
    "no csv": (["-c", "partition=csv", "-c", "partition-file=a.csv"], "a.csv cannot be read"),
    "sizes": (["-c", "partition=exponential", "--clients", "20"], "choose at most 7 clients"),
    "shards": (["-c", "partition=shards", "-c", "shards-per-client=144"], "choose 1 to 143"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_before_anything_starts(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, complaint = CASES[case]
    results = tmp_path / "results"
    monkeypatch.chdir(tmp_path)
    code, said = fedsyn(
        monkeypatch, capsys, "run", "--results-dir", str(results), "--name", "x", *arguments
    )
    assert code == 2
    assert complaint in said
    assert said.startswith("error: ")
    assert len(said.strip().splitlines()) == 1
    assert not results.exists()


def test_unreadable_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unreadable(tmp_path)
    arguments = ["run", "-c", "dataset=mnist", "-c", f"data-dir={folder}"]
    code, said = fedsyn(monkeypatch, capsys, *arguments, "--results-dir", str(tmp_path / "r"))
    assert code == 2
    assert "parquet" in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_folder_that_holds_a_run_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "status.json").write_text("{}")
    code, said = fedsyn(monkeypatch, capsys, "run", "--results-dir", str(tmp_path), "--name", "x")
    assert code == 2
    assert str(tmp_path / "x") in said
    assert (tmp_path / "x" / "status.json").read_text() == "{}"
