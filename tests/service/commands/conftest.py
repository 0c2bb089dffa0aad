"""Fixtures of the tests of commands: tiny models with random weights."""

from tests.model.conftest import definitions, exported, exported_labse, labse, publish, published

__all__ = ["definitions", "exported", "exported_labse", "labse", "publish", "published"]
