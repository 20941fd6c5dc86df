"""What the documents show is what the code takes: YAML loads and plans, Python compiles, links lead somewhere."""

import re
from pathlib import Path

import pytest
import yaml

from dljob.plan.plan import plan
from dljob.spec.loading.load import load
from dljob.spec.model import DLJobSpec

ROOT = Path(__file__).parents[3]
FIELDS = {field.alias or name for name, field in DLJobSpec.model_fields.items()}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
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
def test_yaml_blocks_of_the_pages_load_and_plan(body):
    assert plan(load(body)).units


def parts():
    """What shows a part of a spec, as a whole DLJob; a part without roles gets one that fits anything."""
    for block in blocks("yaml"):
        shown = yaml.safe_load(block.values[0])
        spec = shown.get("spec", shown) if isinstance(shown, dict) else {}
        if "kind" not in shown and spec and set(spec) <= FIELDS:
            whole = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "part"}}
            role = {"name": "any", "entrypoint": {"class": "any.Any"}}
            yield pytest.param({**whole, "spec": {"roles": [role], **spec}}, id=block.id)


@pytest.mark.parametrize("document", list(parts()))
def test_partial_spec_blocks_of_the_pages_load(document):
    assert load(yaml.safe_dump(document)).spec.roles


@pytest.mark.parametrize("body", blocks("python"))
def test_python_blocks_of_the_pages_compile(body):
    assert compile(body, "block", "exec")


def test_links_of_the_pages_lead_to_files_and_headings():
    for page in PAGES:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)  # code has brackets of its own
        targets = [found.partition("#") for found in re.findall(r"\]\(([^):]+)\)", prose)]
        missing = [file for file, _, _ in targets if not (page.parent / file).exists()]
        assert not missing, page
        astray = [f"{file}#{anchor}" for file, _, anchor in targets if anchor and anchor not in anchors(page, file)]
        assert not astray, page


def anchors(page, file):
    """What can be pointed at in a page, as GitHub makes it of headings."""
    text = (page.parent / file if file else page).read_text()
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_make_help_names_every_target_of_the_contributing_page():
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z]+)`", (ROOT / "CONTRIBUTING.md").read_text())) <= targets
