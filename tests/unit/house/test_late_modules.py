"""Modules that Ray's processes of the tests load at their first use (tests/ray/kits/late)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LATE = Path(__file__).parents[2] / "ray" / "kits" / "late"
USE = """
import sys, threading
import jsonschema, requests
assert "urllib3" not in sys.modules and "attrs" not in sys.modules, "loaded when imported"
sys.setswitchinterval(1e-6)
found = []
threads = [threading.Thread(target=lambda: found.append(requests.Session)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(found) == 8 and len(set(found)) == 1, found
import requests.adapters
from jsonschema import ValidationError, validate
from requests.exceptions import ConnectionError
assert requests.exceptions.ConnectionError is ConnectionError and requests.__version__
assert not hasattr(requests, "nothing")
try:
    validate(1, {"type": "string"})
except jsonschema.ValidationError as error:
    assert type(error) is ValidationError
else:
    raise AssertionError("1 is no string")
"""


def test_a_late_module_is_loaded_whole_at_its_first_use() -> None:
    env = {**os.environ, "PYTHONPATH": os.fspath(LATE)}
    done = subprocess.run([sys.executable, "-c", USE], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_late_module_that_is_not_installed_cannot_be_imported() -> None:
    env = {**os.environ, "PYTHONPATH": os.fspath(LATE)}
    use = [sys.executable, "-S", "-c", "import requests"]  # without the installed packages
    done = subprocess.run(use, env=env, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: No module named 'requests'" in done.stderr
