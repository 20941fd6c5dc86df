"""What the documents show is what the code takes: YAML loads and plans, Python compiles, links lead somewhere."""

import re
from pathlib import Path

import pytest

from dljob.plan.plan import plan
from dljob.spec.load import load

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *ROOT.glob("examples/*/*.md"),
]


def blocks(language):
    found = []
    for page in PAGES:
        for number, body in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)):
            found.append(pytest.param(body, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


@pytest.mark.parametrize("body", [b for b in blocks("yaml") if "kind: DLJob" in b.values[0]])
def test_yaml_loads_and_plans(body):
    assert plan(load(body)).units


@pytest.mark.parametrize("body", blocks("python"))
def test_python_compiles(body):
    assert compile(body, "block", "exec")


def test_the_builder_of_the_readme_builds_the_job_it_says():
    (body,) = [b.values[0] for b in blocks("python") if "DLJobBuilder" in b.values[0] and "README" in str(b.id)]
    names = {}
    exec(body.split("handle =")[0], names)  # noqa: S102 - our own README
    made = plan(names["job"].manifest("ppo"))
    assert {name: role.accelerator for name, role in made.roles.items()} == {
        "actor": ("NPU", 6_000),
        "critic": ("NPU", 4_000),
        "rollout": ("NPU", 20_000),
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert not missing


def test_make_help_names_every_target_of_the_contributing_page():
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z]+)`", (ROOT / "CONTRIBUTING.md").read_text())) <= targets
