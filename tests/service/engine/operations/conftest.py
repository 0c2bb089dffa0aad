import pytest
from attendant_client.types import Limits


@pytest.fixture
def limits() -> Limits:
    return Limits(
        max_inputs=4,
        max_documents=4,
        max_spans_per_input=3,
        max_spans_per_request=5,
        max_input_characters=20,
        max_request_bytes=1000,
        max_grpc_message_bytes=1000,
        max_pending_request_bytes=1000,
        max_connections=1000,
        max_grpc_streams=1000,
        max_response_bytes=1000,
        max_explain_bytes=1000,
        max_queue_ms=1000,
        max_explain_queue_ms=1000,
        max_queue_tokens=1000,
        max_explain_queue_tokens=1000,
        max_timeout_ms=1000,
        header_timeout_ms=1000,
        body_timeout_ms=1000,
    )
