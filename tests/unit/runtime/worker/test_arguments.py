"""A script's arguments, as torchrun's line and as a job's file have them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.api import torchrun
from dljob.master.state.actions import RankStart
from dljob.plan.plan import plan
from dljob.runtime.process import environment
from dljob.spec.model import DLJobManifest

FILE = {"metadata": {"name": "j"}, "spec": {"roles": [{"name": "w", "entrypoint": {"module": "a.b"}}]}}
ROLE = plan(DLJobManifest.model_validate(FILE)).roles["w"]
PIECES = (
    "$",
    "$$",
    "{",
    "}",
    "local_rank",
    "LOCAL_RANK",
    "$local_rank",
    "${local_rank}",
    "{local_rank}",
    "${rank}",
    "x ",
)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), max_size=3))
@settings(max_examples=300)
def test_arguments_of_a_line_have_the_local_rank_where_torchrun_puts_it(said):
    macros = pytest.importorskip("torch.distributed.elastic.utils.api").macros
    script = replace(ROLE, args=tuple(torchrun.argument(each) for each in said), elastic=True)
    start = RankStart(6, 1, 2, 4, 1)
    assert environment.arguments(script, start) == tuple(macros.substitute(said, "2"))
    assert environment.arguments(replace(script, elastic=False), start) == script.args


def test_of_the_arguments_of_a_job_only_the_local_rank_means_something():
    said = {
        "--log=a-${local_rank}-${local_rank}.txt": "--log=a-2-2.txt",
        "$${local_rank} $$${local_rank}": "${local_rank} $2",
        "echo $$ $local_rank $5 ${rank} {local_rank}": "echo $$ $local_rank $5 ${rank} {local_rank}",
    }
    script = replace(ROLE, args=tuple(said), elastic=True)
    assert environment.arguments(script, RankStart(6, 1, 2, 4, 1)) == tuple(said.values())
    assert tuple(map(torchrun.argument, ("a-${local_rank}", "b", "$5"))) == ("a-${local_rank}", "b", "$5")
