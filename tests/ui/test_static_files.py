"""The files of the page: few bytes, nothing from outside, nothing that a strict policy would refuse."""

import re

import pytest

from millpond.ui.static_files import MAX_BYTES, POLICY, static_files

FILES = static_files()
TEXTS = {path: file.body.decode() for path, file in FILES.items()}


def test_the_page_has_at_most_300_kb_in_all():
    assert MAX_BYTES == 300_000
    assert 10_000 < sum(len(file.body) for file in FILES.values()) <= MAX_BYTES


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_file_names_no_other_server(path):
    without_namespaces = TEXTS[path].replace("http://www.w3.org/2000/svg", "")
    named = re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}", without_namespaces)
    assert [each for each in named if "DRIVER" not in each] == []


@pytest.mark.parametrize("path", sorted(FILES))
def test_every_path_within_a_file_is_relative_and_leads_to_a_file(path):
    found = re.findall(r"""(?:src|href)="([^"#]+)"|from "([^"]+)"|ask\(["`]([^"`?$]+)""", TEXTS[path])
    for target in (one or other or third for one, other, third in found):
        assert not target.startswith("/"), target
        if target.endswith((".js", ".css", ".svg")):
            folder = path.rpartition("/")[0]
            parts = [*folder.split("/"), *target.split("/")] if target.startswith(".") else ["", *target.split("/")]
            resolved = []
            for part in parts:
                if part == "..":
                    resolved.pop()
                elif part != ".":
                    resolved.append(part)
            assert "/".join(resolved) in FILES, target


@pytest.mark.parametrize("path", sorted(FILES))
def test_no_text_becomes_markup_and_no_style_or_script_is_inline(path):
    words = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "<style",
        ' style="',
    )
    assert [word for word in words if word in TEXTS[path]] == []
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", TEXTS[path]))


def test_every_file_is_sent_with_the_policy_and_a_mark():
    for file in FILES.values():
        assert file.headers["content-security-policy"] == POLICY
        assert "unsafe" not in POLICY
        assert file.headers["x-content-type-options"] == "nosniff"
        assert file.headers["etag"] == file.etag
