"""Which drivers of devices a process has loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOADS = """
import _ctypes, ctypes, shutil, sys
from dljob.linux import device_drivers
print(*device_drivers.loaded())
for name in ("libcudart.so.13", "libascendcl.so"):
    ctypes.CDLL(shutil.copy(_ctypes.__file__, f"{sys.argv[1]}/{name}"))
print(*device_drivers.loaded())
"""


def test_drivers_are_known_by_how_their_libraries_are_called(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", LOADS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert told.stdout == "\nlibascendcl.so\n"
