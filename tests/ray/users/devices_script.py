"""A script that leaves a note about the devices it sees."""

import os
import time
from pathlib import Path

from dljob import current_worker

me = current_worker()
folder = Path(me.job_dir)
(folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
(folder / f"devices-{me.rank}").write_text(os.environ.get("ASCEND_RT_VISIBLE_DEVICES", ""))
while not (folder / "go").exists():
    time.sleep(0.02)
