"""`attendant-model export | verify`: make an artifact, or check one."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from model.artifact import VARIANTS, Artifact, ArtifactError
from model.corpus import read_texts, sample_sentences

TEXTS = 2000


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when it did what was asked, 1 with one line on stderr when not."""
    parser = argparse.ArgumentParser(prog="attendant-model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("export", help="write the artifact of a published model")
    making.add_argument("source", help='a directory, a hub id such as "BAAI/bge-small-en-v1.5", or "default"')
    making.add_argument("-o", "--out", type=Path, required=True, help="the directory to write")
    making.add_argument("--revision", help="a hub id's branch, tag or commit")
    making.add_argument("--name", help="the name it is served under (default: the last part of the source)")
    making.add_argument(
        "--with", dest="variants", action="append", default=[], choices=VARIANTS, help="a further graph; repeatable"
    )
    making.add_argument(
        "--texts", type=Path, help="a file of texts, one a line, to measure its accuracy over (default: 2000 sentences)"
    )
    checking = commands.add_parser("verify", help="check every byte of an artifact against its manifest")
    checking.add_argument("artifact", type=Path)
    options = parser.parse_args(arguments)
    return _export(options) if options.command == "export" else _verify(options.artifact)


def _export(options: argparse.Namespace) -> int:
    started = time.monotonic()

    def progress(step: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {step}", file=sys.stderr, flush=True)

    try:
        # Only this command needs torch; `verify` works where it is not installed.
        from model.accuracy import AccuracyError
        from model.export import ParityError, Variants, export
        from model.published import CheckpointError
        from model.source import SourceError
    except ModuleNotFoundError as missing:
        return _fail(f"{missing.name} is not installed; exporting needs it: pip install 'attendant[cpu,export]'")
    try:
        texts = _texts(options)
    except ValueError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{options.texts}: {error.strerror}.")
    try:
        manifest = export(
            options.source,
            options.out,
            revision=options.revision,
            name=options.name,
            progress=progress,
            variants=Variants(options.variants, texts),
        )
    except (SourceError, CheckpointError, ParityError, AccuracyError, ArtifactError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or options.out}: {error.strerror or error}.")
    progress(f"wrote {manifest.name} to {options.out}")
    return 0


def _texts(options: argparse.Namespace) -> Sequence[str]:
    """Return the texts over which the precision of the cuda graph is chosen; none without it."""
    if "cuda" not in options.variants:
        return ()
    return read_texts(options.texts) if options.texts else sample_sentences(TEXTS)


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
            f"  graph {name}, {graph.precision}: differs from torch by {parity.max_abs_difference:.2e} at most, "
            f"{parity.tolerance:.0e} allowed, over {parity.rows} rows"
        )
        if accuracy is not None:
            line += f"; smallest cosine to float32 {accuracy.min_cosine:.7f} over {accuracy.texts} texts"
            line += f", in float32 {', '.join(accuracy.kept)}" if accuracy.kept else ""
        print(line)
    return 0


def _fail(message: str) -> int:
    print(f"attendant-model: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
