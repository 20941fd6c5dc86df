"""Messages of YAML's parser in plain words: what was found, and what is wanted there.

ruamel names tokens of the grammar (`<block end>`, `<scalar>`), which only authors of parsers know.
"""

from __future__ import annotations

import re

_TOKENS = {
    "<scalar>": "a text",
    "<stream end>": "the end of the file",
    "<document start>": "'---'",
    "<document end>": "'...'",
    "<block mapping start>": "a mapping",
    "<block sequence start>": "a list",
    "<block end>": "the end of the mapping or list",
    "<anchor>": "an anchor (&)",
    "<alias>": "an alias (*)",
    "<tag>": "a tag (!)",
    "<directive>": "a directive (%)",
    "?": "a key",
}
_AROUND = {
    "flow sequence": "the list [",
    "flow mapping": "the mapping {",
    "block collection": "the list",
    "block mapping": "the mapping",
    "quoted scalar": "the quotes",
    "block scalar": "the text",
    "plain scalar": "the text",
    "simple key": "the key",
    "alias": "the alias",
    "anchor": "the anchor",
}
_EXPECTED = re.compile(
    r"expected (?P<wanted>.+?),? but (?:found|got) \(?(?P<quote>['\"]?)(?P<found>.*?)(?P=quote),?\)?"
)
_QUOTES = "put a text with ': ' in it into quotes, and start each `key: value` in a line of its own"


def plain(problem: str) -> tuple[str, str]:
    """Return what a problem of the parser says in plain words, and a hint, which may be empty."""
    if problem == "mapping values are not allowed here":
        return "found ': ' where no key can be", _QUOTES
    if problem == "could not find expected ':'":
        return "found a line that is no `key: value`", "write ': ' behind the key, or indent a text of several lines"
    if problem == "found unexpected end of stream":
        return "found the end of the file within quotes", "close the quotes"
    match = _EXPECTED.fullmatch(problem)
    if match is None:
        return problem, ""
    found_text, expected_text = (
        _TOKENS.get(token, f"'{token}'") for token in (match["found"], match["wanted"].strip("'"))
    )
    if expected_text == "'---'" and match["found"] == "<stream end>":
        return "found the end of the file behind a directive (%), wanted is '---' and a mapping", ""
    if expected_text == "'---'":
        return (
            f"found {found_text} behind the end of the document",
            "a file holds one mapping, or several with --- between",
        )
    if match["wanted"] == "<block end>":
        return (
            f"found {found_text} where the next line of the block is wanted",
            "indent all its lines by the same spaces",
        )
    if match["wanted"] == "the node content":
        return f"found {found_text} where a value is wanted", "write a value, or put the text into quotes"
    if match["wanted"].startswith("',' or"):
        return f"found {found_text}, wanted is {match['wanted']}", "close the bracket, or put a comma"
    return problem, ""


def around(context: str, line: int) -> str:
    """Return where the text begins in which the parser met a problem, as "in the list of line 3: "; "" if unknown."""
    words = next((words for name, words in _AROUND.items() if context.endswith(f" {name}")), "")
    return f"in {words} of line {line}: " if words else ""
