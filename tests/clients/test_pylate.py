"""ColBERT models in PyLate's format: vectors of the published package."""

import numpy as np
import pytest

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.clients.environments import ClientEnvironment
from tests.retrievers import export_retriever, publish_retriever
from tests.service.conftest import open_harness

pytestmark = pytest.mark.slow

KIND = "pylate"
TEXTS = ["the bank by the river", "money, money grows: in a bank account!", "a", "Don't count on it (42)"]
ENCODE = """
import contextlib
from pylate import models

with contextlib.redirect_stdout(sys.stderr):
    model = models.ColBERT(model_name_or_path=arguments["source"], device="cpu")
    vectors = {
        role: [model.encode([text], is_query=role == "query", show_progress_bar=False)[0] for text in texts]
        for role in ("query", "document")
    }
send(vectors)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> ClientEnvironment:
    return ClientEnvironment.create(KIND, tmp_path_factory.mktemp("environment") / KIND, share_torch=True)


async def test_vectors_equal_pylate(environment: ClientEnvironment) -> None:
    source = str(publish_retriever(KIND))
    expected = environment.call(ENCODE, rest="", grpc="", texts=TEXTS, source=source)
    model = LoadedModel.load(Settings(model_dir=export_retriever(KIND), precision="float32"))
    async with open_harness(model) as harness:
        for role, vectors in expected.items():
            body = {"inputs": TEXTS, "outputs": ["multi_vector"], "role": role, "truncation": "right"}
            response = await harness.post("/v1/encode", body)
            assert response.status_code == 200, response.text
            for result, vector in zip(response.json()["results"], vectors, strict=True):
                found = np.array(result["multi_vector"])
                assert found.shape == np.shape(vector)
                np.testing.assert_allclose(found, vector, rtol=0, atol=1e-4)
