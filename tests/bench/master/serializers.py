"""The journal's codec against msgspec, on one state: rate, import time, and what each does with an unknown field.

    python tests/bench/master/serializers.py [--ranks 2000]

Needs `pip install msgspec` beside the locked environment: no product code uses it (ADR 72).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from immutables import Map

from dljob.master.persistence import codec
from dljob.master.state.state import JobState
from dljob.master.transition import initial
from dljob.plan.plan import plan
from dljob.spec.loading.load import parse

RUNS = 9


@dataclass
class Small:
    """A record with one field."""

    x: int = 0


def median_ms(run: Callable[[], object]) -> float:
    """Median time of some runs, in milliseconds."""
    took = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        run()
        took.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(took)


def state(ranks: int) -> JobState:
    """The first state of a job of one role."""
    role = {"name": "w", "replicas": ranks, "entrypoint": {"class": "a.B"}, "resources": {"cpu": "1"}}
    document = {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "t"},
        "spec": {"roles": [role]},
    }
    manifest = parse(document)
    return initial(plan(manifest), manifest.spec, "u", 1.0, own_nodes=False)


def main() -> None:
    """Print both codecs' figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2000)
    one = state(parser.parse_args().ranks)
    written, fields = codec.encode_state(one), codec.parts(JobState)
    begin = time.perf_counter()
    import msgspec

    took = 1e3 * (time.perf_counter() - begin)

    def pairs(value: Any) -> Any:
        if not isinstance(value, Map):
            raise TypeError(f"{type(value)} is no Map")
        rows = ([msgspec.to_builtins(k, enc_hook=pairs), v] for k, v in value.items())
        return sorted(rows, key=lambda row: json.dumps(row[0]))

    def mapped(kind: Any, data: Any) -> Any:
        if get_origin(kind) is not Map:
            raise NotImplementedError(kind)
        return Map(msgspec.convert(data, list[tuple[get_args(kind)]], dec_hook=mapped))

    def write() -> dict[str, Any]:
        return {name: msgspec.to_builtins(getattr(one, name), enc_hook=pairs) for name in fields}

    def read() -> dict[str, Any]:
        return {name: msgspec.convert(written[name], kind, dec_hook=mapped) for name, kind in fields.items()}

    made = write()
    assert all(json.dumps(made[name]) == json.dumps(written[name]) for name in fields), "the JSON differs"
    print(f"{len(one.ranks)} ranks, {len(json.dumps(written))} bytes of JSON; import of msgspec: {took:.1f} ms")
    ours, theirs = median_ms(lambda: codec.encode_state(one)), median_ms(write)
    print(f"encode: codec {ours:.1f} ms, msgspec {theirs:.1f} ms ({ours / theirs:.1f} x)")
    ours, theirs = median_ms(lambda: codec.decode_state(written, one.job)), median_ms(read)
    print(f"decode: codec {ours:.1f} ms, msgspec {theirs:.1f} ms ({ours / theirs:.1f} x)")
    print(f"a field of another version: msgspec reads {msgspec.convert({'x': 1, 'y': 2}, Small)}; codec refuses it")


if __name__ == "__main__":
    main()
