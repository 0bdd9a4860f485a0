"""The notebook of the docs, executed by a real kernel: a queue inside a running loop, and what is shown of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs/notebook.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last line of each cell of code -> what it showed."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = str(tmp_path_factory.mktemp("notebook"))
    NotebookClient(notebook, timeout=100, resources={"metadata": {"path": folder}}).execute()
    return {
        cell.source.splitlines()[-1]: cell.outputs[-1].get("data", {}) if cell.outputs else {}
        for cell in notebook.cells
        if cell.cell_type == "code"
    }


def test_a_queue_works_inside_a_running_loop(cells: dict[str, Any]) -> None:
    assert cells["[receipt.disposition for receipt in receipts]"]["text/plain"] == "['new', 'new', 'joined']"
    shown = cells['[(result.position, result.text) for result in queue.results("birds")]']["text/plain"]
    assert shown == "[(0, 'yes'), (1, 'no'), (2, 'yes')]"


def test_an_async_queue_drains_on_the_loop_of_the_notebook(cells: dict[str, Any]) -> None:
    assert cells["(summary.done, await waiting)"]["text/plain"] == "(1, True)"


def test_queue_job_and_summary_are_shown_as_tables(cells: dict[str, Any]) -> None:
    words = {
        "queue": ["<caption>Queue(&#x27;", "ready</th>", ">2</td>"],
        "queue.drain(lanes=answer)": ["<caption>Summary of a drain</caption>", ">done</th>", ">lane callable</th>"],
        "queue.job(receipts[0].job_id)": ["<caption>Job 1</caption>", ">done</td>", ">settled</th>"],
    }
    for line, wanted in words.items():
        html = cells[line]["text/html"]
        assert [word for word in wanted if word not in html] == [], html


def test_the_notebook_is_kept_without_what_it_showed() -> None:
    code = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.source for cell in code if cell.outputs or cell.execution_count] == []
