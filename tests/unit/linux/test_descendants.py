"""The processes below this one, in a process of the test's own: the one that runs the tests has children itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

BURNED = """
import subprocess, sys
from dljob.linux.descendants import descendants_cpu_s

burn = "import time; end = time.process_time() + 0.3\\nwhile time.process_time() < end: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
reaped = descendants_cpu_s()
assert reaped >= 0.25
with subprocess.Popen(["sh", "-c", f'{sys.executable} -c "$0"; read _', burn], stdin=subprocess.PIPE) as child:
    while descendants_cpu_s() < reaped + 0.25:
        assert child.poll() is None
    child.stdin.write(b"\\n")
"""
LOOKED = """
import subprocess, sys
from dljob.linux import descendants

looks = []
look = descendants.below
descendants.below = lambda root: looks.append(look(root)) or looks[-1]
"""
CHILD = """
child = subprocess.Popen(["sleep", "1000"])
assert not descendants.childless()
assert descendants.kill_all() >= 1
assert child.wait() == -9
"""
FORK = """
import os, signal
from dljob.linux.descendants import end_forks_with_me
end_forks_with_me()
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""
ORPHAN = """
descendants.adopt_orphans()
told = subprocess.run(["sh", "-c", "sleep 1000 >&- & echo $!"], stdout=subprocess.PIPE, check=True).stdout
assert not descendants.childless(), "the orphan is ours now"
assert descendants.kill_all() >= 1
import os
assert os.waitpid(int(told), 0)[1] == 9
"""
WORK = """
import multiprocessing, time

descendants.adopt_orphans()
spawn, server = (multiprocessing.get_context(method) for method in ("spawn", "forkserver"))
work = [context.Process(target=time.sleep, args=(1000,)) for context in (spawn, server)]
daemons = [context.Process(target=time.sleep, args=(1000,), daemon=True) for context in (spawn, server)]
for process in (*work, *daemons):
    process.start()
told = subprocess.run(["setsid", "sh", "-c", "sleep 1000 >&- & echo $!"], stdout=subprocess.PIPE, check=True).stdout
brief = subprocess.Popen(["sleep", "0.1"])
names = descendants.end_children_of_user_code(2)
pids = {*(process.pid for process in work), int(told)}
assert len(names) == 3 and {int(name.rpartition("(pid ")[2][:-1]) for name in names} == pids, names
assert f"sleep 1000 (pid {int(told)})" in names
assert brief.wait() == 0, "it was given time to end"
assert [process.is_alive() for process in (*work, *daemons)] == [False, False, True, True]
assert descendants.end_children_of_user_code(2) == []
descendants.kill_all()
"""
NOBODY = """
assert descendants.childless()
assert descendants.kill_all() == 0
assert descendants.end_children_of_user_code(2) == []
assert looks == [], "all of /proc was read for nothing"
"""


def ran(script: str) -> str:
    """What a script of a new process had to complain of."""
    return subprocess.run([sys.executable, "-c", LOOKED + script], capture_output=True, text=True, check=False).stderr


def test_without_descendants_no_process_is_looked_at() -> None:
    assert ran(NOBODY) == ""


def test_a_child_is_found_and_killed_and_missed_once_it_is_taken_leave_of() -> None:
    assert ran(CHILD + "looks.clear()\n" + NOBODY) == ""


def test_orphans_are_killed_with_the_other_descendants() -> None:
    assert ran(ORPHAN + "looks.clear()\n" + NOBODY) == ""


def test_what_user_code_left_running_is_killed_and_what_serves_its_process_is_not() -> None:
    assert ran(WORK) == ""


def test_a_forked_child_ends_with_its_killed_parent() -> None:
    program = subprocess.Popen([sys.executable, "-c", FORK], stdout=subprocess.PIPE, start_new_session=True)
    try:
        # The child has the pipe too: it is at its end when both have ended.
        assert program.communicate(timeout=60) == (b"", None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == -signal.SIGKILL


def test_the_cpu_time_of_living_and_reaped_descendants_is_added() -> None:
    # Other tests leave children here, and the time of one that init reaps is lost.
    subprocess.run([sys.executable, "-c", BURNED], check=True, timeout=100)
