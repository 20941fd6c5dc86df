"""Judge process of the webhook: questions on stdin, answers on stdout, one at a time.

It is a process rather than a thread because planning holds the GIL; a check that takes too long is killed with it. Its
memory is limited, so that a hostile spec costs this process and not the operator.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import struct
import sys
from dataclasses import asdict
from typing import BinaryIO

from pydantic import TypeAdapter

from dljob.reconcile.admission import review
from dljob.reconcile.state.excess import NESTING
from dljob.reconcile.state.fields import part, text
from dljob.reconcile.state.model import Settings

LENGTH = struct.Struct(">I")
"""Length of each question and answer in bytes, sent before it."""
MEMORY = 192 * 1024**2
"""Most data of this process in bytes; it starts with 30 MB. The container's limit is shared with the operator."""
NICE = 5
"""Niceness, so that the operator itself gets the CPU first."""


_SETTINGS = TypeAdapter(Settings)


def dumped(settings: Settings) -> str:
    """Serialize settings as the argument of this program."""
    return _SETTINGS.dump_json(settings).decode()


def loaded(argument: str) -> Settings:
    """Parse the settings of `dumped`."""
    return _SETTINGS.validate_json(argument)


def judged(body: bytes, settings: Settings) -> bytes:
    """Answer a question: uid, version, namespace, and the admission or the error."""
    try:
        asked = json.loads(body)
        request = part(asked, "request")
        request_fields = {"uid": text(request, "uid"), "version": text(asked, "apiVersion") or "admission.k8s.io/v1"}
        request_fields["namespace"] = text(request, "namespace")
        answer = {**request_fields, "admission": asdict(review(request, settings))}
    except (Exception, MemoryError) as error:  # noqa: BLE001 - the operator logs it and admits the job
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    return json.dumps(answer).encode()


def serve(questions: BinaryIO, answers: BinaryIO, settings: Settings) -> None:
    """Report readiness by an empty answer, then answer until stdin ends."""
    # The parent waits for it: the imports of this process take about a second.
    answers.write(LENGTH.pack(0))
    answers.flush()
    while len(head := questions.read(LENGTH.size)) == LENGTH.size:
        answer = judged(questions.read(LENGTH.unpack(head)[0]), settings)
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


def main() -> None:
    """Serve on stdin and stdout; Ctrl-C is left to the operator."""
    os.nice(NICE)
    sys.setrecursionlimit(NESTING)
    with contextlib.suppress(ValueError, OSError):  # a lower limit is set already
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    with contextlib.suppress(KeyboardInterrupt):  # the operator ends this process by closing its stdin
        serve(sys.stdin.buffer, sys.stdout.buffer, loaded(sys.argv[1]))


if __name__ == "__main__":
    main()
