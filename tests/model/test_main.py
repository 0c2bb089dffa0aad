"""The attendant-model command: output, errors and exit status."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from model.__main__ import main
from model.artifact import Artifact
from tests.model.conftest import SENTENCES
from tests.model_records import add_records


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line on stderr that is not progress; stdout must be empty."""
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not re.match(r"\[ *\d+\.\d s\] ", line)]
    assert (out, len(lines)) == ("", 1), err
    return lines[0]


def test_export_writes_artifact_and_progress(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(published), "-o", str(tmp_path / "out"), "--name", "mine"]) == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert all(re.match(r"\[ *\d+\.\d s\] \w", line) for line in lines)
    assert lines[-1].endswith(f"wrote mine to {tmp_path / 'out'}")
    assert Artifact.open(tmp_path / "out").manifest.name == "mine"


def test_verify_prints_digest_and_parity(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(exported)]) == 0
    out, err = capsys.readouterr()
    first, *graphs = out.splitlines()
    assert first == f"{exported}: tiny-bert, 4 files, sha256:{Artifact.open(exported).digest}"
    parity = r"max difference from torch \d\.\d\de-0\d \(limit \de-04, 8 batches\)"
    assert re.fullmatch(rf"  graph fast, float32: {parity}\n  graph explain, float32: {parity}", "\n".join(graphs))
    assert err == ""


def test_verify_prints_training_and_evaluations(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_records(artifact)
    assert main(["verify", str(artifact)]) == 0
    assert capsys.readouterr().out.splitlines()[3:] == [
        "  training: masked language modeling, 2,000 steps, 32,768,000 tokens of corpus.txt (52,428,800 bytes), "
        "notes.jsonl (1,234 bytes), from all-MiniLM-L6-v2, teacher all-mpnet-base-v2, bfloat16, seed 7, "
        "validation loss 2.7183",
        "  evaluation similarity, pairs.tsv: spearman 0.812 [0.790, 0.833]",
        "  evaluation retrieval, queries.jsonl: mrr 0.500",
    ]


def test_verify_prints_accuracy_of_exported_variant(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").write_text("\n".join(SENTENCES))
    arguments = [
        "export",
        str(published),
        "-o",
        str(tmp_path / "out"),
        "--variant",
        "cuda",
        "--eval-texts",
        str(tmp_path / "texts"),
    ]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out")]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    parity = r"max difference from torch \d\.\d\de-0\d \(limit \de-0\d, 8 batches\)"
    assert re.fullmatch(rf"  graph cuda, float16: {parity}, min cosine to float32 0\.9999\d{{3}} \(7 texts\)", line)


@pytest.mark.parametrize(("body", "message"), [(None, "cannot be read"), (b"\xff", "not UTF-8"), (b"", "no text")])
def test_export_rejects_unreadable_eval_texts(
    published: Path, tmp_path: Path, body: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if body is not None:
        (tmp_path / "texts").write_bytes(body)
    arguments = [
        "export",
        str(published),
        "-o",
        str(tmp_path / "out"),
        "--variant",
        "cuda",
        "--eval-texts",
        str(tmp_path / "texts"),
    ]
    assert main(arguments) == 1
    assert error_line(capsys).startswith(f"attendant-model: {tmp_path / 'texts'}: {message}")
    assert not (tmp_path / "out").exists()


def test_verify_names_damaged_file(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact / "weights.bin").write_bytes(b"")
    assert main(["verify", str(artifact)]) == 1
    assert error_line(capsys).startswith(
        f"attendant-model: {artifact}/weights.bin: size mismatch with manifest.json (0 bytes, "
    )


def test_verify_suggests_export_when_directory_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "none")]) == 1
    assert error_line(capsys).startswith(f"attendant-model: {tmp_path / 'none'}: no such directory. Create it with: ")


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("config.json", "{", "config.json: not JSON"),
        ("config.json", '{"model_type": "gpt2"}', "unsupported model_type 'gpt2'"),
        ("model.safetensors", "", "model.safetensors: not a safetensors file"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("modules.json", "{", "modules.json"),
        ("config_sentence_transformers.json", '{"prompts": 7}', "config_sentence_transformers.json"),
    ],
)
def test_export_names_invalid_model_file(
    source: Path, name: str, body: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / name).write_text(body)
    assert main(["export", str(source), "-o", str(source.parent / "out")]) == 1
    line = error_line(capsys)
    assert line.startswith("attendant-model: ")
    assert message in line
    assert not (source.parent / "out").exists()


def test_export_names_missing_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 1
    assert error_line(capsys) == f"attendant-model: {tmp_path / 'none'}: no such directory. Check the path."


@pytest.mark.parametrize("out", ["notes", "notes/out"])
def test_export_keeps_file_in_place_of_output_directory(
    published: Path, tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").write_text("text")
    assert main(["export", str(published), "-o", str(tmp_path / out)]) == 1
    assert error_line(capsys).startswith("attendant-model: ")
    assert (tmp_path / "notes").read_text() == "text"


@pytest.mark.parametrize(
    "arguments", [[], ["export"], ["export", "x"], ["verify"], ["serve"], ["export", "x", "-o", "y", "--variant", "z"]]
)
def test_invalid_arguments_exit_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.startswith("usage: attendant-model")


def test_verify_works_without_torch_and_onnx(exported: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'onnx', 'onnx_ir', 'onnxruntime', 'safetensors')));"
        "from model.__main__ import main; sys.exit(main(['verify', sys.argv[1]]))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(exported)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_export_without_torch_suggests_install_command(exported: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None;"
        "from model.__main__ import main; sys.exit(main(['export', sys.argv[1], '-o', sys.argv[2]]))"
    )
    arguments = [sys.executable, "-c", code, str(exported), str(tmp_path / "out")]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert re.fullmatch(r"attendant-model: torch: not installed\. Run: pip install '\.\[.*export\]'\n", result.stderr)
