"""The model card: measures saved in an artifact's manifest."""

from pathlib import Path
from typing import NamedTuple

from model.artifact.files import ArtifactError, update_manifest
from model.artifact.manifest import EvaluationRecord, Manifest
from service.commands.evaluate.tasks import Evaluation, RowKey

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
    estimates = {
        (task.replace("_", "-"), evaluation.files[task].path.name, _measure(key)): estimate
        for task, figures in evaluation.tasks.items()
        for key, estimate in figures.rows()
    }

    def change(manifest: Manifest) -> Manifest:
        # Keep records that another evaluation has saved in the meantime.
        if _without_records(manifest) != _without_records(evaluated):
            raise ArtifactError(f"{root}: changed during the evaluation. Run the command again.")
        records = {(record.task, record.file, record.measure): record for record in manifest.evaluations}
        for (task, file, measure), estimate in estimates.items():
            value, low, high = map(_round, (estimate.value, estimate.low, estimate.high))
            if value is None:
                records.pop((task, file, measure), None)
            else:
                records[task, file, measure] = EvaluationRecord(
                    task=task, file=file, measure=measure, value=value, low=low, high=high
                )
        return manifest.model_copy(update={"evaluations": tuple(records.values())})

    digest = update_manifest(root, change)
    return SavedCard(f"sha256:{digest}", sum(estimate.value is not None for estimate in estimates.values()))


def _measure(key: RowKey) -> str:
    return f"{key.measure}, {key.method}" if key.method else key.measure


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, SAVED_DECIMALS)


def _without_records(manifest: Manifest) -> Manifest:
    return manifest.model_copy(update={"evaluations": ()})
