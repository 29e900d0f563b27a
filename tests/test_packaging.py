"""What the metadata, the docs and the test matrix say of extras and versions is one and the same."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
INSTALL = (ROOT / "docs/how-to/install.md").read_text()


def _table(header):
    """The cells of the rows of a table of the page on installing."""
    lines = INSTALL.partition(header)[2].split("\n\n")[0].split("\n")[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def _packages(extra):
    """The packages of an extra, and its other extras in backquotes, as the metadata has them."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        others = re.fullmatch(r"millpond\[(.*)\]", requirement)
        if others:
            found |= {f"`{other}`" for other in others[1].split(",")}
        else:
            found.add(re.match(r"[\w-]+", requirement)[0])
    return found


def _documented_packages(cell):
    others = re.match(r"what (.*?) brings?(, |$)", cell)
    rest = cell if others is None else cell[others.end() :]
    found = set(re.findall(r"`\w+`", others[1])) if others else set()
    return found | {name for name in rest.split(", ") if name}


DOCUMENTED = {extra.strip("`"): brings for extra, _, brings in _table("| extra | for | brings |")}
VERSIONS = {what: versions.split(", ") for what, versions, _ in _table("| | versions | tested by |")}


@pytest.fixture(scope="module")
def combinations():
    return list(runpy.run_path(str(ROOT / "scripts/matrix.py"))["combinations"]())


def test_the_page_on_installing_has_every_extra():
    assert sorted(DOCUMENTED) == sorted(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_the_page_on_installing_names_what_an_extra_brings(extra):
    assert _documented_packages(DOCUMENTED[extra]) == _packages(extra)


def test_the_page_on_installing_names_the_hard_dependencies():
    *most, last = (re.match(r"[\w-]+", requirement)[0] for requirement in PROJECT["dependencies"])
    assert f"It needs {', '.join(most)} and {last}." in INSTALL


def test_every_python_that_is_claimed_is_tested(combinations):
    prefix = "Programming Language :: Python :: "
    claimed = [name.removeprefix(prefix) for name in PROJECT["classifiers"] if re.match(prefix + r"\d+\.\d+$", name)]
    assert claimed == VERSIONS["Python"]
    assert PROJECT["requires-python"] == f">={claimed[0]}"
    # The matrix also looks ahead: it tests the next Python where there is one.
    newest = f"3.{int(claimed[-1].partition('.')[2]) + 1}"
    assert {each.python for each in combinations} == {*claimed, newest}


def test_every_java_that_is_claimed_is_tested(combinations):
    assert VERSIONS["Java"] == ["17", *[each.java for each in combinations if each.java]]


def test_every_pyspark_that_is_claimed_is_tested(combinations):
    oldest, newest = VERSIONS["PySpark"][0], VERSIONS["PySpark"][-1]
    after = f"4.{int(newest.partition('.')[2]) + 1}"
    assert f"pyspark>={oldest},<{after}" in PROJECT["optional-dependencies"]["spark"]
    assert {each.pyspark for each in combinations if each.pyspark} == {f"pyspark=={v}.*" for v in VERSIONS["PySpark"]}


def test_the_files_that_the_matrix_runs_are_there(combinations):
    named = {path for each in combinations for path in (*each.tests, *each.smoke)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def _published_readme():
    """The README as the package index gets it."""
    text = (ROOT / "README.md").read_text()
    for each in SETTINGS["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    return text


def test_the_metadata_says_where_code_docs_changes_and_issues_are():
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())


def test_every_link_of_the_published_readme_is_absolute_and_leads_to_a_file():
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=[\"']([^\"']+)", _published_readme())
    targets = [target or other for target, other in links]
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    own = [target for target in targets if target.startswith(PROJECT["urls"]["Repository"] + "/")]
    raw = PROJECT["urls"]["Repository"].replace("github.com", "raw.githubusercontent.com") + "/main/"
    paths = [re.sub(r"^.*?/blob/main/", "", target) for target in own if "/blob/" in target]
    paths += [target.removeprefix(raw) for target in targets if target.startswith(raw)]
    assert len(paths) > 10, "the README has links and pictures of its own"
    assert [path for path in paths if not (ROOT / path.partition("#")[0]).exists()] == []
