"""The tiny published models of every family, here too."""

from tests.model.conftest import definitions, publish

__all__ = ["definitions", "publish"]
