"""The notebook of the documentation: every cell runs, and holds no output that could be out of date."""

import json
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "docs" / "kvcalc.ipynb"


def test_every_cell_of_the_notebook_runs() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    names: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(cells, 1):
        assert not cell["outputs"]
        exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, cell {number}", "exec"), names)  # noqa: S102
    assert {"deployment", "decode", "fit", "frame"} <= set(names)
