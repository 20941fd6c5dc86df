"""Asks a server the same question again and again, and notes what became of each request.

ask_again.py MODEL URL: `http://serve` is the role `serve` of the job, another URL a server alone. In the folder NOTES
the file `requests` has the lines `begun`, `answered` and `lost`, with the time, and the answer or the error. After
WARM answers it waits until that folder has a file `go`; it ends when it is ended.
"""

import json
import os
import sys
import time
from pathlib import Path

import httpx

NOTES, WARM, PAUSE, PATIENCE = Path(os.environ["NOTES"]), 2, 0.5, 30.0
# A greedy answer may be made twice; of two layers, so that it takes a part of a second.
ASKED = {"prompt": "w1 w5 w9 w13 w17", "max_tokens": 100, "temperature": 0, "seed": 1}


def note(what: str, said: str = "") -> None:
    """Add a line to the notes."""
    with (NOTES / "requests").open("a") as out:
        out.write(json.dumps([what, time.time(), said]) + "\n")


def client(url: str) -> httpx.Client:
    """Return the client: that of a role goes by dljob."""
    if url != "http://serve":
        return httpx.Client(base_url=url, timeout=PATIENCE)
    import dljob

    return httpx.Client(base_url=url, timeout=PATIENCE, transport=dljob.HttpTransport(timeout=600))


def answered(server: httpx.Client, model: str) -> bool:
    """Ask once; return whether an answer came."""
    note("begun")
    try:
        answer = server.post("/v1/completions", json={"model": model, **ASKED}, headers={"Idempotency-Key": "1"})
        answer.raise_for_status()
    except httpx.HTTPError as error:
        note("lost", repr(error))
        return False
    note("answered", answer.json()["choices"][0]["text"])
    return True


def main(model: str, url: str) -> None:
    """Ask until it is ended."""
    server = client(url)
    warm = 0 if not (NOTES / "ready").exists() else WARM
    while warm < WARM:
        warm += answered(server, model)
        time.sleep(PAUSE)
    (NOTES / "ready").touch()
    while not (NOTES / "go").exists():
        time.sleep(0.05)
    while True:
        answered(server, model)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
