"""What registries and Artifact Hub show of the chart and the package."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]


def test_the_chart_says_whose_it_is_and_where_it_comes_from():
    chart = yaml.safe_load((ROOT / "charts/dljob/Chart.yaml").read_text())
    assert chart["home"] in chart["sources"]
    assert chart["maintainers"][0]["name"]
    assert (ROOT / chart["icon"].partition("/main/")[2]).is_file()


def test_the_package_says_where_it_comes_from_and_which_pythons_it_takes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(project["urls"])
    pythons = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert (project["requires-python"], pythons) == (">=3.11,<3.14", ["3.11", "3.12", "3.13"])


def test_the_description_of_the_package_has_links_that_lead_somewhere_from_anywhere():
    """Of what is installed here: `make setup` builds it again when pyproject.toml changes."""
    said = metadata("dljob")
    links = re.findall(r"\]\(([^)]+)\)", str(said["Description"] or said.get_payload()))
    ours = [link for link in links if link.startswith("https://github.com/dljob/dljob/blob/main/")]
    assert [link for link in links if not re.match("https?:", link)] == []
    assert len(ours) > 25
