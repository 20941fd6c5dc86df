"""The package's long description: README, with links that lead to the repository wherever it is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"(!\[[^\]]*\]\()(?![a-z]+:)([^)]+)\)")
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")


class LongDescription(MetadataHookInterface):
    """What a registry shows of the package; it has no files beside the page."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        files = metadata["urls"]["Homepage"] + "/blob/main"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = PICTURE.sub(rf"\g<1>{metadata['urls']['Homepage']}/raw/main/\2)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(rf"]({files}/\1)", text)}
