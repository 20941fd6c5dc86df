"""`dljob init`: a small job to start from."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from dljob.cli import output, output_file
from dljob.errors import UsageError

NAME_MOST = 47
"""Longest name of a job."""
JOB = """\
# Two ranks that train and save checkpoints, without torch.
#   dljob validate {path}      all errors of this file
#   dljob run {path}           on this machine, with its own Ray
#   dljob submit {path} -k     on Kubernetes, with this folder as the code
# dljob crd describes every field.
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: {name}}}
spec:
  roles:
  - name: worker
    replicas: 2
    entrypoint: {{class: train.main}}
    resources: {{cpu: 500m}}                # of each rank
    # type: Elastic                       # the ranks form one torch world, as under torchrun
    # accelerator: {{type: GPU, count: 1}}  # devices of each rank
    # restartPolicy: {{maxRestarts: 3}}
"""
SCRIPT = '''\
"""Code of each rank. Kill a running one (kill -9 PID, see dljob status): it restarts from its last checkpoint."""

from __future__ import annotations

import time

from dljob import checkpoint, current_worker, progress

STEPS = 20


def main() -> dict[str, float]:
    """Train; the return value of rank 0 is the job's result."""
    me = current_worker()
    step, loss = checkpoint.load() or (0, 1.0)
    print(f"rank {me.rank} of {me.world_size} begins after step {step}", flush=True)
    while step < STEPS:
        time.sleep(0.5)
        step, loss = step + 1, loss * 0.8
        progress(step, loss=loss)
        if step % 5 == 0:
            checkpoint.save(step, loss)
            print(f"step {step}: loss {loss:.4f}", flush=True)
    return {"steps": step, "loss": loss}


if __name__ == "__main__":  # for dljob torchrun, which runs the file; dljob.yaml names the function
    main()
'''


def init(folder: Path = Path(), /) -> None:
    """Write a small working job, dljob.yaml and its script, into a folder that has neither.

    Args:
        folder: target folder, created if missing; default: the current one. The job is named after it.
    """
    job, script = folder / "dljob.yaml", folder / "train.py"
    # A dangling link does not exist, and would be written through.
    existing = [str(path) for path in (job, script) if path.exists() or path.is_symlink()]
    if existing:
        raise UsageError(
            f"{' and '.join(existing)}: there already, and not overwritten", hint="dljob init ANOTHER_FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    hint = "make room, or name another folder: dljob init ANOTHER_FOLDER"
    # The script first: a job file alone could be run, and fail.
    output_file.write(script, (SCRIPT,), force=False, hint=hint)
    try:
        text = JOB.format(name=job_name(folder.resolve().name), path=job.name)
        output_file.write(job, (text,), force=False, hint=hint)
    except UsageError:
        script.unlink(missing_ok=True)  # the next init would refuse it
        raise
    output.say(f"wrote {script} and {job}")
    output.say(f"  dljob run {shlex.quote(str(job))}")


def job_name(folder: str) -> str:
    """Derive a job's name from a folder's: other characters become dashes, and leading non-letters are dropped."""
    plain = re.sub(r"[^a-z0-9]+", "-", folder.lower())
    return re.sub(r"^[^a-z]+", "", plain)[:NAME_MOST].rstrip("-") or "hello"
