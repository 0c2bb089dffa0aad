"""Progress of encoded texts."""

from pathlib import Path

import pytest

from service.commands.sources import TextEncoder
from service.engine.model_loader import LoadedModel
from tests.service.conftest import open_harness


async def test_progress_is_reported_for_long_work_only(
    model: LoadedModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(model) as harness:
        encoder = TextEncoder(harness.engine, "new")
        encoder.report(Path("texts.txt"), 32, 5000)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr("service.commands.sources.PROGRESS_INTERVAL_S", 0.0)
        encoder.report(Path("texts.txt"), 1234, 5000)
    assert capsys.readouterr().err == "attendant: new: texts.txt: encoded 1,234 of 5,000 texts\n"
