"""Writes manifests of the corpus anew: the key paths of a public manifest, with values of our own.

    git show COMMIT:PATH | python tests/unit/convert/anew.py owner/name COMMIT LICENCE PATH > FILE.yaml

The head of each file has the number of the original's key paths and their SHA-256. With --check FILE in front of the
other words the original is compared with a file that was written before. Of Markdown the YAML blocks are taken.
Keys, numbers, amounts, words of an API (`Never`), options and programs of command lines are facts and stay; names,
images, paths, texts and code become others, the same word the same other one. Comments, and documents other than
jobs and their runtimes, are left out.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from dljob.spec.text import tree
from dljob.spec.text.emit import to_yaml
from dljob.spec.text.tree import Loc

JOBS = ("RayJob", "RayCluster", "PyTorchJob", "TrainJob", "JobSet", "ElasticJob")
KINDS = (*JOBS, "TrainingRuntime", "ClusterTrainingRuntime")
PROGRAMS = frozenset(
    (
        *("python", "python3", "bash", "sh", "/bin/bash", "/bin/sh", "torchrun", "dlrover-run", "accelerate", "launch"),
        *("deepspeed", "pip", "install", "git", "clone", "cd", "export", "echo", "sleep", "exec", "uv", "run", "ray"),
        *("torch.distributed.run", "torch.distributed.launch", "torch-distributed", "auto", "gpu", "cpu", "c10d"),
        *("static", "tee", "node", "pytorch", "main", "ray-head", "ray-worker", "/dev/shm", "/dev/log"),
        *("trainer", "dataset-initializer", "model-initializer"),
    )
)
AMOUNT = re.compile(r"-?\d+(\.\d+)?(m|[kMGTP]i?|h|s)?")
ENUM = re.compile(r"[A-Z][A-Za-z0-9]+|[A-Z][A-Z0-9_]+")
VARIABLE = re.compile(r"\$[({]?[A-Za-z_][A-Za-z0-9_]*[)}]?")
OPTION = re.compile(r"(--?[A-Za-z][\w-]*)(=(.*))?", re.DOTALL)
FILE = re.compile(r"(.*/)?([\w-]+)(\.(?:py|sh|json|yaml))")


class Words:
    """Other words for those of a document."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def other(self, word: str, form: str = "a{}") -> str:
        """Return the other word of a word."""
        return self._known.setdefault(word, form.format(len(self._known) + 1))


def value(key: str, text: str, words: Words) -> str:
    """Return a text of our own in place of one."""
    if key in ("apiVersion", "kind") or AMOUNT.fullmatch(text) or ENUM.fullmatch(text) or text in PROGRAMS or not text:
        return text
    if key == "image":
        return "rayproject/ray:2.60.0" if re.search(r"rayproject/ray|/ray:", text) else "example.com/train:1"
    if key == "rayVersion":
        return "2.60.0"
    if key == "runtimeEnvYAML":
        (document,) = tree.read(text)
        return to_yaml(made("", document.data, words))
    if key in ("command", "args", "entrypoint"):
        return line(text, words)
    if "://" in text:
        return f"{text.partition('://')[0]}://example/{words.other(text)}"
    if host := re.fullmatch(r"([\w.-]+):(\d+)", text):
        return f"{words.other(host[1])}:{host[2]}"
    return path(text, words) if text.startswith("/") else words.other(text)


def path(text: str, words: Words) -> str:
    """Return another path of the same kind."""
    found = FILE.fullmatch(text)
    if not found:
        return words.other(text, "/data/a{}") if text.startswith("/") else words.other(text, "a{}/b")
    folder = "/home/ray/" if text.startswith("/home/ray") else "/data/" if text.startswith("/") else ""
    return f"{folder}{words.other(found[2])}{found[3]}"


def line(text: str, words: Words) -> str:
    """Return a command line of the same programs and options."""
    if re.search(r"^\s*(import|from) \w+", text, re.MULTILINE) and "torchrun" not in text:
        return "print('hello')\n"
    return "".join(word if not word.strip() else one_word(word, words) for word in re.split(r"(\s+)", text))


def one_word(word: str, words: Words) -> str:
    """Return another word in place of one of a command line."""
    if (
        word in PROGRAMS
        or AMOUNT.fullmatch(word)
        or VARIABLE.fullmatch(word)
        or re.fullmatch(r"[|&;<>()\\\"'#]+|-", word)
    ):
        return word
    if option := OPTION.fullmatch(word):
        said = option[3]
        return word if said is None else f"{option[1]}={one_word(said, words) if said else ''}"
    if re.fullmatch(r"\d+:(\d+|\$\w+)", word):
        return word
    if FILE.fullmatch(word):
        return path(word, words)
    if pair := re.fullmatch(r"([a-z_]+)=(.+)", word):
        return f"{pair[1]}={one_word(pair[2], words)}"
    return words.other(word)


def made(key: str, data: Any, words: Words) -> Any:
    """Return data of the same key paths."""
    if isinstance(data, dict):
        return {name: made(name, one, words) for name, one in cast("dict[str, Any]", data).items()}
    if isinstance(data, list):
        return [made(key, one, words) for one in cast("list[Any]", data)]
    return value(key, data, words) if isinstance(data, str) else data


def key_paths(data: Any, loc: Loc = ()) -> Iterator[Loc]:
    """Yield all key paths of a document."""
    if isinstance(data, dict):
        for name, one in cast("dict[str, Any]", data).items():
            yield (*loc, name)
            yield from key_paths(one, (*loc, name))
    elif isinstance(data, list):
        for at, one in enumerate(cast("list[Any]", data)):
            yield from key_paths(one, (*loc, at))


def jobs(text: str) -> list[Any]:
    """Return the jobs and runtimes of a text."""
    return [one.data for one in tree.read(text) if isinstance(one.data, dict) and one.data.get("kind") in KINDS]


def seal(documents: Iterable[Any]) -> str:
    """Return the number of key paths of these documents, and their SHA-256."""
    rows = ["/".join(map(str, loc)) for data in documents for loc in key_paths(data)]
    return f"{len(rows)} key paths, SHA-256 {hashlib.sha256(chr(10).join(rows).encode()).hexdigest()}"


def anew(text: str) -> list[Any]:
    """Return the jobs of a text with other values, and the same key paths."""
    # Of the whole file: a document refers to others by name.
    words = Words()
    return [made("", data, words) for data in jobs(text)]


def main() -> None:
    """Write a manifest of stdin anew to stdout, or compare it with a file."""
    *check, repository, commit, licence, where = sys.argv[1:]
    text = sys.stdin.read()
    if where.endswith(".md"):
        text = "---\n".join(re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    head = [f"# Key paths of {repository}, {where}", f"# at {commit} ({licence}); the values are our own."]
    head.append(f"# {seal(jobs(text))}")
    if check:
        written = Path(check[1]).read_text(encoding="utf-8")
        same = written.splitlines()[:3] == head and seal(jobs(written)) == seal(jobs(text))
        sys.exit(0 if same else f"{check[1]} has other key paths than {where}")
    print("\n".join(head))
    print("---\n".join(to_yaml(one) for one in anew(text)), end="")


if __name__ == "__main__":
    main()
