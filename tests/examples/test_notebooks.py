"""The notebooks run from the first cell to the last, and print what they are stored with."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


def _printed(notebook):
    """The text of each output; pictures have none."""
    return [
        output.get("text") or output.get("data", {}).get("text/plain")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_is_stored_with(path, tmp_path):
    # Not above: it parses 39 grammars, which would delay the first test of every process.
    import nbformat
    from nbclient import NotebookClient

    stored = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    NotebookClient(run, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert _printed(run) == _printed(stored) != []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_to_files(path):
    import nbformat

    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    links = [piece.partition(")")[0] for piece in text.split("](")[1:]]
    assert len(links) >= 3
    assert [link for link in links if not (path.parent / link).exists()] == []
