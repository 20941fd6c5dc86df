"""A headless Chromium for tests of pages, driven over a pipe by the DevTools protocol: no port, no further package.

It runs in a network namespace of its own, where no interface is up: a page that asks for anything cannot get it. As
root it is installed by apt-get where it is missing; `missing()` says what else to do.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--mute-audio", "--font-render-hinting=none", "--force-color-profile=srgb"),
    *("--allow-file-access-from-files", "--disable-features=Translate,MediaRouter,OptimizationHints"),
)


@functools.cache
def find() -> str | None:
    """Return the path of a Chromium, installed if need be and possible."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found or os.geteuid() or not shutil.which("apt-get"):
        return found
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = "apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core"
    with contextlib.suppress(subprocess.TimeoutExpired):  # then it is missing, which the caller says
        subprocess.run(["sh", "-c", command], env=environment, capture_output=True, timeout=600, check=False)
    return shutil.which("chromium")


def missing() -> str:
    """Return what stands in the way of a browser; "" if nothing does."""
    return "" if find() else "there is no chromium on PATH, and apt-get (as root) could not install it"


class BrowserError(Exception):
    """The browser refused a command, ended, or did not answer."""


class Browser:
    """One Chromium with one page at a time."""

    def __init__(self, *, apart: bool = True) -> None:
        """`apart`: in a network of its own, where nothing can be asked."""
        self.profile = tempfile.mkdtemp(prefix="dljob-chromium-")
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        script = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
        path = find()
        if not path:
            raise BrowserError(missing())
        command = ["bash", "-c", script, path, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(
            [*(_apart() if apart else ()), *command],
            pass_fds=(to_read, from_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(from_write)
        self.buffer = b""
        self.number = 0
        self.session = ""
        self.events: list[dict[str, Any]] = []

    def open(self, url: str, width: int = 1440, height: int = 900, *, dark: bool = False, before: str = "") -> None:
        """Show a page at a size, and wait until it is loaded; `before` is a script that runs first in it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        old, self.session = self.session, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        if old:
            self.call("Target.closeTarget", targetId=self.target)
        self.target = target
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        if before:
            self.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.prefer(dark=dark)
        self.call("Page.navigate", url=url)
        self.wait_for(lambda: any(event["method"] == "Page.loadEventFired" for event in self.events))

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, *, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, motion])

    def run(self, script: str) -> Any:
        """Return the value of an expression of the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page has drawn what was asked for."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def click(self, selector: str) -> None:
        """Click the middle of an element, as a user would."""
        x, y = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({block: 'center'});"
            " const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        button = "none" if kind == "mouseWheel" else "left"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1, **more)

    def press(self, key: str) -> None:
        """Press a key: a character, or a name such as Escape, Tab, Enter, ArrowDown."""
        codes = {"Escape": 27, "Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        more: dict[str, Any] = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}), **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)
        self.settle()

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of what is seen, or of the whole page; the name's suffix is its format."""
        more: dict[str, Any] = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            more = {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "scale": 1, **{key: size[key] for key in ("width", "height")}},
            }
        self.settle()
        more |= {"format": "webp", "quality": 82} if path.suffix == ".webp" else {"format": "png"}
        shot = self.call("Page.captureScreenshot", **more)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Return errors of the console, exceptions, violations of the policy, and all requests but that of the page."""
        self.call("Runtime.evaluate", expression="0")  # what happened before it is read
        found: list[str] = []
        for event in self.events:
            method, told = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"])[:500])
            elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(told["args"])[:500])
            elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
            elif (
                method == "Network.requestWillBeSent"
                and told.get("type") != "Document"
                and not told["request"]["url"].startswith("data:")
            ):
                found.append(f"request: {told['request']['url'][:200]}")
            elif method == "Network.loadingFailed":
                found.append(f"failed: {told.get('errorText')}")
        return found

    def wait_for(self, met: Any, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not met():
            self._read(end)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session and not method.startswith("Target."):
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            answer = self._read(end)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            if not select.select([self.from_read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise BrowserError("the browser does not answer")
            part = os.read(self.from_read, 1 << 20)
            if not part:
                raise BrowserError("the browser has ended")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def close(self) -> None:
        with contextlib.suppress(BrowserError, OSError):  # it may be gone already
            self.session = ""
            self.call("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to_write)
        os.close(self.from_read)
        shutil.rmtree(self.profile, ignore_errors=True)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block."""
    made = Browser()
    try:
        yield made
    finally:
        made.close()


@functools.cache
def _apart() -> tuple[str, ...]:
    """Return the words before a command that take its network away, where this user may."""
    for words in (("unshare", "-n"), ("unshare", "-rn")):
        if (
            sys.platform == "linux"
            and not subprocess.run([*words, "true"], capture_output=True, check=False).returncode
        ):
            return words
    return ()
