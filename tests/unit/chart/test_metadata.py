"""What registries and Artifact Hub show of the chart and the package."""

import re
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_description_of_the_package_has_links_that_lead_somewhere_from_anywhere():
    """Of what is installed here: `make setup` builds it again when pyproject.toml changes."""
    said = metadata("dljob")
    links = re.findall(r"\]\(([^)]+)\)", str(said["Description"] or said.get_payload()))
    ours = [link for link in links if link.startswith("https://github.com/dljob/dljob/blob/main/")]
    assert [link for link in links if not re.match("https?:", link)] == []
    assert len(ours) > 25
