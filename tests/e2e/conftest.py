"""The tiny published models of every family and the default model, here too."""

from tests.model.conftest import definitions, publish
from tests.service.conftest import model

__all__ = ["definitions", "model", "publish"]
