"""Formats an evaluation as JSON and as a table, with or without a baseline."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from service.commands.evaluate.measures import Estimate
from service.commands.evaluate.model_card import SavedCard
from service.commands.evaluate.tasks import TASKS, AttributionFigures, Evaluation, RowKey
from service.commands.report import describe_model, model_record


def evaluation_record(evaluation: Evaluation, baseline: Evaluation | None, saved: SavedCard | None) -> dict[str, Any]:
    """Return the evaluation as JSON, with the baseline and the differences."""
    files = {name: file.to_json() for name, file in evaluation.files.items()}
    record = {"model": model_record(evaluation.info, evaluation.truncated), "files": files} | _task_records(evaluation)
    record["saved"] = None if saved is None else saved._asdict()
    if baseline is None:
        return record | {"baseline": None, "difference": None}
    return record | {
        "baseline": {"model": model_record(baseline.info, baseline.truncated)} | _task_records(baseline),
        "difference": {task: _difference(evaluation.tasks.get(task), baseline.tasks.get(task)) for task in TASKS},
    }


def evaluation_lines(evaluation: Evaluation, baseline: Evaluation | None, saved: SavedCard | None) -> Iterator[str]:
    yield f"model      {describe_model(evaluation.info)}"
    if baseline is not None:
        yield f"baseline   {describe_model(baseline.info)}"
    for name, file in evaluation.files.items():
        rest = "" if file.is_complete else "; the file has more, see --limit"
        yield f"file       {name.replace('_', '-')}: {file.path}, {file.lines_read:,} lines{rest}"
    yield from _notes(evaluation, "")
    if baseline is not None:
        yield from _notes(baseline, "baseline: ")
    for figures in evaluation.tasks.values():
        yield from figures.chances()
    yield ""
    yield from _table(evaluation.rows(), None if baseline is None else baseline.rows())
    if saved is not None:
        yield ""
        yield f"saved      {saved.measures} measures; the digest of the artifact is now {saved.digest}"


def _notes(evaluation: Evaluation, prefix: str) -> Iterator[str]:
    if evaluation.truncated:
        yield f"truncated  {prefix}{evaluation.truncated:,} texts to {evaluation.info.max_input_tokens} tokens"
    attribution = evaluation.tasks.get("attribution")
    if isinstance(attribution, AttributionFigures):
        for name, reason in attribution.omitted.items():
            yield f"omitted    {prefix}{name}: {reason}"


def _table(rows: dict[RowKey, Estimate], baseline: dict[RowKey, Estimate] | None) -> Iterator[str]:
    task, measure = (max(map(len, column)) + 2 for column in zip(*map(_labels, rows), strict=True))
    header = f"{'task':<{task}}{'measure':<{measure}}{'value':>9}   {'95 % interval':<18}"
    if baseline is not None:
        header += f"{'baseline':>11}{'difference':>13}   95 % interval"
    yield header.rstrip()
    for key, estimate in rows.items():
        name, unit = _labels(key)
        line = f"{name:<{task}}{unit:<{measure}}"
        if baseline is None and estimate.value is None:
            line += "not defined, because all similarities are equal"
        elif baseline is None:
            line += f"{_number(estimate.value)}   {_interval(estimate)}"
        else:
            other = baseline.get(key, UNDEFINED)
            difference = estimate.minus(other)
            line += f"{_number(estimate.value)}   {_interval(estimate):<18}"
            line += f"{_number(other.value):>11}{_number(difference.value):>13}   {_interval(difference)}"
        yield line.rstrip()


UNDEFINED = Estimate(None, None, None)


def _labels(key: RowKey) -> tuple[str, str]:
    return (f"{key.subject}, {key.method}" if key.method else key.subject), key.measure


def _number(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.4f}':>9}"


def _interval(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    return "not defined" if estimate.low is None else f"{estimate.low:.4f} to {estimate.high:.4f}"


def _task_records(evaluation: Evaluation) -> dict[str, Any]:
    return {task: _record(evaluation.tasks.get(task)) for task in TASKS}


def _record(figures: Any) -> Any:
    """Return figures as a JSON object; keys have underscores instead of spaces."""
    if isinstance(figures, Estimate):
        return {"value": figures.value, "low": figures.low, "high": figures.high}
    if is_dataclass(figures):
        return {field.name: _record(getattr(figures, field.name)) for field in fields(figures)}
    if isinstance(figures, dict):
        return {name.replace(" ", "_"): _record(value) for name, value in figures.items()}
    return figures


def _difference(figures: Any, baseline: Any) -> Any:
    """Return the difference of each measure as a JSON object, leaving out measures that the baseline lacks."""
    if isinstance(figures, Estimate):
        return _record(figures.minus(baseline))
    if is_dataclass(figures):
        pairs = {field.name: (getattr(figures, field.name), getattr(baseline, field.name)) for field in fields(figures)}
    elif isinstance(figures, dict):
        pairs = {name: (value, baseline[name]) for name, value in figures.items() if name in baseline}
    else:
        return None
    differences = {name.replace(" ", "_"): _difference(*pair) for name, pair in pairs.items()}
    return {name: value for name, value in differences.items() if value} or None
