"""docs/training.md lists every option with its default."""

import re
import tomllib
from typing import Any, get_args

from pydantic_core import PydanticUndefined

from model.train.config import TrainConfig
from tests.conftest import ROOT

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
