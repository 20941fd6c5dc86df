"""Causes in the user's own code."""

from __future__ import annotations

from cause import Cause
from planting import kill

CAUSES = (
    Cause(
        name="key-error",
        group="user code",
        program="""
    import os, time
    rank = int(os.environ["RANK"])
    for step in range(5):
        print("step", step, flush=True)
        time.sleep(0.1)
        if rank == 1 and step == 3:
            {}["god"]  # CAUSE
    """,
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("KeyError: 'god'",),
        advice="correct the code",
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="killed-from-outside",
        group="machine",
        program="""
    import time
    for step in range(300):
        print("step", step, flush=True)
        time.sleep(0.2)
    """,
        ranks=2,
        kind="Killed",
        whom="default/1",
        says=("SIGKILL",),
        acts=(kill("default/1", after="step 5"),),
        exit_code=1,
    ),
)
