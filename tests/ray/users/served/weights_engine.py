"""A server without dljob: it loads weights by the file that a request names, and tells what it holds."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER, RANK = Path(os.environ["DLJOB_DIR"]), os.environ["DLJOB_RANK"]
held = {"version": None, "sum": "nothing", "first": None}


def load(path: str) -> tuple[str, float]:
    """Return the checksum of a safetensors file, and the first number of its tensor w."""
    with Path(path).open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    start = 8 + int.from_bytes(whole[:8], "little")
    header, found = json.loads(whole[8:start]), hashlib.sha256()
    for name in sorted(header):
        begin, end = header[name]["data_offsets"]
        found.update(name.encode())
        found.update(whole[start + begin : start + end])
    begin, _ = header["layer.w"]["data_offsets"]
    (first,) = memoryview(whole[start + begin : start + begin + 8]).cast("d")
    return found.hexdigest(), first


class Engine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(200, {"/sum": held["sum"], "/held": json.dumps(held)}.get(self.path, "well"))

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if (FOLDER / f"fail-{RANK}").exists():
            self.answer(500, "out of memory")
            return
        checksum, first = load(order["channels"]["policy"])
        if (FOLDER / f"wrong-{RANK}").exists():
            (FOLDER / f"wrong-{RANK}").unlink()
            checksum = "0" * 64
        held.update(version=order["version"], sum=checksum, first=first)
        self.answer(200, "loaded")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


ThreadingHTTPServer((os.environ["DLJOB_HOST"], int(os.environ["DLJOB_PORT_HTTP"])), Engine).serve_forever()
