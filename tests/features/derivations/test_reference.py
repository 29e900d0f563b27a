"""The reference of derivations lists every function: run this file as a program to write the list anew."""

from pathlib import Path

from millpond.features.derivations.check import FAMILIES

PAGE = Path(__file__).parents[3] / "docs/reference/derivations.md"
BEGIN, END = "<!-- functions -->\n", "<!-- end of functions -->\n"


def listed():
    for title, family in FAMILIES.items():
        yield f"### {title}\n\n| function | also named | value |\n|---|---|---|\n"
        for function in family:
            others = " ".join(f"`{name}`" for name in function.names[1:])
            says = function.says.replace("`||`", "<code>&#124;&#124;</code>")
            yield f"| `{function.signature}` | {others} | {says} |\n"
        yield "\n"


def test_the_reference_lists_every_function():
    page = PAGE.read_text()
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)] == "".join(listed())


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN)] + BEGIN + "".join(listed()) + text[text.index(END) :])
