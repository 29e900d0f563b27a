"""Pages quote figures as they were measured."""

import pytest

from benchmarks.figures import filled, pages


@pytest.mark.parametrize("page", [*pages()], ids=lambda page: page.name)
def test_the_page_quotes_the_figures_last_measured(page):
    assert page.read_text() == filled(page), "run `make figures`"


@pytest.fixture
def page(tmp_path):
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- figures: keyed_state -->\n| old |\n<!-- end of figures -->\nafter\n")
    return page


def test_table_and_picture_take_the_place_of_what_stood_there_and_the_rest_stays(page, tmp_path):
    (tmp_path / "keyed_state.md").write_text("| new |\n")
    expected = (
        "before\n<!-- figures: keyed_state -->\n| new |\n\n![keyed state](../keyed_state.png)\n"
        "<!-- end of figures -->\nafter\n"
    )
    assert filled(page, tmp_path) == expected
    page.write_text(expected)
    assert filled(page, tmp_path) == expected


def test_what_was_not_measured_is_said_to_be(page, tmp_path):
    assert "Not measured yet: `.venv/bin/python -m benchmarks.keyed_state`" in filled(page, tmp_path)
