"""The client of the engines: a stream of tokens that goes on at another engine when its own is lost."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

from task import LENGTH, SEPARATOR, Answer, Segment, Tokens

import dljob

TRIES = 20
"""Most engines that one answer may lose."""


def ask(engines: dljob.Endpoints, question: Tokens, seed: str) -> tuple[Answer, int]:
    """Return the whole answer to a prompt, and how often it lost its engine."""
    answer, lost = Answer(), list[dljob.Endpoint]()
    while len(answer.tokens) < LENGTH:
        with engines.using(without=lost[-1:]) as engine:
            try:
                for chunk in _chunks(engine, question, answer.tokens, seed):
                    _take(answer, chunk, f"{engine.role}/{engine.rank}")
            except (OSError, http.client.HTTPException):
                lost.append(engine)
                if len(lost) > TRIES:
                    raise
                _wait_for_another(engines, engine)
    return answer, len(lost)


def _wait_for_another(engines: dljob.Endpoints, lost: dljob.Endpoint) -> None:
    """Wait while a lost engine is the only one that is known; its end may not be known to the job yet."""
    for ready in engines.changes(timeout=10):
        if any(engine != lost for engine in ready):
            return


def _chunks(engine: dljob.Endpoint, question: Tokens, received: Tokens, seed: str) -> Iterator[dict[str, Any]]:
    """Yield the chunks of one engine, behind the tokens that were received of others."""
    host, _, port = engine.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    body = {"prompt": [*question, SEPARATOR, *received], "max_tokens": LENGTH - len(received), "seed": seed}
    try:
        text = json.dumps({**body, "stream": True, "return_token_ids": True})
        connection.request("POST", "/v1/completions", text, {"connection": "close"})
        response = connection.getresponse()
        if response.status != 200:
            raise http.client.HTTPException(f"{engine.address} answers {response.status}")
        last = b""
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
            last = line.strip() or last
        if last != b"data: [DONE]":
            raise http.client.HTTPException(f"{engine.address} ended in mid-stream")
    finally:
        connection.close()


def _take(answer: Answer, chunk: dict[str, Any], engine: str) -> None:
    choice, version = chunk["choices"][0], chunk["weights_version"]
    answer.tokens += choice["token_ids"]
    answer.logprobs.append(choice["logprob"])
    last = answer.segments[-1] if answer.segments else Segment("", -1, 0)
    if (last.engine, last.version) == (engine, version):
        answer.segments[-1] = Segment(engine, version, last.count + 1)
    else:
        answer.segments.append(Segment(engine, version, 1))
