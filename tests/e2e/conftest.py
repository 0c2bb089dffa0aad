"""Fixtures for the end-to-end tests: tiny models of every family."""

from tests.model.conftest import definitions, publish, published

__all__ = ["definitions", "publish", "published"]
