"""Training and evaluation records, and artifacts that contain them."""

from pathlib import Path

from model.artifact.files import Artifact, write_manifest
from model.artifact.manifest import DataFileRecord, EvaluationRecord, TrainingRecord

TRAINING = TrainingRecord(
    objective="masked language modeling",
    initial_model="all-MiniLM-L6-v2",
    teacher="all-mpnet-base-v2",
    data=(DataFileRecord(name="corpus.txt", size=52_428_800), DataFileRecord(name="notes.jsonl", size=1_234)),
    steps=2_000,
    tokens=32_768_000,
    seed=7,
    precision="bfloat16",
    validation_loss=2.71828,
)
EVALUATIONS = (
    EvaluationRecord(task="similarity", file="pairs.tsv", measure="spearman", value=0.8124, low=0.7901, high=0.8333),
    EvaluationRecord(task="retrieval", file="queries.jsonl", measure="mrr", value=0.5, low=None, high=None),
)


def add_records(root: Path) -> None:
    manifest = Artifact.open(root).manifest
    write_manifest(root, manifest.model_copy(update={"training": TRAINING, "evaluations": EVALUATIONS}))
