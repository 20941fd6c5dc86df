"""A reader of `dljob open`: follows the page of the first job of a home, as a browser does, from beginning to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class PageReader:
    """Within its block, in a thread. `seen` tells when each incident was first on the page (unix seconds)."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.seen: dict[int, float] = {}
        self.data: dict[str, Any] = {}
        self.text = ""
        """All that the server answered, for a look for what must not be there."""
        self.token = ""
        """Ray's token, which the server has, and must not give away."""
        self.trouble: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> PageReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not (found := next(iter(self._home.glob("jobs/[!.]*/job.json")), None)):
            if self._ends.wait(0.05):
                return
        entry = json.loads(found.read_text())
        self.token = Path(entry["environment"]["RAY_AUTH_TOKEN_PATH"]).read_text()
        command = [sys.executable, "-m", "dljob.cli", "open", entry["uid"], "--no-browser"]
        with subprocess.Popen(
            command, env={**os.environ, "DLJOB_HOME": str(self._home)}, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout
                self._follow(server.stdout.readline().strip())
            finally:
                server.kill()

    def _follow(self, link: str) -> None:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.text = opener.open(link, timeout=60).read().decode()
        base = link.partition("?")[0]
        while self.data.get("live", True):
            try:
                with opener.open(f"{base}data?after={self.data.get('version', '')}", timeout=60) as answer:
                    said = answer.read().decode()
            except urllib.error.HTTPError as error:
                self.trouble.append(json.loads(error.read())["error"])
                time.sleep(0.2)
                continue
            self.text += said
            if said:
                self._take(json.loads(said))

    def _take(self, fresh: dict[str, Any]) -> None:
        for incident in fresh.get("incidents", []):
            self.seen.setdefault(incident["id"], time.time())
        events = [*self.data.get("events", []), *fresh["events"]] if "since" in fresh else fresh["events"]
        self.data = {**self.data, **fresh, "events": events}
