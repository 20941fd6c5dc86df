"""Causes in how libraries are used: process groups, loaders, allocators."""

from __future__ import annotations

from cause import Cause
from planting import kill
from programs import in_group

MORE_TIME = 150.0
"""torch takes some seconds to import in each rank."""
STANDS = "Hang|has waited|waits for|wait for|stands still|stalled"
"""Reason or words for ranks that wait for one of their group."""

CAUSES = (
    Cause(
        name="assertion-behind-a-closed-group",
        group="libraries",
        program=in_group(
            """
        dist.destroy_process_group()
        time.sleep(1.5)
        assert step < 0, "loss is not finite"  # CAUSE
    """
        ),
        ranks=2,
        kind="UserError",
        code=(10,),
        whom="default/1",
        says=("AssertionError: loss is not finite",),
        never="Network",
        limit_s=MORE_TIME,
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="uneven-data",
        group="libraries",
        program=in_group("break"),
        ranks=3,
        kind="UserError|ended with|ended at|uneven|exit code 0",
        whom="default/1",
        says=("code 0|ended with 0",),
        never="Network",
        limit_s=MORE_TIME,
        peers=True,
    ),
    Cause(
        name="exit-with-0-in-a-group",
        group="libraries",
        program=in_group("sys.exit(0)"),
        ranks=2,
        kind="UserError|ended with|ended at|uneven|exit code 0",
        whom="default/1",
        says=("code 0|ended with 0",),
        never="Network",
        limit_s=MORE_TIME,
        peers=True,
    ),
    Cause(
        name="sigterm-that-is-caught",
        group="libraries",
        program="""
    import signal, sys, time
    import torch, torch.distributed as dist
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    dist.init_process_group("gloo")
    for step in range(1000):
        dist.all_reduce(torch.ones(1))
        print("step", step, flush=True)
        time.sleep(0.2)
    """,
        ranks=2,
        acts=(kill("default/1", "TERM", after="step 12"),),
        kind="UserError|Killed|ended with|ended at|SIGTERM",
        whom="default/1",
        says=("SIGTERM|code 0|ended with 0",),
        never="Network",
        limit_s=MORE_TIME,
    ),
    Cause(
        name="evaluation-longer-than-the-groups-timeout",
        group="libraries",
        program="""
    import datetime, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
    def evaluate():
        time.sleep(40)  # CAUSE
    for step in range(100):
        if dist.get_rank() == 1 and step == 8:
            evaluate()
        dist.all_reduce(torch.ones(1))
        print("step", step, flush=True)
    """,
        ranks=2,
        kind=f"UserError|{STANDS}|evaluate",
        whom="default/1",
        says=("evaluate",),
        never="Network",
        limit_s=MORE_TIME,
    ),
    Cause(
        name="peer-ended-and-a-wait-in-the-store",
        group="libraries",
        program="""
    import time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    for step in range(10):
        dist.all_reduce(torch.ones(1))
        print("step", step, flush=True)
    if dist.get_rank() == 0:
        store.wait(["from-1"])
    """,
        ranks=2,
        kind=f"{STANDS}|UserError|ended with|exit code 0",
        whom="default/1",
        says=("code 0|ended with 0",),
        never="Network",
        ends=False,
        limit_s=MORE_TIME,
    ),
    Cause(
        name="rank-that-sleeps-in-a-group",
        group="libraries",
        program=in_group(
            """
        while True:
            time.sleep(1)  # CAUSE
    """,
            at=20,
        ),
        ranks=2,
        kind=STANDS,
        whom="default/1",
        never="Network",
        ends=False,
        limit_s=MORE_TIME,
        peers=True,
    ),
    Cause(
        name="collectives-of-other-sizes",
        group="libraries",
        program=in_group("dist.all_reduce(torch.ones(2))  # CAUSE"),
        ranks=2,
        kind=f"UserError|{STANDS}|mismatch",
        whom=r"default/\d",
        says=("mismatch|preamble",),
        never="Network",
        ends=False,
        limit_s=MORE_TIME,
        peers=True,
    ),
    Cause(
        name="other-collective-than-the-peers",
        group="libraries",
        program=in_group(
            """
        dist.barrier()  # CAUSE
    """,
            at=20,
        ),
        ranks=3,
        kind=f"UserError|{STANDS}|mismatch",
        whom="default/1",
        never="Network",
        ends=False,
        limit_s=MORE_TIME,
    ),
    Cause(
        name="slow-rank-in-a-group",
        group="libraries",
        program="""
    import os, time
    import torch, torch.distributed as dist
    from dljob import progress
    dist.init_process_group("gloo")
    for step in range(1, 10000):
        if dist.get_rank() == 1 and step > 40:
            time.sleep(1.5)  # CAUSE
        dist.all_reduce(torch.ones(1))
        print("step", step, flush=True)
        progress(step)
        time.sleep(0.1)
    """,
        ranks=2,
        kind="Straggler|slow|longer",
        whom="default/1",
        ends=False,
        limit_s=MORE_TIME,
    ),
    Cause(
        name="loader-that-became-slow",
        group="libraries",
        program="""
    import time
    from dljob import progress
    from torch.utils.data import DataLoader
    class Samples:
        def __len__(self):
            return 100_000
        def __getitem__(self, index):
            time.sleep(0.05 if index < 100 else 2.0)  # CAUSE
            return index
    for step, batch in enumerate(DataLoader(Samples(), batch_size=1)):
        progress(step)
        print("step", step, flush=True)
    """,
        kind="SlowLoader|loader",
        whom="default/0",
        ends=False,
        limit_s=MORE_TIME,
    ),
    Cause(
        name="loaders-worker-killed",
        group="libraries",
        program="""
    import os
    from torch.utils.data import DataLoader
    class Samples:
        def __len__(self):
            return 64
        def __getitem__(self, n):
            if n == 20:
                os.kill(os.getpid(), 9)
            return n
    for batch in DataLoader(Samples(), batch_size=4, num_workers=1):
        print("batch", flush=True)
    """,
        kind="Killed|OOMKilled",
        code=(11, 19),
        whom="default/0",
        says=("DataLoader worker", "signal: Killed|SIGKILL"),
        limit_s=MORE_TIME,
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="error-in-a-loaders-worker",
        group="libraries",
        program="""
    from torch.utils.data import DataLoader
    class Samples:
        def __len__(self):
            return 64
        def __getitem__(self, n):
            return 1 / (n - 20)  # CAUSE
    for batch in DataLoader(Samples(), batch_size=4, num_workers=1):
        print("batch", flush=True)
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("ZeroDivisionError",),
        limit_s=MORE_TIME,
        exit_code=1,
    ),
    Cause(
        name="torch-asks-the-host-for-too-much",
        group="libraries",
        program="""
    import torch
    torch.empty(1 << 50)  # CAUSE
    """,
        kind="UserError|OOMKilled",
        code=(11,),
        whom="default/0",
        says=("allocate|memory",),
        advice="(?is)^(?!.*device)",
        limit_s=MORE_TIME,
        exit_code=1,
    ),
    Cause(
        name="numpy-asks-the-host-for-too-much",
        group="libraries",
        program="""
    import numpy
    numpy.ones(1 << 50)  # CAUSE
    """,
        kind="UserError|OOMKilled",
        code=(11,),
        whom="default/0",
        says=("MemoryError",),
        advice="(?is)^(?!.*device)",
        exit_code=1,
    ),
    Cause(
        name="shapes-that-do-not-fit",
        group="libraries",
        program="""
    import torch
    torch.ones(2, 3) @ torch.ones(4, 5)  # CAUSE
    """,
        kind="UserError",
        code=(10,),
        whom="default/0",
        says=("cannot be multiplied",),
        limit_s=MORE_TIME,
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="worker-says-that-it-computes-wrongly",
        group="machine",
        program="""
    import time
    from dljob import Worker, current_worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 1000):
                progress(step)
                if step == 10 and current_worker().rank == 1:
                    current_worker().suspect("its gradient norm differs from that of its replicas")
                time.sleep(0.1)
    """,
        roles="- {name: main, replicas: 2, entrypoint: {class: work.Main}, resources: {cpu: 200m}}",
        kind="SilentCorruption",
        code=(12,),
        whom="main/1",
        says=("gradient norm",),
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="check-of-a-device-fails",
        group="machine",
        program="""
    from dljob import Worker
    class Main(Worker):
        def self_check(self):
            return False
        def run(self): ...
    """,
        roles="- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 200m}, restartPolicy: {maxRestarts: 1}}",
        kind="DeviceError",
        code=(12,),
        whom="main/0",
        says=("self_check",),
        ends=False,
        limit_s=60,
    ),
)
