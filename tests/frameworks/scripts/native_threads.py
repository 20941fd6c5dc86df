"""Ranks of a script and of a class that use pyarrow and tokenizers, in threads of theirs, in each of two lives.

Each life notes in the folder NOTES what was imported when it began, and what forked it.
"""

import json
import os
import signal
import sys
from pathlib import Path

# Before the imports: a fork server does those with which a script begins, up to its first call.
HAD = {"pyarrow": "pyarrow" in sys.modules, "tokenizers": "tokenizers" in sys.modules}

import pyarrow  # noqa: E402
import pyarrow.compute  # noqa: E402
import tokenizers  # noqa: E402

import dljob  # noqa: E402

WORDS = 20_000


def used() -> tuple[int, int]:
    """Return what both have computed, each in a pool of threads."""
    table = pyarrow.table({"key": [number % 7 for number in range(WORDS)], "value": list(range(WORDS))})
    sums = table.group_by("key", use_threads=True).aggregate([("value", "sum")])["value_sum"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokens = sum(len(each.ids) for each in tokenizer.encode_batch(["a b"] * WORDS))
    return pyarrow.compute.sum(sums).as_py(), tokens


def live() -> None:
    """Use both; then die, in the first life."""
    me = dljob.current_worker()
    total, tokens = used()
    above = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace")
    said = {"had": HAD, "total": total, "tokens": tokens, "server": "server.py" in above}
    Path(os.environ["NOTES"], f"{me.role}-{me.incarnation}.json").write_text(json.dumps(said))
    if me.incarnation == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class Uses(dljob.Worker):
    """The same in a rank of a class."""

    def run(self) -> None:
        """Use both."""
        live()


if __name__ == "__main__":
    live()
