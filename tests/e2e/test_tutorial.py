"""The tutorial runs against a server and prints what its committed outputs show."""

import re

import nbformat
import pytest
from nbformat import NotebookNode

from tests.conftest import ROOT, RunningServer
from tests.e2e.tutorial import TUTORIAL, execute, strip

MAX_BYTES = 400_000
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
TOLERANCE = 0.02
"""Maximum difference of a printed decimal number, like in the other documents.

Attention, comparisons and inner layers are computed in float32 on every CPU. Embeddings and similarities are computed
in bfloat16 if the CPU supports it, which changes them by less than 0.01, and rounding to two decimals adds 0.01.
Integers, such as token ids and clusters, must be equal.
"""


def test_tutorial_prints_its_committed_outputs(server: RunningServer) -> None:
    """A cell that raises fails the execution."""
    committed, executed = nbformat.read(TUTORIAL, as_version=4), execute(server.rest)
    for cell, expected in zip(executed.cells, committed.cells, strict=True):
        assert output_types(cell) == output_types(expected), cell.id
        assert_similar(printed(cell), printed(expected))


def output_types(cell: NotebookNode) -> list[str]:
    """Return the kind of each output. A warning is an output on stderr."""
    return [output.get("name") or " ".join(sorted(output.data)) for output in cell.get("outputs", [])]


def printed(cell: NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def assert_similar(text: str, expected: str) -> None:
    assert re.split(r"\s+", NUMBER.sub("#", text)) == re.split(r"\s+", NUMBER.sub("#", expected))
    for number, other in zip(NUMBER.findall(text), NUMBER.findall(expected), strict=True):
        tolerance = TOLERANCE if "." in other else 0
        assert float(number) == pytest.approx(float(other), abs=tolerance), (text, expected)


def test_committed_notebook_contains_outputs_and_nothing_of_the_machine() -> None:
    content = TUTORIAL.read_text()
    notebook = nbformat.reads(content, as_version=4)
    assert len(content) < MAX_BYTES
    assert str(ROOT) not in content
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert content.rstrip() == nbformat.writes(strip(notebook)).rstrip(), "run make tutorial"
    assert "stderr" not in {name for cell in notebook.cells for name in output_types(cell)}
