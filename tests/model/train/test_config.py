"""Configurations: paths, defaults, documentation, and errors that name the option."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic_core import PydanticUndefined

from model.train.config import TrainConfig, TrainError, load_config
from tests.conftest import ROOT
from tests.model.train.conftest import to_toml

Document = dict[str, dict[str, Any]]


def test_paths_are_relative_to_the_file(config_file: Path, tmp_path: Path) -> None:
    config = load_config(config_file)
    assert config.data.train == (tmp_path / "train.txt",)
    assert config.masking.probability == 0.15


@pytest.mark.parametrize(
    ("table", "option", "value", "message"),
    [
        ("model", "hidden_size", 25, "hidden_size is not a multiple of num_attention_heads"),
        ("model", "width", 8, "model.width: unknown option. Check its spelling"),
        ("model", "hidden_sizes", 8, "model.hidden_sizes: unknown option. Did you mean model.hidden_size?"),
        ("run", "step", 8, "run.step: unknown option. Did you mean run.steps?"),
        ("model", "name", "a b", "model.name: must be up to 128 ASCII letters"),
        ("run", "steps", 0, "run.steps: must be greater than 0"),
        ("run", "seed", 10**30, "run.seed: must be less than"),
        ("run", "rows_per_batch", 10**11, "run.rows_per_batch: must be less than or equal to 65536 (actual 1"),
        ("optimizer", "learning_rate", float("inf"), "optimizer.learning_rate: must be a finite number"),
        ("optimizer", "warmup_steps", 12, "optimizer.warmup_steps is not less than run.steps (12). Reduce it"),
        ("model", "init", "default", "is set together with init, which determines it. Remove it"),
        ("model", "init_blocks", [1], "init_blocks is set without init. Remove it"),
        ("masking", "random_share", 0.3, "mask_share + random_share is over 1 (0.8 + 0.3)"),
        ("data", "train", "train.txt", "data.train: must be an array"),
        ("run", "precision", "int4", "run.precision: must be 'auto', 'float32' or 'bfloat16'"),
        ("data", "train", [], "data.train: must have at least 1 item"),
        ("optimizer", "betas", [0.9, 1.5], "optimizer.betas.1: must be less than 1"),
        ("run", "steps", True, "run.steps: must be a valid integer (actual True)"),
        ("optimizer", "betas", [0.9, "0.5"], "optimizer.betas.1: must be a valid number (actual '0.5')"),
        ("tokenizer", "lowercase", "yes", "tokenizer.lowercase: must be a valid boolean (actual 'yes')"),
        ("tokenizer", "kind", "unigram", "tokenizer.kind: must be 'wordpiece' or 'bpe'"),
    ],
)
def test_invalid_option_is_named(
    document: Document, tmp_path: Path, table: str, option: str, value: Any, message: str
) -> None:
    document.setdefault(table, {})[option] = value
    path = tmp_path / "config.toml"
    path.write_text(to_toml(document).replace("Infinity", "inf"))
    with pytest.raises(TrainError) as raised:
        load_config(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"contrastive": {}, "distillation": {"teacher": "x"}}, "are set together. Keep one of the tables"),
        ({"contrastive": {}, "masking": {}}, "masking is set together with contrastive"),
        ({"contrastive": {}, "cross_encoder": {}}, "contrastive and cross_encoder are set together"),
        ({"cross_encoder": {}, "model": {"name": "x", "attention": "causal"}}, "cross_encoder is set together with"),
        ({"contrastive": {}, "data": {"train": ["a"], "validation": ["b"], "field": "x"}}, "data.field is set"),
        ({"model": {"name": "x", "init": "default"}}, "model.init needs the table of an objective"),
        ({"model": {"name": "x", "init": "default"}, "contrastive": {}}, "tokenizer is set together with model.init"),
        ({"model": {"name": "x", "attention": "causal"}, "masking": {}}, 'with model.attention = "causal"'),
    ],
)
def test_tables_that_exclude_each_other_are_errors(
    document: Document, tmp_path: Path, tables: Document, message: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(document | tables))
    with pytest.raises(TrainError) as raised:
        load_config(path)
    assert message in str(raised.value)


def test_missing_table_is_named(document: Document, tmp_path: Path) -> None:
    del document["run"]
    path = tmp_path / "config.toml"
    path.write_text(to_toml(document))
    with pytest.raises(TrainError, match="run: missing"):
        load_config(path)


@pytest.mark.parametrize("content", [b"[model\n", b"\xff"])
def test_file_that_is_not_toml_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(TrainError, match="not TOML"):
        load_config(path)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="cannot be read"):
        load_config(tmp_path / "none.toml")


# docs/training.md lists every option with its default.

BLOCKS = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.DOTALL)
CHOSEN = {
    ("model", "name"), ("model", "license"), ("model", "init"), ("model", "init_blocks"), ("data", "train"),
    ("data", "validation"), ("run", "steps"), ("distillation", "teacher"),
}  # fmt: skip
"""Options documented with an example value instead of the default."""


def test_documented_options_are_all_options_with_their_defaults() -> None:
    documented: dict[str, dict[str, Any]] = {}
    for block in BLOCKS:
        for table, options in tomllib.loads(block).items():
            assert not set(options) & set(documented.get(table, ())), table
            documented.setdefault(table, {}).update(options)
    assert set(documented) == set(TrainConfig.model_fields)
    for table, options in documented.items():
        section = _section(table)
        assert set(options) == set(section.model_fields), table
        for name, value in options.items():
            default = section.model_fields[name].get_default()
            if (table, name) in CHOSEN:
                assert default in (None, (), PydanticUndefined)
            else:
                assert value == (list(default) if isinstance(default, tuple) else default), (table, name)


def test_first_block_is_a_valid_configuration() -> None:
    TrainConfig.model_validate(tomllib.loads(BLOCKS[0]))


def _section(table: str) -> Any:
    """Return the class of a table, which may be optional."""
    annotation = TrainConfig.model_fields[table].annotation
    return next(kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "model_fields"))
