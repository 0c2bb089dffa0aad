"""`attendant size`: output, JSON, options and errors."""

import json
import re
import shutil
from pathlib import Path

import pytest

from model.artifact.files import MANIFEST
from service.__main__ import main
from service.commands.size.capacity import TOKENS_PER_SECOND_PER_CORE

LOAD = ("--texts-per-second", "100000", "--mean-tokens", "16")


def size(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["size", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def size_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command with invalid arguments and return its one-line error."""
    with pytest.raises(SystemExit) as raised:
        main(["size", *arguments])
    out, err = capsys.readouterr()
    assert (raised.value.code, out, err.count("\n")) == (2, "", 1)
    return err.strip()


def test_size_prints_each_step_of_the_calculation(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [re.split(r" {2,}|= ", line) for line in size(capsys, *LOAD).splitlines()]
    steps = {line[0]: [part.strip() for part in line[1:] if part.strip()] for line in lines}
    assert steps["tokens"] == ["1,600,000 tokens/s", "100,000 texts/s x 16 tokens"]
    assert steps["requests"] == ["100,000 requests/s", "100,000 texts/s / 1 per request"]
    assert steps["throughput"][0] == "13,600 tokens/s per core"
    assert steps["inference"] == ["117.6 cores busy", "1,600,000 tokens/s / 13,600"]
    assert steps["event loop"] == ["58 cores busy", "100,000 requests/s x 0.58 ms"]
    assert steps["for compute"] == ["147 replicas", "(117.6 + 58) / (0.6 utilization x 2 cores)"]
    assert steps["for event loop"] == ["97 replicas", "58 / (0.6 utilization x 1 core per process)"]
    assert steps["for the load"] == ["147 replicas", "the larger of the two; the limit is compute"]
    assert steps["replicas"] == ["148 replicas", "147 + 1 spare"]
    assert steps["memory"][0] == "772 MiB per replica"
    assert steps["total"] == ["296 cores, 296 GiB reserved"]


def test_throughput_names_its_cpu_and_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert "bfloat16, measured: Intel Xeon with AMX, 2 shared cores, 2026-11-22" in size(capsys, *LOAD)


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "int8"])
def test_json_has_the_same_result(capsys: pytest.CaptureFixture[str], precision: str) -> None:
    arguments = (*LOAD, "--precision", precision)
    text = size(capsys, *arguments)
    record = json.loads(size(capsys, *arguments, "--json"))
    assert f"{record['replicas']:,} replicas" in text
    assert record["tokens_per_second_per_unit"] == TOKENS_PER_SECOND_PER_CORE[precision]  # type: ignore[index]
    assert (record["limit"], record["tokens_per_second_needed"]) == ("compute", 1_600_000)


@pytest.mark.parametrize(
    ("arguments", "replicas"),
    [
        (("--utilization", "1"), 89),  # 175.6 cores / 2, plus a spare replica, as everywhere below
        (("--cores-per-replica", "8"), 98),  # event loops: 58 cores / 0.6
        (("--inputs-per-request", "32"), 108),  # (117.6 + 9.6 cores) / 1.2
        (("--tokens-per-second-per-core", "27200"), 99),  # (58.8 + 58 cores) / 1.2
        (("--tokens-per-second", "27200"), 148),  # on two cores, so 13,600 each
        (("--hardware", "gpu", "--tokens-per-second", "1e6"), 98),  # 1.6 busy GPUs, event loops as above
        (("--spare-replicas", "0"), 147),
    ],
)
def test_options_change_the_number_of_replicas(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], replicas: int
) -> None:
    assert json.loads(size(capsys, *LOAD, *arguments, "--json"))["replicas"] == replicas


def test_cheaper_shape_is_shown_if_the_given_one_wastes_cores(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--texts-per-second", "14000", "--mean-tokens", "8", "--spare-replicas", "0")
    given = size(capsys, *load, "--cores-per-replica", "8")
    assert "total           112 cores" in given
    assert given.endswith("Cheaper: 14 replicas of 2 cores, 28 cores in total. Leave --cores-per-replica out.\n")
    chosen = size(capsys, *load)
    assert "total           28 cores" in chosen
    assert "Cheaper" not in chosen + size(capsys, *load, "--cores-per-replica", "2")


def test_decimals_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """In binary floating point, 2.1 / 0.3 exceeds 7, which would add a replica."""
    load = ("--texts-per-second", "2.1", "--mean-tokens", "100", "--tokens-per-second", "100", "--hardware", "gpu")
    assert json.loads(size(capsys, *load, "--utilization", "0.3", "--spare-replicas", "0", "--json"))["replicas"] == 7
    assert 2.1 / 0.3 > 7


def test_largest_load_does_not_overflow(capsys: pytest.CaptureFixture[str]) -> None:
    largest = ("--texts-per-second", "1e12", "--mean-tokens", "1e6", "--max-tokens", "1000000")
    record = json.loads(size(capsys, *largest, "--utilization", "0.01", "--tokens-per-second-per-core", "1", "--json"))
    assert record["replicas"] == 50_000_000_029_000_000_001


def test_model_dir_scales_the_throughput_by_flops(capsys: pytest.CaptureFixture[str], default_artifact: Path) -> None:
    """The default artifact is not scaled for texts up to the row length. Longer texts reduce its throughput."""
    assert size(capsys, *LOAD, "--model-dir", str(default_artifact)) == size(capsys, *LOAD)
    long = size(capsys, "--texts-per-second", "1", "--mean-tokens", "256", "--model-dir", str(default_artifact))
    assert "13,600 (bfloat16" in long
    assert "22.41 / 23.59 MFLOP per token, estimated: L x (24 x H^2 + 4 x T x H)" in long


def test_damaged_model_dir_is_the_error_of_the_artifact(
    capsys: pytest.CaptureFixture[str], default_artifact: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(default_artifact, tmp_path / "artifact"))
    (root / MANIFEST).write_bytes((root / MANIFEST).read_bytes() + b" ")
    assert main(["size", *LOAD, "--model-dir", str(root)]) == 78
    assert capsys.readouterr().err == (
        f"attendant: {root / MANIFEST}: SHA-256 mismatch with manifest.sha256. Export again.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--texts-per-second", "0"), "--texts-per-second: out of range (0, limit 1e-3). Use 1e-3 to 1e12"),
        (("--texts-per-second", "-5"), "--texts-per-second: out of range (-5, limit 1e-3). Use 1e-3 to 1e12"),
        (("--texts-per-second", "nan"), '--texts-per-second: not a number ("nan"). Use 1e-3 to 1e12'),
        (("--texts-per-second", "inf"), "--texts-per-second: out of range (inf, limit 1e12). Use 1e-3 to 1e12"),
        (("--texts-per-second", "1e999999999"), "--texts-per-second: out of range (inf, limit 1e12)"),
        (("--texts-per-second", "many"), '--texts-per-second: not a number ("many")'),
        (("--mean-tokens", "0.5"), "--mean-tokens: out of range (0.5, limit 1). Use 1 to 1e6"),
        (("--mean-tokens", "300"), "--mean-tokens: over the token limit of all-MiniLM-L6-v2 (300, limit 256)"),
        (("--mean-tokens", "30", "--max-tokens", "20"), "(30, limit 20)"),
        (("--inputs-per-request", "1.5"), "--inputs-per-request: not an integer (1.5). Use 1 to 2048"),
        (("--utilization", "1.1"), "--utilization: out of range (1.1, limit 1). Use 0.01 to 1"),
        (("--precision", "fp8"), "--precision: invalid choice: 'fp8'"),
        (("--hardware", "gpu"), "--hardware gpu: requires --tokens-per-second, because no GPU has been measured"),
        (("--tokens-per-second", "1", "--tokens-per-second-per-core", "1"), "not allowed with argument"),
        (("--cores", "2"), "unknown option --cores"),
    ],
)
def test_invalid_option_is_named_with_its_limit(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    error = size_error(capsys, *LOAD, *arguments)
    assert error.startswith("attendant size: ")
    assert message in error
    assert error.endswith("See: attendant size --help")


def test_missing_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the following arguments are required: --texts-per-second, --mean-tokens" in size_error(capsys)


def test_help_describes_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["size", "--help"])
    out = capsys.readouterr().out
    assert raised.value.code == 0
    for option in ("--texts-per-second N", "--tokens-per-second-per-core", "--model-dir", "make bench"):
        assert option in out
