"""The loader refuses a repeated item wherever the API server does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from bound_cases import WHOLE, nodes
from cel_cases import job

from dljob.errors import SpecError
from dljob.spec.crd import crd
from dljob.spec.loading.load import parse

SPEC = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
ONCE = [path for path, node in nodes(SPEC, "") if node.get("x-kubernetes-list-type") in ("set", "map")]


@pytest.mark.parametrize("path", ONCE)
def test_an_item_that_the_api_server_takes_once_is_refused_a_second_time(path: str) -> None:
    spec: Any = copy.deepcopy(WHOLE)
    holder, place = spec, "spec"
    *way, last = path[1:].split(".")
    for part in way:
        holder = holder[part] if not part.endswith("[]") else holder[part[:-2]][0]
        place += f".{part.replace('[]', '[0]')}"
    holder[last] = [*holder[last], holder[last][-1]]
    with pytest.raises(SpecError) as refused:
        parse(job(spec))
    second = f"{place}.{last}[{len(holder[last]) - 1}]"
    assert any(problem.path.startswith(second) for problem in refused.value.problems), refused.value
