"""docs/training.md lists every option with its default."""

import re
import tomllib
from typing import Any

from pydantic_core import PydanticUndefined

from model.train.config import TrainConfig
from tests.conftest import ROOT

(EXAMPLE,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.DOTALL)
CHOSEN = {("model", "name"), ("model", "license"), ("data", "train"), ("data", "validation"), ("run", "steps")}


def test_documented_options_are_all_options_with_their_defaults() -> None:
    document: dict[str, dict[str, Any]] = tomllib.loads(EXAMPLE)
    config = TrainConfig.model_validate(document)
    assert set(document) == set(TrainConfig.model_fields)
    for table, options in document.items():
        fields = type(getattr(config, table)).model_fields
        assert list(options) == list(fields)
        for name, value in options.items():
            default = fields[name].get_default()
            if (table, name) in CHOSEN:
                assert default in (None, PydanticUndefined)
            else:
                assert value == (list(default) if isinstance(default, tuple) else default), (table, name)
