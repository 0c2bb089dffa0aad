"""The model card: measures saved in an artifact's manifest."""

from pathlib import Path
from typing import NamedTuple

from model.artifact import ArtifactError
from model.manifest import EvaluationRecord, Manifest
from model.manifest_update import update_manifest
from service.commands.evaluate.figures import Evaluation, RowKey
from service.commands.evaluate.measures import Estimate

SAVED_DECIMALS = 4
"""Number of decimals, as in the printed table. Further digits could differ between runs and change the digest."""


class SavedCard(NamedTuple):
    """The artifact's new digest, and the number of saved measures."""

    digest: str
    measures: int


def save_measures(root: Path, evaluated: Manifest, evaluation: Evaluation) -> SavedCard:
    """Save the measures to the artifact's manifest; `evaluated` is the manifest before the evaluation.

    A record replaces the one with the same task, file and measure, and others are kept. Raises `ArtifactError`.
    """
    rows = evaluation.rows()

    def change(manifest: Manifest) -> Manifest:
        # Keep records that another evaluation has saved in the meantime.
        if _without_records(manifest) != _without_records(evaluated):
            raise ArtifactError(f"{root}: changed during the evaluation. Run the command again.")
        records = {(record.task, record.file, record.measure): record for record in manifest.evaluations}
        for key, estimate in rows.items():
            name = _names(key, evaluation)
            record = _record(name, estimate)
            if record is None:
                records.pop(name, None)
            else:
                records[name] = record
        return manifest.model_copy(update={"evaluations": tuple(records.values())})

    digest = update_manifest(root, change)
    return SavedCard(f"sha256:{digest}", sum(estimate.value is not None for estimate in rows.values()))


def _names(key: RowKey, evaluation: Evaluation) -> tuple[str, str, str]:
    """Return the record's key: task, file and measure."""
    measure = f"{key.measure}, {key.method}" if key.method else key.measure
    return key.task.replace("_", "-"), evaluation.files[key.task].path.name, measure


def _record(name: tuple[str, str, str], estimate: Estimate) -> EvaluationRecord | None:
    task, file, measure = name
    if estimate.value is None:
        return None
    low, high = (None if bound is None else round(bound, SAVED_DECIMALS) for bound in (estimate.low, estimate.high))
    value = round(estimate.value, SAVED_DECIMALS)
    return EvaluationRecord(task=task, file=file, measure=measure, value=value, low=low, high=high)


def _without_records(manifest: Manifest) -> Manifest:
    return manifest.model_copy(update={"evaluations": ()})
