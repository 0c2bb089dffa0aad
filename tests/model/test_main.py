"""The command: what it prints, and what it answers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from model.__main__ import main
from model.artifact import Artifact
from tests.model.conftest import SENTENCES


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr, nothing on stdout."""
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not re.match(r"\[ *\d+\.\d s\] ", line)]
    assert (out, len(lines)) == ("", 1), err
    return lines[0]


def test_export_writes_an_artifact(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0, the steps with their times on stderr, nothing on stdout."""
    assert main(["export", str(published), "-o", str(tmp_path / "out"), "--name", "mine"]) == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert all(re.match(r"\[ *\d+\.\d s\] \w", line) for line in lines)
    assert lines[-1].endswith(f"wrote mine to {tmp_path / 'out'}")
    assert Artifact.open(tmp_path / "out").manifest.name == "mine"


def test_verify_says_what_it_found(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0, and on stdout the name, the digest and how near the graph came."""
    assert main(["verify", str(exported)]) == 0
    out, err = capsys.readouterr()
    first, *graphs = out.splitlines()
    assert first == f"{exported}: tiny-bert, 4 files, sha256:{Artifact.open(exported).digest}"
    near = r"differs from torch by \d\.\d\de-0\d at most, \de-04 allowed, over 8 rows"
    assert re.fullmatch(rf"  graph fast, float32: {near}\n  graph explain, float32: {near}", "\n".join(graphs))
    assert err == ""


def test_a_variant_is_exported_and_verified(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured over the texts of one's own file, and told with its precision and cosine."""
    (tmp_path / "texts").write_text("\n".join(SENTENCES))
    made = ["export", str(published), "-o", str(tmp_path / "out"), "--with", "cuda", "--texts", str(tmp_path / "texts")]
    assert main(made) == 0
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out")]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    near = r"differs from torch by \d\.\d\de-0\d at most, \de-0\d allowed, over 8 rows"
    assert re.fullmatch(rf"  graph cuda, float16: {near}; smallest cosine to float32 0\.9999\d{{3}} over 7 texts", line)


@pytest.mark.parametrize(("body", "message"), [(None, "No such file"), (b"\xff", "not UTF-8"), (b"", "no text in it")])
def test_texts_that_cannot_be_read(
    published: Path, tmp_path: Path, body: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """1, one line, nothing written."""
    if body is not None:
        (tmp_path / "texts").write_bytes(body)
    made = ["export", str(published), "-o", str(tmp_path / "out"), "--with", "cuda", "--texts", str(tmp_path / "texts")]
    assert main(made) == 1
    assert said(capsys).startswith(f"attendant-model: {tmp_path / 'texts'}: {message}")
    assert not (tmp_path / "out").exists()


def test_verify_finds_damage(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1, and the file by name."""
    (artifact / "weights.bin").write_bytes(b"")
    assert main(["verify", str(artifact)]) == 1
    assert said(capsys).startswith(f"attendant-model: {artifact}/weights.bin: 0 bytes, not the ")


def test_verify_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1, and what to run."""
    assert main(["verify", str(tmp_path / "none")]) == 1
    assert said(capsys).startswith(f"attendant-model: {tmp_path / 'none'}: no such directory. Make one with: ")


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("config.json", "{", "config.json: not JSON"),
        ("config.json", '{"model_type": "gpt2"}', "model_type 'gpt2'"),
        ("model.safetensors", "", "model.safetensors: not a safetensors file"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("modules.json", "{", "modules.json"),
        ("config_sentence_transformers.json", '{"prompts": 7}', "config_sentence_transformers.json"),
    ],
)
def test_a_source_that_is_no_model(
    source: Path, name: str, body: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """1, one line, nothing written."""
    (source / name).write_text(body)
    assert main(["export", str(source), "-o", str(source.parent / "out")]) == 1
    line = said(capsys)
    assert line.startswith("attendant-model: ")
    assert message in line
    assert not (source.parent / "out").exists()


def test_a_source_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1, and the name."""
    assert main(["export", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 1
    assert said(capsys) == f"attendant-model: {tmp_path / 'none'}: no such directory."


@pytest.mark.parametrize("out", ["letter", "letter/out"])
def test_a_place_that_cannot_be_written(
    published: Path, tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is in the way: 1, one line, and the file is as it was."""
    (tmp_path / "letter").write_text("dear")
    assert main(["export", str(published), "-o", str(tmp_path / out)]) == 1
    assert said(capsys).startswith("attendant-model: ")
    assert (tmp_path / "letter").read_text() == "dear"


@pytest.mark.parametrize(
    "arguments", [[], ["export"], ["export", "x"], ["verify"], ["serve"], ["export", "x", "-o", "y", "--with", "z"]]
)
def test_a_command_line_that_is_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """2, as argparse does, with the usage."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.startswith("usage: attendant-model")


def test_verify_needs_no_torch(exported: Path) -> None:
    """Where torch, onnx and onnxruntime cannot be imported, an artifact can still be checked."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'onnx', 'onnx_ir', 'onnxruntime', 'safetensors')));"
        "from model.__main__ import main; sys.exit(main(['verify', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(exported)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_export_without_torch_says_what_to_install(exported: Path, tmp_path: Path) -> None:
    """1, and one line."""
    code = (
        "import sys; sys.modules['torch'] = None;"
        "from model.__main__ import main; sys.exit(main(['export', sys.argv[1], '-o', sys.argv[2]]))"
    )
    arguments = [sys.executable, "-c", code, str(exported), str(tmp_path / "out")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"attendant-model: torch is not installed; .* install 'attendant\[.*export\]'\n", done.stderr)
