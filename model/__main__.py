"""Command line of `attendant-model`: train a model, export a published one to an artifact, or verify an artifact."""

import signal

# Ctrl-C while the rest is imported ends the process without a traceback.
if (HANDLER := signal.getsignal(signal.SIGINT)) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from model.artifact.console import (
    EX_CANTCREAT,
    EX_CONFIG,
    EX_DATAERR,
    EX_INTERRUPTED,
    Parser,
    ReportedError,
    Subcommand,
    language_code,
    output_path,
    run_command,
)
from model.artifact.files import GOLDEN, Artifact
from model.artifact.manifest import POOLINGS, VARIANTS, Absent
from model.artifact.names import MAX_CHARACTERS, NAME_FORMAT, PADDED, is_model_name
from model.examples import ambiguous_words, paraphrases
from model.export.description import describe_evaluation, describe_heads, describe_settings, describe_training
from model.export.sample_texts import read_texts, sample_sentences
from model.source.known_models import TASKS, list_models
from model.source.model_size import describe_choices

signal.signal(signal.SIGINT, HANDLER)

DEFAULT_EVAL_TEXTS = 2000
EXAMPLES: dict[str, Callable[[Path], None]] = {
    "ambiguous-words": ambiguous_words.write,
    "paraphrases": paraphrases.write,
}

DESCRIPTION = "Train a model, export a published one to an artifact, or verify an artifact."
EXAMPLES_OF = {
    "": """\
examples:
  attendant-model export BAAI/bge-small-en-v1.5 -o models/bge-small
  attendant-model verify models/bge-small""",
    "export": """\
examples:
  attendant-model export default -o models/all-MiniLM-L6-v2
  attendant-model export BAAI/bge-small-en-v1.5@main -o models/bge-small --variant int8
  attendant-model export my-model -o models/mine --pooling cls --normalize --max-input-tokens 512""",
    "train": "example: attendant-model train runs/words/masked.toml -o runs/words/masked",
    "example": "example: attendant-model example ambiguous-words -o runs/words",
    "list": """\
The cost is the number of operations per text of 128 tokens, relative to all-MiniLM-L6-v2; `attendant size NAME` says
what it means in cores and memory. Whether a multilingual model knows a language is on its model card.

examples:
  attendant-model list
  attendant-model list --task retrieval --language de""",
    "verify": "example: attendant-model verify models/all-MiniLM-L6-v2",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status, after one line on stderr if it is not 0."""
    status = run_command("attendant-model", lambda: _run(arguments))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # started by torchrun
        # If a Gloo thread releases its last tensor during interpreter shutdown, the process aborts, and torchrun then
        # kills the others, including the exporting one (https://github.com/pytorch/pytorch/pull/179291).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _run(arguments: list[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.command == "train":
            return _train(options.config, options.out)
        if options.command == "list":
            filters = options.task is not None or options.language is not None
            lines = describe_choices(options.task, options.language) if options.models or filters else list_models()
            print("\n".join(lines))
            return 0
        if options.command == "example":
            return _example(options.name, options.out)
        return _export(options) if options.command == "export" else _verify(options.artifact)
    except ReportedError as error:
        return _fail(str(error), error.status)
    except ModuleNotFoundError as missing:
        extras = "cpu,export,train" if options.command == "train" else "cpu,export"
        return _fail(f"{missing.name}: not installed. Run: pip install '.[{extras}]'", EX_CONFIG)


def _parser() -> Parser:
    parser = Parser("attendant-model", DESCRIPTION, EXAMPLES_OF[""])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Subcommand)

    def add_command(name: str, description: str) -> argparse.ArgumentParser:
        sentence = f"{description[0].upper()}{description[1:]}."
        return commands.add_parser(name, help=description, description=sentence, epilog=EXAMPLES_OF[name])

    export = add_command("export", "export a published model")
    export.add_argument(
        "source", help='directory, Hugging Face model ID such as "ORG/NAME" or "ORG/NAME@revision", or "default"'
    )
    export.add_argument("-o", "--out", type=output_path, metavar="DIR", required=True, help="directory to write")
    export.add_argument("--revision", help="branch, tag or commit of a Hugging Face model ID")
    export.add_argument("--name", type=_model_name, help="model name (default: last part of the source)")
    export.add_argument(
        "--variant", dest="variants", action="append", default=[], choices=VARIANTS, help="additional graph; repeatable"
    )
    export.add_argument(
        "--eval-texts",
        type=Path,
        help=f"file with one text per line to measure cuda accuracy (default: {DEFAULT_EVAL_TEXTS} sample sentences)",
    )
    export.add_argument(
        "--explain",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write what hidden layers and attention maps need (default: yes)",
    )
    export.add_argument("--pooling", choices=POOLINGS, help="pooling mode (default: from the files of the model)")
    export.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="normalize embeddings (default: from the files of the model)",
    )
    export.add_argument(
        "--max-input-tokens",
        type=int,
        metavar="N",
        help="token limit of an input, special tokens included (default: from the files of the model)",
    )
    export.add_argument(
        "--special-tokens-in-text",
        action="store_true",
        help="recognize special tokens such as [SEP] in texts, as transformers does (default: they are plain text)",
    )
    export.add_argument("--task", metavar="NAME", help="task of a model with adapters (default: none)")
    export.add_argument("--overwrite", action="store_true", help="replace the artifact of another model")
    train = add_command("train", "train a model and export it; continues an interrupted run")
    train.add_argument("config", type=Path, help="TOML file")
    train.add_argument("-o", "--out", type=output_path, metavar="DIR", required=True, help="directory of the run")
    example = add_command("example", "write data and configurations of an example of training")
    example.add_argument("name", choices=EXAMPLES)
    example.add_argument("-o", "--out", type=output_path, metavar="DIR", required=True, help="directory to write")
    listing = add_command("list", "list the supported architectures with well-known models")
    listing.add_argument("--models", action="store_true", help="list the models with tasks, languages, sizes and costs")
    listing.add_argument("--task", choices=TASKS, help="only models for a task")
    listing.add_argument(
        "--language", type=language_code, metavar="CODE", help="only models for a language, such as de"
    )
    verify = add_command("verify", "verify every file of an artifact against its manifest")
    verify.add_argument("artifact", type=Path)
    return parser


def _model_name(text: str) -> str:
    """Validate a model name; argparse reports the error."""
    if not is_model_name(text):
        raise argparse.ArgumentTypeError(f"{NAME_FORMAT} ({text[:MAX_CHARACTERS]!r})")
    return text


def _train(config: Path, out: Path) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # remove the temporary directory
    from model.train.command import run_training  # the other commands work without the extra "train"

    try:
        manifest = run_training(config, out, _progress())
    except OSError as error:
        return _fail(
            f"{error.filename or out}: cannot be read or written ({error.strerror or error}). Correct that, then run "
            "the command again: it continues from the last checkpoint.",
            EX_CANTCREAT,
        )
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":  # only one of torchrun's processes
            print("attendant-model: interrupted. Run the command again to continue.", file=sys.stderr)
        return EX_INTERRUPTED
    if manifest is not None:
        print(f"attendant serve --model-dir {out / 'artifact'}")
    return 0


def _example(name: str, out: Path) -> int:
    """Write the data of an example and its configurations, which are next to the code; print their paths."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        EXAMPLES[name](out)
        for source in sorted(Path(__file__).parent.glob(f"examples/{name}/*.toml")):
            print(shutil.copyfile(source, out / source.name))
    except OSError as error:
        return _fail(f"{error.filename or out}: cannot be written ({error.strerror or error}).", EX_CANTCREAT)
    return 0


def _progress() -> Callable[[str], None]:
    """Return a function that prints a step with the time elapsed since this call."""
    started = time.monotonic()

    def progress(step: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {step}", file=sys.stderr, flush=True)

    return progress


def _export(options: argparse.Namespace) -> int:
    from model.export.export import Variants, export  # `verify` works without torch
    from model.source.sentence_transformers import SettingOptions

    progress = _progress()
    try:
        eval_texts = _eval_texts(options)
    except ValueError as error:
        return _fail(str(error), EX_DATAERR)
    except OSError as error:
        return _fail(f"{options.eval_texts}: cannot be read ({error.strerror}). Check the path.", EX_DATAERR)
    try:
        with _exit_on_signals():
            manifest = export(
                options.source,
                options.out,
                revision=options.revision,
                name=options.name,
                progress=progress,
                variants=Variants(options.variants, eval_texts, options.explain),
                settings=SettingOptions(
                    options.pooling,
                    options.normalize,
                    options.max_input_tokens,
                    options.task,
                    options.special_tokens_in_text,
                ),
                overwrite=options.overwrite,
            )
    except OSError as error:
        path = error.filename or options.out
        return _fail(f"{path}: cannot be read or written ({error.strerror or error}).", EX_CANTCREAT)
    progress(f"wrote {manifest.name} to {options.out}")
    return 0


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Exit on SIGTERM or Ctrl-C, so that the temporary directory is removed; during a download, immediately."""
    from model.source.hub import abort_download

    def stop(number: int, frame: object) -> None:
        if abort_download():
            os._exit(128 + number)
        sys.exit(128 + number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _eval_texts(options: argparse.Namespace) -> Sequence[str]:
    """Return the texts for measuring the accuracy of the cuda graph; none without that variant."""
    if "cuda" not in options.variants:
        return ()
    return read_texts(options.eval_texts) if options.eval_texts else sample_sentences(DEFAULT_EVAL_TEXTS)


def _verify(directory: Path) -> int:
    artifact = Artifact.open(directory)
    manifest = artifact.manifest
    print(f"{directory}: {manifest.name}, {len(manifest.files)} files, sha256:{artifact.digest}")
    prompts, default = manifest.prompts, manifest.default_prompt_name
    others = {"sparse vectors": manifest.sparse, "multi-vector": manifest.multi_vector, "masked LM": manifest.masked_lm}
    for line in (
        *describe_settings(manifest.embedding, prompts, default, manifest.max_input_tokens, manifest.origins),
        *describe_heads(manifest.classification, manifest.token_classification, others),
        *_describe_graphs(artifact),
    ):
        print(f"  {line}")
    golden = artifact.read_golden_vectors()
    if golden is None:
        print(f"  {GOLDEN}: missing, so the server cannot check the accuracy of its backend")
    else:
        print(f"  {GOLDEN}: {len(golden.texts)} texts, {', '.join(golden.heads)}")
    for name, part in (("explain", manifest.explain), ("layers", manifest.layers), ("static", manifest.static)):
        if isinstance(part, Absent):
            print(f"  {name}: absent ({part.reason})")
    if manifest.training is not None:
        print(f"  {describe_training(manifest.training)}")
    for evaluation in manifest.evaluations:
        print(f"  {describe_evaluation(evaluation)}")
    return 0


def _describe_graphs(artifact: Artifact) -> Iterator[str]:
    """Yield one line per graph, with the measurements of the export."""
    report = artifact.read_report()
    for name, graph in artifact.manifest.graphs.items():
        if report is None or name not in report.graphs:
            yield f"graph {name}, {graph.precision}"
            continue
        parity, accuracy = report.graphs[name].parity, report.graphs[name].accuracy
        reference = "single texts" if name == PADDED else "torch"
        texts = "" if graph.longest is None else f" for texts of up to {graph.longest} tokens"
        line = (
            f"graph {name}{texts}, {graph.precision}: max difference from {reference} {parity.max_abs_difference:.2e} "
            f"(limit {parity.tolerance:.0e}, {parity.batches} batches)"
        )
        if accuracy is not None:
            line += f", min cosine to float32 {accuracy.min_cosine:.7f} ({accuracy.texts} texts)"
            line += f", in float32: {', '.join(accuracy.float32_parts)}" if accuracy.float32_parts else ""
        yield line


def _fail(message: str, status: int) -> int:
    print(f"attendant-model: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
