"""Fixtures for the end-to-end tests: tiny models of every family."""

from tests.model.conftest import definitions, labse, publish, published

__all__ = ["definitions", "labse", "publish", "published"]
