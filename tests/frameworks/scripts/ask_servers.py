"""An evaluation that asks the servers of the role `serve`, and kills the one that answers, in the middle.

ask_servers.py MODEL FILE [ids]: what it saw is written to FILE. With `ids` the servers tell the ids of tokens.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
from openai import OpenAI

import dljob

BODY = {"model": "", "max_tokens": 60, "temperature": 0, "seed": 1}
WORDS = "w1 w5 w9 w13 w17"
ROUTES = {"completion": {"prompt": WORDS}, "chat": {"messages": [{"role": "user", "content": WORDS}]}}


def servers() -> dict[str, int]:
    """Return rank -> the process that listens at its port, of all servers that are ready."""
    there = {one.laddr[1]: one.pid for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.pid}
    return {str(one.rank): there[int(one.address.rpartition(":")[2])] for one in dljob.endpoints("serve")}


def streamed(body: dict[str, Any], *, end: bool) -> dict[str, Any]:
    """Read one stream; its server is killed at its first text."""
    stream = dljob.CompletionStream("serve", body, without_ids="restart", silence=60, timeout=600)
    # Known before: a small model may have said all of its answer while they are looked up.
    text, restarted, there = "", 0, servers()
    for chunk in stream:
        if chunk.restarted:
            text, restarted = "", restarted + 1
        text += chunk.text
        if end and chunk.text:
            os.kill(there[chunk.server.rpartition("/")[2]], signal.SIGKILL)
            end = False
    return {"text": text, "ids": list(stream.token_ids), "restarted": restarted, "lost": len(stream.losses)}


def main(model: str, file: str, ids: str = "") -> None:
    """Ask by the OpenAI client and by streams."""
    body = {**BODY, "model": model} if ids else {**BODY, "model": model, "return_token_ids": False}
    client = OpenAI(base_url="http://serve/v1", api_key="-", http_client=httpx.Client(transport=dljob.HttpTransport()))
    answer = client.chat.completions.create(
        model=model, max_tokens=60, temperature=0, seed=1, messages=ROUTES["chat"]["messages"]
    )
    seen: dict[str, Any] = {"openai": answer.choices[0].message.content}
    for name, route in ROUTES.items():
        seen[name] = streamed({**body, **route}, end=False)
        seen[f"{name} of a killed server"] = streamed({**body, **route}, end=True)
    Path(file).write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
