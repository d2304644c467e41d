"""Ending what was started, and nothing else."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fedsyn_flwr.simulation.cleanup import Guard
from fedsyn_flwr.simulation.processes import Family, processes

SLEEP = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); "
ORPHAN = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, flush=True)
"""
BARE = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], env={{}}, start_new_session=True)
{SLEEP}
"""

GUARDED = f"""
import os, subprocess, sys, time
from pathlib import Path
from fedsyn_flwr.simulation.cleanup import Guard
from fedsyn_flwr.simulation.cleanup import Guard
from fedsyn_flwr.simulation.processes import Family
family = Family({{mark!r}})
guard = Guard(family, Path({{home!r}}))
env = {{{{**os.environ, **family.environment}}}}
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], env=env, start_new_session=True)
{SLEEP}
"""


def start(code, family, **kwargs):
    env = {**os.environ, **family.environment}
    return subprocess.Popen([sys.executable, "-c", code], env=env, **kwargs)


def wait_for(count, family):
    deadline = time.monotonic() + 20
    while len(family.alive()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_only_the_marked_are_ended():
    mine, other = Family(), Family()
    with start(SLEEP, mine) as a, start(SLEEP, other) as b:
        wait_for(1, mine)
        assert [p.pid for p in mine.alive()] == [a.pid]
        mine.end()
        assert a.wait() == -signal.SIGTERM
        assert b.poll() is None
        other.end()
    assert mine.alive() == other.alive() == []


def test_a_guard_ends_what_a_killed_process_leaves(tmp_path):
    """The process that started both is killed before it can do anything about it."""
    family, home = Family(), tmp_path / "home"
    home.mkdir()
    with start(GUARDED.format(mark=family.mark, home=str(home)), Family()) as parent:
        wait_for(1, family)
        parent.kill()
    deadline = time.monotonic() + 20
    while family.alive() or home.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_dismissed_guard_is_gone(tmp_path):
    family = Family()
    guard = Guard(family, tmp_path / "home")
    guard.dismiss()
    assert guard._process.returncode == 0


def test_an_orphan_in_a_session_of_its_own_is_found():
    family = Family()
    with start(ORPHAN, family, stdout=subprocess.PIPE) as parent:
        orphan = int(parent.stdout.readline())
    assert parent.returncode == 0
    assert [p.pid for p in family.alive()] == [orphan]
    family.end()
    assert orphan not in [p.pid for p in processes()]


def test_a_child_without_the_mark_is_found_by_its_parent():
    family = Family()
    with start(BARE, family):
        wait_for(2, family)
        family.end()
    assert family.alive() == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_who_ignores_sigterm_is_killed():
    family = Family()
    with start(DEAF + SLEEP, family, stdout=subprocess.PIPE) as deaf:
        deaf.stdout.readline()
        family.end(patience=0.3)
        assert deaf.wait() == -signal.SIGKILL
