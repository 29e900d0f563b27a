"""The file of API keys."""

import pytest

from millpond.api_keys import read_api_keys
from millpond.errors import OptionError


def test_each_line_is_a_key_except_empty_lines_and_comments_however_they_are_indented(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# the model server\nfirst-key-0123456789\n\n   # everybody's notebooks\n  second-key-0123456789\n")
    assert read_api_keys(file) == ["first-key-0123456789", "second-key-0123456789"]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n  \n"])
def test_a_file_without_a_key_is_refused_by_its_path(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(OptionError, match="keys has no key"):
        read_api_keys(file)
