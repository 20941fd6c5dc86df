"""A rank's output in its log: a disk that refuses it ends no rank."""

from __future__ import annotations

import subprocess
import sys

from dljob.runtime.process.logfile import last_words

CHILD = """
import os, sys, warnings
from dljob.runtime.process.logfile import redirect_output

redirect_output(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))
print("x" * 100_000)
sys.stderr.write("a line\\n")
os.write(os.dup(1), b"of another descriptor\\n")
sys.stdout.buffer.write(b"bytes\\n")
sys.stdout.flush()
sys.stdout.fileno(), sys.__stdout__.encoding
"""


def test_a_print_on_a_full_disk_does_not_end_a_rank():
    done = subprocess.run([sys.executable, "-c", CHILD, "/dev/full"], check=False)
    assert done.returncode == 0


def test_what_the_disk_takes_is_in_the_log(tmp_path):
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", CHILD, str(log)], check=True)
    assert log.read_text().splitlines()[-1] == "bytes"
    assert "a line" in log.read_text()


def test_a_full_disk_is_an_error_for_files_of_the_users_own():
    code = f"{CHILD}\nos.write(os.open('/dev/full', os.O_WRONLY), b'mine')"
    done = subprocess.run([sys.executable, "-c", code, "/dev/null"], check=False, capture_output=True)
    assert done.returncode == 1


def test_the_words_of_a_process_that_ended_itself_are_its_own(tmp_path):
    (tmp_path / "w-1.log").write_text(
        "[dljob] 1 pid 7 ends with code 71: the GIL\n[dljob] 2 pid 8 ends with code 1: x\n"
    )
    assert last_words(tmp_path, "w/1", 7) == "[dljob] 1 pid 7 ends with code 71: the GIL"
    assert last_words(tmp_path, "w/1", 9) == last_words(tmp_path, "w/2", 7) == ""
