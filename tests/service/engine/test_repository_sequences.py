"""Sequences of changes to the served models, compared with a model of the rules."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from service.errors import DefaultModelRequired, LoadFailed, NotFound, ServiceError
from tests.conftest import EXAMPLES
from tests.service.engine.changing_models import BROKEN, SOURCES, close, digest, open_serving

NAMES = ("a", "b", "c", "d")
entries = st.lists(
    st.tuples(
        st.sampled_from(NAMES[:3]), st.sampled_from((*SOURCES, BROKEN)), st.lists(st.sampled_from(NAMES), max_size=2)
    ),
    min_size=1,
    max_size=3,
)
operations = st.one_of(
    st.tuples(st.just("write"), entries),
    st.tuples(st.sampled_from(("load", "unload")), st.sampled_from(NAMES)),
)


@dataclass
class Expected:
    """The rules for changes, without their implementation: what is written, what applies, and what is unloaded."""

    written: list[tuple[str, str, list[str]]]
    applied: list[tuple[str, str, list[str]]]
    unloaded: set[str]

    def apply(self, unloaded: set[str]) -> bool:
        """Apply what is written, with these models unloaded, and return whether it is valid."""
        unloaded = unloaded - {self.written[0][0]}
        names = [name for own, _, aliases in self.written for name in (own, *aliases)]
        loaded = [source for name, source, _ in self.written if name not in unloaded]
        if len(set(names)) < len(names) or BROKEN in loaded:
            return False
        self.applied, self.unloaded = self.written, unloaded & {name for name, _, _ in self.written}
        return True

    @property
    def served(self) -> dict[str, str]:
        """The source of each name and alias, in order."""
        return {
            name: source
            for own, source, aliases in self.applied
            if own not in self.unloaded
            for name in (own, *aliases)
        }

    def outcome(self, operation: str, name: str) -> type[ServiceError] | None:
        """Return the error of loading or unloading a model, and note its effect if there is none."""
        if operation == "load":
            exists = name in [own for own, _, _ in self.written]
            if not self.apply(self.unloaded - {name} if exists else self.unloaded):
                return LoadFailed
            return None if exists else NotFound
        if name not in [own for own, _, _ in self.applied]:
            return NotFound
        if name == self.applied[0][0]:
            return DefaultModelRequired
        self.unloaded.add(name)
        return None


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(operations, min_size=1, max_size=6))
def test_every_sequence_of_changes_applies_each_as_a_whole(
    fast_collection: None, artifacts: Path, tmp_path: Path, changes: list[tuple[str, Any]]
) -> None:
    digests = {source: digest(artifacts, source) for source in SOURCES}

    async def run() -> None:
        serving = await open_serving(artifacts, tmp_path / "models.toml", "a=one")
        expected = Expected([("a", "one", [])], [("a", "one", [])], set())
        for kind, change in changes:
            if kind == "write":
                expected.written = change
                applied = await serving.write(*(f"{name}={source} {' '.join(more)}" for name, source, more in change))
                assert applied == expected.apply(expected.unloaded)
            else:
                error = expected.outcome(kind, change)
                operation = serving.repository.load if kind == "load" else serving.repository.unload
                with pytest.raises(error) if error else contextlib.nullcontext():
                    await operation(change, "admin")
            event(f"{kind} {len(expected.served)}")
            assert list(serving.served.items()) == [(name, digests[source]) for name, source in expected.served.items()]
            for name in NAMES:
                assert await serving.digest_of(name) == serving.served.get(name, "MODEL_NOT_FOUND")
        await close(serving)

    asyncio.run(run())
