"""Command line of `attendant-model`: train a model, export a published one to an artifact, or verify an artifact."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from model.artifact import Artifact, ArtifactError
from model.examples.command import EXAMPLES, write_example
from model.manifest import VARIANTS, EvaluationRecord, TrainingRecord
from model.sample_texts import read_texts, sample_sentences

DEFAULT_EVAL_TEXTS = 2000


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return 0, or 1 after printing one line to stderr."""
    parser = argparse.ArgumentParser(
        prog="attendant-model", description="Train a model, export one to an artifact, or verify an artifact."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="export a published model")
    export.add_argument(
        "source", help='directory, Hugging Face model ID such as "BAAI/bge-small-en-v1.5", or "default"'
    )
    export.add_argument("-o", "--out", type=Path, required=True, help="directory to write")
    export.add_argument("--revision", help="branch, tag or commit of a Hugging Face model ID")
    export.add_argument("--name", help="model name (default: last part of the source)")
    export.add_argument(
        "--variant", dest="variants", action="append", default=[], choices=VARIANTS, help="additional graph; repeatable"
    )
    export.add_argument(
        "--eval-texts",
        type=Path,
        help=f"file with one text per line to measure cuda accuracy (default: {DEFAULT_EVAL_TEXTS} sample sentences)",
    )
    train = commands.add_parser("train", help="train a model and export it; continues an interrupted run")
    train.add_argument("config", type=Path, help="TOML file")
    train.add_argument("-o", "--out", type=Path, required=True, help="directory of the run")
    example = commands.add_parser("example", help="write data and configurations of an example of training")
    example.add_argument("name", choices=EXAMPLES)
    example.add_argument("-o", "--out", type=Path, required=True, help="directory to write")
    verify = commands.add_parser("verify", help="verify every file of an artifact against its manifest")
    verify.add_argument("artifact", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "train":
        return _train(options.config, options.out)
    if options.command == "example":
        return _example(options.name, options.out)
    return _export(options) if options.command == "export" else _verify(options.artifact)


def _train(config: Path, out: Path) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # remove the temporary directory
    try:
        from model.checkpoint_files import CheckpointError
        from model.export import ParityError
        from model.model_source import SourceError
        from model.train.command import run_training
        from model.train.config import TrainError
    except ModuleNotFoundError as missing:
        return _fail(f"{missing.name}: not installed. Run: pip install '.[cpu,export,train]'")
    try:
        manifest = run_training(config, out, _progress())
    except (TrainError, SourceError, CheckpointError, ParityError, ArtifactError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(
            f"{error.filename or out}: cannot be read or written ({error.strerror or error}). Correct that, then run "
            "the command again: it continues from the last checkpoint."
        )
    except KeyboardInterrupt:
        _fail("interrupted. Run the command again to continue.")
        return 130
    if manifest is not None:
        print(f"attendant serve --model-dir {out / 'artifact'}")
    return 0


def _example(name: str, out: Path) -> int:
    try:
        configurations = write_example(name, out)
    except OSError as error:
        return _fail(f"{error.filename or out}: cannot be written ({error.strerror or error}).")
    for path in configurations:
        print(path)
    return 0


def _progress() -> Callable[[str], None]:
    """Return a function that prints a step of long work with the time since now."""
    started = time.monotonic()

    def progress(step: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {step}", file=sys.stderr, flush=True)

    return progress


def _export(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # remove the temporary directory
    progress = _progress()
    try:
        # `verify` works without torch.
        from model.checkpoint_files import CheckpointError
        from model.export import ParityError, Variants, export
        from model.mixed_precision import AccuracyError
        from model.model_source import SourceError
    except ModuleNotFoundError as missing:
        return _fail(f"{missing.name}: not installed. Run: pip install '.[cpu,export]'")
    try:
        eval_texts = _eval_texts(options)
    except ValueError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{options.eval_texts}: cannot be read ({error.strerror}). Check the path.")
    try:
        manifest = export(
            options.source,
            options.out,
            revision=options.revision,
            name=options.name,
            progress=progress,
            variants=Variants(options.variants, eval_texts),
        )
    except (SourceError, CheckpointError, ParityError, AccuracyError, ArtifactError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or options.out}: cannot be read or written ({error.strerror or error}).")
    progress(f"wrote {manifest.name} to {options.out}")
    return 0


def _eval_texts(options: argparse.Namespace) -> Sequence[str]:
    """Return the texts for the accuracy of the cuda graph; none without that variant."""
    if "cuda" not in options.variants:
        return ()
    return read_texts(options.eval_texts) if options.eval_texts else sample_sentences(DEFAULT_EVAL_TEXTS)


def _verify(directory: Path) -> int:
    try:
        artifact = Artifact.open(directory)
    except ArtifactError as error:
        return _fail(str(error))
    manifest = artifact.manifest
    print(f"{directory}: {manifest.name}, {len(manifest.files)} files, sha256:{artifact.digest}")
    report = artifact.read_report()
    for name, graph in manifest.graphs.items():
        if report is None or name not in report.graphs:
            print(f"  graph {name}, {graph.precision}")
            continue
        parity, accuracy = report.graphs[name].parity, report.graphs[name].accuracy
        line = (
            f"  graph {name}, {graph.precision}: max difference from torch {parity.max_abs_difference:.2e} "
            f"(limit {parity.tolerance:.0e}, {parity.batches} batches)"
        )
        if accuracy is not None:
            line += f", min cosine to float32 {accuracy.min_cosine:.7f} ({accuracy.texts} texts)"
            line += f", in float32: {', '.join(accuracy.float32_parts)}" if accuracy.float32_parts else ""
        print(line)
    if manifest.training is not None:
        print(f"  {_describe_training(manifest.training)}")
    for evaluation in manifest.evaluations:
        print(f"  {_describe_evaluation(evaluation)}")
    return 0


def _describe_training(training: TrainingRecord) -> str:
    files = ", ".join(f"{file.name} ({file.size:,} bytes)" for file in training.data)
    line = f"training: {training.objective}, {training.steps:,} steps, {training.tokens:,} tokens of {files}"
    line += f", from {training.initial_model}" if training.initial_model else ""
    line += f", teacher {training.teacher}" if training.teacher else ""
    line += f", {training.precision}, seed {training.seed}, validation loss {training.validation_loss:.4f}"
    return line


def _describe_evaluation(evaluation: EvaluationRecord) -> str:
    line = f"evaluation {evaluation.task}, {evaluation.file}: {evaluation.measure} {evaluation.value:.3f}"
    if evaluation.low is not None and evaluation.high is not None:
        line += f" [{evaluation.low:.3f}, {evaluation.high:.3f}]"
    return line


def _fail(message: str) -> int:
    print(f"attendant-model: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
