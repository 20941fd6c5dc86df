"""The actor class that workers import: it stays light, and offers what PrimeMaster does."""

from __future__ import annotations

import inspect
import subprocess
import sys

from dljob.runtime import prime, prime_actor


def methods(cls: type) -> dict[str, str]:
    found = inspect.getmembers(cls, inspect.iscoroutinefunction)
    return {name: str(inspect.signature(method)) for name, method in found if not name.startswith("_")}


def test_the_actor_offers_what_prime_master_does() -> None:
    assert methods(prime_actor.PrimeMaster) == methods(prime.PrimeMaster)
    assert "beacon" in methods(prime_actor.PrimeMaster)


def test_its_module_brings_nothing_heavy() -> None:
    code = "import sys, dljob.runtime.prime_actor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"ray", "pydantic", "dljob.runtime.prime", "dljob.spec.model", "asyncio"} & set(loaded)
