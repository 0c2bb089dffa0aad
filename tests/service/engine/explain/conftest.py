"""Fixtures for the attention map tests."""

import pytest
from attendant_client.types import AttendResult

from model.artifact.manifest import Manifest
from service.engine.model_loader import LoadedModel
from tests.service.engine.explain.attend_cases import PASSAGE, AttendFactory


@pytest.fixture(scope="module")
def factory(model: LoadedModel, manifest: Manifest) -> AttendFactory:
    return AttendFactory(model, manifest)


@pytest.fixture(scope="module")
def passage(factory: AttendFactory) -> AttendResult:
    """Float32 maps of every head and layer for a text of 144 tokens."""
    result = factory.run(factory.case(PASSAGE, wire="binary"))
    assert len(result.rows) == 144
    return result
