"""Open Inference Protocol requests to a service without sockets."""

from typing import Any

import httpx

from tests.oip_messages import Outputs, Tensor, rest_outputs, rest_request
from tests.service.conftest import ServiceHarness

MODEL = "all-MiniLM-L6-v2"
INFER = f"/v2/models/{MODEL}/infer"


async def post(
    harness: ServiceHarness, *tensors: Tensor, path: str = INFER, accept: str = "identity", **options: Any
) -> httpx.Response:
    content, headers = rest_request(tensors, **options)
    return await harness.client.post(path, content=content, headers={**headers, "accept-encoding": accept})


async def infer(harness: ServiceHarness, *tensors: Tensor, **options: Any) -> Outputs:
    response = await post(harness, *tensors, **options)
    assert response.status_code == 200, response.text
    return rest_outputs(response)


def names(*outputs: str) -> list[dict[str, Any]]:
    return [{"name": output} for output in outputs]
