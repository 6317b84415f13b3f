"""The notebook of the documentation runs, and the training that it stops goes on as if it had not been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpupipe.host.children import python_path

NOTEBOOK = Path(__file__).parent.parent / "docs" / "start" / "first_training.ipynb"
SHOWN = """
import json
print(json.dumps({"undisturbed": undisturbed, "stopped": stopped, "resumed": resumed, "rates": rates}))
"""


def code_cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_what_is_committed_has_no_outputs() -> None:
    cells = code_cells()
    assert len(cells) > 5
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    assert {cell["execution_count"] for cell in cells} == {None}


def test_it_ends_with_the_equality_of_the_losses() -> None:
    assert code_cells()[-1]["source"][-1] == "assert stopped + resumed == undisturbed"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.trainers("nbclient", "ipykernel")
def test_it_runs_and_resumes_with_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", python_path())
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(SHOWN))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = json.loads(notebook.cells[-1].outputs[0].text)
    assert len(set(shown["undisturbed"])) == 36
    assert len(shown["stopped"]) == 15
    assert shown["stopped"] + shown["resumed"] == shown["undisturbed"]
    assert sum(shown["undisturbed"][-6:]) < 0.9 * sum(shown["undisturbed"][:6])
    assert min(shown["rates"].values()) > 0
    pictures = [one for cell in notebook.cells for one in cell.get("outputs", []) if "image/png" in one.get("data", {})]
    assert len(pictures) == 3  # a batch, the losses, the rates
