"""Pages quote figures as they were measured."""

import pytest

from benchmarks.figures import filled, pages


@pytest.mark.parametrize("page", [*pages()], ids=lambda page: page.name)
def test_the_page_quotes_the_figures_last_measured(page):
    assert page.read_text() == filled(page.read_text()), "run `make figures`"


def test_a_table_takes_the_place_of_what_stood_there_and_the_rest_stays(tmp_path):
    (tmp_path / "state.md").write_text("| new |\n")
    page = "before\n<!-- figures: state -->\n| old |\n<!-- end of figures -->\nafter"
    expected = "before\n<!-- figures: state -->\n| new |\n<!-- end of figures -->\nafter"
    assert filled(page, tmp_path) == expected
    assert filled(expected, tmp_path) == expected
