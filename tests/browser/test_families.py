"""The page with a model of each architecture."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.export.export import export
from service.config import Settings
from tests.browser.page_driver import PageDriver
from tests.browser.similarity_tab import RESULT
from tests.model.conftest import definitions, publish  # noqa: F401
from tests.serving import ServiceThread
from tests.shared_models import load_anew

pytestmark = pytest.mark.slow

KINDS = ("mpnet", "modernbert", "nomic_bert", "gte", "jina_embeddings_v3", "eurobert", "qwen3", "gemma3_text")
SENTENCES = ("The miller counts his money at the bank.", "Seven small boats wait at the river bank.")


@pytest.fixture(scope="module", params=KINDS)
def service(
    request: pytest.FixtureRequest,
    publish: Callable[[str], Path],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServiceThread]:
    out = tmp_path_factory.mktemp("family") / "artifact"
    export(str(publish(request.param)), out, revision=None, name=None, progress=lambda step: None)
    with ServiceThread(load_anew(Settings(model_dir=out))) as running:
        yield running


def test_page_shows_words_maps_of_all_kinds_and_similarity(
    service: ServiceThread, new_driver: Callable[..., PageDriver]
) -> None:
    driver: Any = new_driver(service.rest)
    driver.open_texts(*SENTENCES, explore=True)
    assert len(driver.cells()) >= 8
    kinds = driver.page.locator("#kind option").evaluate_all("options => options.map((option) => option.value)")
    assert {"probs", "norm", "block_norm", "projection"} <= set(kinds)
    for kind in kinds:
        driver.choose(kind=kind)
        assert len(driver.cells()) >= 8, kind
    driver.page.get_by_role("tab", name="Similarity").click()
    if httpx.get(f"{service.rest}/v1/model").json()["pooling"] in ("cls", "last"):
        driver.page.get_by_text("Contributions are not available:").wait_for()
    else:
        driver.page.wait_for_function(RESULT)
    assert driver.errors == []


def test_page_explains_layer_0(service: ServiceThread, new_driver: Callable[..., PageDriver]) -> None:
    """Of these architectures, only MPNet adds positions to the dictionary entries."""
    driver = new_driver(service.rest)
    driver.open_texts("Money in the bank.", "The boats wait at the river bank.")
    note = driver.page.get_by_text("Layer 0 is the input of the first layer").inner_text()
    assert ("because the positions differ" in note) == ("mpnet" in httpx.get(f"{service.rest}/v1/model").text)
