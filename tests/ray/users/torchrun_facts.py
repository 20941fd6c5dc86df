"""A script for torchrun that prints what it finds under its launcher: variables, import path, arguments, stdin.

    torchrun ... torchrun_facts.py [--stdin] [--out] [--fail]

With --out it writes a progress bar and a long line, and prints once more when it is told to end.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

LONG = 3 << 20


def facts() -> dict:
    """What this rank finds. `queue` is a name that the folder above has, too."""
    child = Path(os.environ["FACTS_FOLDER"], f"child{os.environ['RANK']}.py")
    child.write_text("import json, sys; print(json.dumps(sys.path))")
    path = subprocess.run([sys.executable, child], capture_output=True, text=True, check=True).stdout
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    return {
        "env": dict(os.environ),
        "argv": sys.argv,
        "file": __file__,
        "main": __name__,
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "child": json.loads(path)[1:],
        "queue": queue.__file__,
        "error_file": bool(error_file) and Path(error_file).parent.is_dir(),
        "stdin": sys.stdin.readline() if "--stdin" in sys.argv and os.environ["RANK"] == "1" else None,
        "signals": [name for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE") if handled(name)],
    }


def handled(name: str) -> bool:
    """Whether a signal is ignored or has a handler that is not the interpreter's own."""
    usual = {"SIGINT": signal.default_int_handler, "SIGPIPE": signal.SIG_IGN}
    return signal.getsignal(getattr(signal, name)) != usual.get(name, signal.SIG_DFL)


def saved(_number: int, _frame: object) -> None:
    """Handle SIGTERM as a script does that saves."""
    print(f"saved by {os.environ['RANK']}", flush=True)
    sys.exit(0)


def show_output() -> None:
    """Write what a console may have trouble with."""
    signal.signal(signal.SIGTERM, saved)
    if os.environ["RANK"] == "0":
        for state in range(6):
            sys.stdout.write(f"\r{state * 20:3d}%")
            sys.stdout.flush()
            time.sleep(0.5)
        print("\n" + "x" * LONG, flush=True)
    print("ready", os.environ["RANK"], flush=True)
    time.sleep(120)


if __name__ == "__main__":
    if "--fail" in sys.argv:
        raise ValueError("as asked for")
    if "--out" in sys.argv:
        show_output()
    print("facts " + json.dumps(facts()), flush=True)
