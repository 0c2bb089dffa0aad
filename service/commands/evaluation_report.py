"""The two formats of an evaluation: JSON and a table."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from service.commands.figures import Evaluation, Row
from service.commands.measures import Estimate
from service.commands.report import describe_model, model_record

TASKS = ("sts", "retrieval", "word_in_context", "attribution")


def evaluation_record(evaluation: Evaluation) -> dict[str, Any]:
    """Return the evaluation for programs."""
    files = {
        name: {"file": str(file.path), "lines_read": file.lines_read, "complete": file.is_complete}
        for name, file in evaluation.files.items()
    }
    return {"model": model_record(evaluation.info, evaluation.truncated), "files": files} | _task_records(evaluation)


def evaluation_lines(evaluation: Evaluation) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"model      {describe_model(evaluation.info)}"
    for name, file in evaluation.files.items():
        rest = "" if file.is_complete else "; the file has more, see --limit"
        yield f"file       {name.replace('_', '-')}: {file.path}, {file.lines_read:,} lines{rest}"
    if evaluation.truncated:
        yield f"truncated  {evaluation.truncated:,} texts to {evaluation.info.max_input_tokens} tokens"
    yield from _chance_lines(evaluation)
    yield ""
    rows = list(evaluation.rows())
    task, measure = (max(map(len, column)) + 2 for column in zip(*map(_labels, rows), strict=True))
    yield f"{'task':<{task}}{'measure':<{measure}}{'value':>9}   95 % interval"
    for row in rows:
        name, unit = _labels(row)
        yield f"{name:<{task}}{unit:<{measure}}{_figures(row.estimate)}"


def _chance_lines(evaluation: Evaluation) -> Iterator[str]:
    words, attribution = evaluation.word_in_context, evaluation.attribution
    if words is not None:
        yield f"majority   {words.majority:.4f} of the pairs of words have the more frequent label"
    if attribution is not None:
        yield f"chance     {attribution.chance:.4f} is the precision@1 of a random order of the words"
        if attribution.reference_chance is not None:
            lines = f"{attribution.references:,} lines with a reference"
            yield f"chance     {attribution.reference_chance:.4f} for the {lines}"
        for name, reason in attribution.omitted.items():
            yield f"omitted    {name}: {reason}"


def _labels(row: Row) -> tuple[str, str]:
    return (f"{row.subject}, {row.method}" if row.method else row.subject), row.measure


def _figures(estimate: Estimate) -> str:
    if estimate.value is None:
        return "not defined, because all similarities are equal"
    interval = "not defined" if estimate.low is None else f"{estimate.low:.4f} to {estimate.high:.4f}"
    return f"{estimate.value:9.4f}   {interval}"


def _task_records(evaluation: Evaluation) -> dict[str, Any]:
    return {task: _record(getattr(evaluation, task)) for task in TASKS}


def _record(figures: Any) -> Any:
    """Return figures as objects of JSON; keys have underscores instead of spaces."""
    if is_dataclass(figures):
        return {field.name: _record(getattr(figures, field.name)) for field in fields(figures)}
    if isinstance(figures, dict):
        return {name.replace(" ", "_"): _record(value) for name, value in figures.items()}
    return figures
