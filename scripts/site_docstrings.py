"""Shows the examples of docstrings as code: a griffe extension for mkdocstrings.

Docstrings have their doctests between paragraphs, where Markdown would take `>>>` for quotations. The extension puts
fences around them.
"""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*|\n(?P=indent) +\S.*)*", re.MULTILINE)


class DoctestFences(griffe.Extension):
    """Fences the doctests of every object."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring in place."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """The docstring with a fence around each run of lines that begins with a prompt."""
    return _DOCTEST.sub(lambda found: f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```", docstring)
