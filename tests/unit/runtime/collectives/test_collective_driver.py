"""Who starts a job finds its backends registered, if it uses Ray's collectives at all."""

from __future__ import annotations

import subprocess
import sys

ACME = """
from ray.util.collective.collective_group.base_collective_group import BaseGroup
methods = "allreduce barrier reduce allgather broadcast reducescatter send recv check_backend_availability".split()
Whole = type("Whole", (BaseGroup,), {name: lambda *_: None for name in methods})
"""
LATE = """
import sys
from dljob.runtime.collectives.driver import register_when_used
register_when_used({})
before = list(sys.meta_path)
register_when_used({"MyCcl": "acme.Whole", "Half": "nowhere.Half"})
register_when_used({"Other": "acme.Whole"})  # of another job
assert "torch" not in sys.modules
import importlib.util
assert importlib.util.find_spec("ray.util.collective"), "to ask where it is does not import it"
from ray.util import collective
from ray.util.collective.backend_registry import _global_registry as known
assert sys.meta_path == before
print(known.get("MYCCL").__qualname__, known.is_registered("OTHER"), known.is_registered("HALF"))
register_when_used({"Again": "acme.Whole"})
print(known.is_registered("AGAIN"))
"""


def test_backends_are_registered_with_the_first_use_and_those_of_elsewhere_left_out(tmp_path):
    (tmp_path / "acme.py").write_text(ACME)
    ran = subprocess.run(
        [sys.executable, "-c", LATE], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "Whole True False\nTrue\n"), ran.stderr
    assert "not registered in this process: collective backend HALF (nowhere.Half" in ran.stderr
