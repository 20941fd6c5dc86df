"""What a draft writes as YAML is read back as the draft, by `dljob validate` and by parsers of YAML 1.1."""

from __future__ import annotations

import math

import pytest
import yaml

from dljob.api.builder import DLJobBuilder
from dljob.spec.loading.load import load


@pytest.mark.parametrize(
    "word", ["on", "yes", "no", "y", "n", "off", "NO", "null", "~", "1e3", "0x10", "12:30", "", " a"]
)
def test_words_that_yaml_takes_for_something_else_stay_words(word: str) -> None:
    job = DLJobBuilder().role("w").run("a.B").env({"FLAG": word}).config({"mode": word}).end().build()
    text = job.to_yaml()
    role = load(text).spec.roles[0]
    assert (role.env[0].value, role.config["mode"]) == (word, word)
    assert yaml.safe_load(text) == job.model_dump()


def test_tuples_are_lists_and_numbers_stay_numbers() -> None:
    job = DLJobBuilder().role("w").run("a.B").config({"betas": (0.9, 1e-6), "most": math.inf}).end().build()
    config = yaml.safe_load(job.to_yaml())["spec"]["roles"][0]["config"]
    assert config == {"betas": [0.9, 1e-6], "most": math.inf}
