"""A script with many behaviours: `behave.py WHAT`."""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

what = sys.argv[1]
if what == "facts":
    main = threading.current_thread() is threading.main_thread()
    print(__name__, main, Path.cwd(), sys.argv, os.getpgrp() == os.getpid(), "ray" in sys.modules, flush=True)
elif what == "variables":
    print(*map(os.environ.get, sys.argv[2:]), flush=True)
elif what == "modules":
    print(*(name in sys.modules for name in sys.argv[2:]), flush=True)
elif what == "raise":
    raise ValueError("no such thing")
elif what == "slow end":
    atexit.register(time.sleep, 1000)
    raise ValueError("no such thing")
elif what == "astray":
    os.chdir("/")
    Path("no-such-data").read_text()
elif what == "exit":
    sys.exit(int(sys.argv[2]))
elif what == "save":
    checkpoint = SimpleNamespace(close=lambda wait: print("waits" if wait else "waits not", flush=True))
    sys.modules["dljob.runtime.checkpoint.checkpoints"] = SimpleNamespace(checkpoint=checkpoint)
    atexit.register(print, "atexit ran")
    sys.exit(int(sys.argv[2]))
elif what == "say":
    sys.exit("told so")
elif what == "thread":

    def fail() -> None:
        raise KeyError("labels")

    thread = threading.Thread(target=fail, name="loader")
    thread.start()
    thread.join()
    os._exit(7)
elif what == "hard":
    os._exit(9)
elif what == "files":
    print(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - with the folder's own
elif what == "segv":
    import ctypes

    print("before", flush=True)
    ctypes.string_at(0)
elif what == "atexit":
    atexit.register(print, "atexit ran")
    threading.Thread(target=lambda: (time.sleep(0.05), print("thread ran"))).start()
elif what == "handler":
    signal.signal(signal.SIGTERM, lambda *_: (print("caught", flush=True), sys.exit(5)))
    print("armed", flush=True)
    time.sleep(1000)
elif what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("armed", flush=True)
    time.sleep(1000)
elif what == "daemon":
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if not os.fork():
        os.setsid()
        if not os.fork():
            Path(sys.argv[2] + ".fork").write_text(str(os.getpid()))
            time.sleep(1000)
        os._exit(0)
    os.wait()
    while not Path(sys.argv[2] + ".fork").exists() or not Path(sys.argv[2] + ".fork").read_text():
        time.sleep(0.01)
    Path(sys.argv[2]).write_text(str(process.pid))
    if sys.argv[3:] == ["stay"]:
        print("armed", flush=True)
        time.sleep(1000)
elif what == "stay":
    print("armed", flush=True)
    time.sleep(1000)
