"""Causes in disks: full, read-only, without files left, and checkpoints that cannot be saved."""

from __future__ import annotations

from cause import Cause
from planting import Act, shell

FULL = "full|no space left"
ON_DISK = "- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 200m}, restartPolicy: {maxRestarts: 1}}"
SAVES = """
    import time
    from dljob import Worker, checkpoint, progress
    class Main(Worker):
        def run(self):
            found = checkpoint.load()
            for step in range(found[0] + 1 if found else 1, 10000):
                checkpoint.save(step, {"weights": b"x" * (2 << 20)})
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.3)
"""
NOISE = """
    import os, time
    line = b"x" * 99 + b"\\n"
    for part in range(200):
        os.write(1, line * 2000)
        time.sleep(0.05)
    time.sleep(600)
"""


def mount_on_checkpoints(options: str) -> Act:
    """Put another disk where the job saves its checkpoints, after some are there."""
    return shell(f'mount -t tmpfs -o {options} exam "$DLJOB_HOME"/jobs/exam-*/checkpoints', after="step 15")


CAUSES = (
    Cause(
        name="users-disk-full",
        group="disks",
        program="""
    with open("disk/out.bin", "wb") as file:
        for part in range(100):
            file.write(b"x" * (1 << 20))  # CAUSE
            file.flush()
    """,
        disk="8m",
        kind=FULL,
        code=(13,),
        whom="default/0",
        says=("No space left on device",),
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="users-disk-read-only",
        group="disks",
        program='open("disk/out.bin", "wb")  # CAUSE',
        disk="8m",
        before="mount -o remount,ro disk",
        kind="read-only",
        code=(13,),
        whom="default/0",
        says=("Read-only file system",),
        exit_code=1,
    ),
    Cause(
        name="users-disk-without-files-left",
        group="disks",
        program="""
    for number in range(1000):
        open(f"disk/{number}", "wb").close()  # CAUSE
    """,
        disk="8m,nr_inodes=50",
        kind=FULL,
        code=(13,),
        whom="default/0",
        says=("No space left on device",),
        exit_code=1,
    ),
    Cause(
        name="job-folders-disk-full-by-output",
        group="disks",
        program=NOISE,
        disk="20m",
        home="disk",
        kind=FULL,
        code=(13,),
        whom="disk|volume|folder|journal",
        never="UserError",
        ends=False,
        limit_s=75,
    ),
    Cause(
        name="job-folders-disk-full-by-others",
        group="disks",
        program="""
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 10000):
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.1)
    """,
        roles=ON_DISK,
        disk="20m",
        home="disk",
        acts=(shell("dd if=/dev/zero of=disk/fill bs=4k 2>/dev/null || true", after="step 20"),),
        kind=FULL,
        code=(13,),
        whom="disk|volume|folder|journal",
        never="UserError",
        ends=False,
        limit_s=75,
    ),
    Cause(
        name="job-folders-disk-full-at-the-end",
        group="disks",
        program="""
    import time
    for step in range(20):
        print("step", step, flush=True)
        time.sleep(0.2)
    with open("disk/fill", "wb") as file:
        try:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        except OSError:
            pass
    """,
        disk="20m",
        home="disk",
        kind=FULL,
        code=(13,),
        whom="disk|volume|folder|journal",
        never="UserError",
    ),
    Cause(
        name="job-folder-read-only",
        group="disks",
        program="print('step', flush=True)",
        disk="20m",
        home="disk",
        before="mount -o remount,ro disk",
        kind="read-only file system",
        code=(4,),
        whom="disk",
        exit_code=4,
    ),
    Cause(
        name="job-folders-disk-full-at-the-start",
        group="disks",
        program="print('step', flush=True)",
        disk="20m",
        home="disk",
        before="dd if=/dev/zero of=disk/fill bs=4k 2>/dev/null || true",
        kind=FULL,
        whom="disk|volume|folder",
    ),
    Cause(
        name="checkpoints-on-a-full-disk",
        group="disks",
        program=SAVES,
        roles=ON_DISK,
        acts=(mount_on_checkpoints("size=1m"),),
        kind=f"CheckpointNotSaved|{FULL}",
        code=(13,),
        whom="main/0|checkpoint",
        ends=False,
        limit_s=75,
    ),
    Cause(
        name="checkpoints-on-a-read-only-disk",
        group="disks",
        program=SAVES,
        roles=ON_DISK,
        acts=(mount_on_checkpoints("ro"),),
        kind="CheckpointNotSaved|read-only",
        code=(13,),
        whom="main/0|checkpoint",
        ends=False,
        limit_s=75,
    ),
    Cause(
        name="checkpoints-on-a-disk-without-inodes",
        group="disks",
        program=SAVES,
        roles=ON_DISK,
        acts=(mount_on_checkpoints("nr_inodes=2"),),
        kind=f"CheckpointNotSaved|{FULL}",
        code=(13,),
        whom="main/0|checkpoint",
        ends=False,
        limit_s=75,
    ),
)
