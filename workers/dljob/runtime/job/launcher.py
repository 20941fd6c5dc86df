"""The program that Ray's Job API runs on the head for a DLJob: it finds or creates the job's PrimeMaster, and waits.

    python -m dljob.runtime.launcher --spec spec.json --uid <32 hex> --attempt N --ray 2.60.0 --version <dljob's>

Exit code 0: the job succeeded. 1: it failed, or was lost. 3: it was suspended. 2: it was refused, and the last line
gives the reason as JSON: {"dljob": "refused", "reason": ..., "message": ..., "hint": ...}. The job does not depend on
this process: when it is stopped or killed, the job goes on, and the next launcher of the same uid waits for it.

Only the version check is imported at the top: the image may have an old Python, which must get as far as its message.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from dljob.raycluster.pods import GATEWAY_PORT
from dljob.runtime.job import versions


def main(argv: list[str] | None = None) -> int:
    """Check the versions, run the job, return the exit code."""
    _forget_working_directory()
    args = _arguments(argv)
    refused = versions.refusal(versions.installed_versions(), args.ray, args.version)
    if refused is not None:
        return refuse(refused)
    from dljob.runtime.job.driver import drive

    ended = drive(args)
    return refuse(ended) if isinstance(ended, versions.Incompatible) else ended


def refuse(mismatch: versions.Incompatible) -> int:
    """Print a refusal as the last line, where the operator looks for it."""
    print(json.dumps({"dljob": "refused", **mismatch._asdict()}), flush=True)  # noqa: T201
    return 2


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dljob.runtime.launcher", allow_abbrev=False)
    parser.add_argument("--spec", required=True, help="the DLJob as JSON: a file, or gcs://<name>, which Ray keeps")
    parser.add_argument("--carried", default="", help="state of the previous attempt as JSON: a file, or gcs://<name>")
    parser.add_argument("--home", default="", help="DLJOB_HOME, where the pod sets none")
    parser.add_argument("--uid", required=True, help="the job's uid, 32 hex digits")
    parser.add_argument("--attempt", required=True, type=int, help="counts the RayClusters of the job, from 1")
    parser.add_argument("--ray", required=True, help="the version of Ray that the job says the image has")
    parser.add_argument("--version", required=True, help="the operator's version of dljob")
    parser.add_argument("--host", default="0.0.0.0", help="where the gateway listens")  # noqa: S104 - a pod's network
    parser.add_argument("--port", default=GATEWAY_PORT, type=int, help="where the gateway listens; 0: anywhere")
    return parser.parse_args(argv)


def _forget_working_directory() -> None:
    """Take the user's folder, which `python -m` puts first, off the import path.

    A file of the user named `json.py` or `ray.py` would be imported here instead of the real one.
    """
    if sys.path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109 - as Python itself wrote it
        del sys.path[0]


if __name__ == "__main__":
    sys.exit(main())
