"""A notebook that was run and saved, as its file shows it."""

from __future__ import annotations

import npzkit
import numpy as np
import pytest

for package in ("bokeh", "ipykernel", "nbclient"):
    pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_saved_notebook_shows_what_its_cells_returned(tmp_path, monkeypatch):
    """The cell of a page that has ended still has a table; an error shows the caller's line."""
    import nbclient
    import nbformat

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros((3, 4)), "text": np.array(["12345678"])})
    sources = ["import npzkit\nnpzkit.view('a.npz')", "npzkit.open('a.npz')['none']"]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True)
    client.execute(cwd=str(tmp_path))
    shown, error = (cell.outputs[-1] for cell in notebook.cells)
    frame, table = shown.data["text/html"].split("</iframe>")
    assert "http://127.0.0.1:" in frame
    assert "(3, 4)</td>" in table
    assert "&lt;U8</td>" in table
    text = "\n".join(error.traceback)
    assert "no array named 'none'" in text
    assert "npzkit/" not in text
