"""The reference of metrics lists every one: run this file as a program to write the list anew."""

from pathlib import Path

from millpond.metrics import VOCABULARY

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
BEGIN, END = "<!-- metrics -->\n", "<!-- end of metrics -->\n"


def listed():
    for area, metrics in VOCABULARY.items():
        yield f"### {area}\n\n| metric | kind | unit | labels | meaning | follows |\n|---|---|---|---|---|---|\n"
        for metric in metrics:
            labels, follows = (" ".join(f"`{name}`" for name in names) for names in (metric.labels, metric.follows))
            yield f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} | {follows} |\n"
        yield "\n"


def test_the_reference_lists_every_metric():
    page = PAGE.read_text()
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)] == "".join(listed())


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN)] + BEGIN + "".join(listed()) + text[text.index(END) :])
