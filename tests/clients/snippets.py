"""Client code. The tests run it, and docs/clients.md shows it."""

OPENAI = """
from openai import OpenAI

client = OpenAI(base_url=f"{rest}/v1", api_key="none")
response = client.embeddings.create(model="all-MiniLM-L6-v2", input=texts)
vectors = [item.embedding for item in response.data]
"""
LANGCHAIN_OPENAI = """
from langchain_openai import OpenAIEmbeddings

# By default, LangChain sends token ids of OpenAI's vocabulary.
embeddings = OpenAIEmbeddings(
    model="all-MiniLM-L6-v2", base_url=f"{rest}/v1", api_key="none", check_embedding_ctx_length=False
)
vectors = embeddings.embed_documents(texts)
"""
INFINITY_CLIENT = """
from infinity_client import Client
from infinity_client.api.default import embeddings, rerank
from infinity_client.models import OpenAIEmbeddingInputText, RerankInput

client = Client(base_url=f"{rest}/infinity")
body = OpenAIEmbeddingInputText(input_=texts)
vectors = [item.embedding for item in embeddings.sync(client=client, body=body).data]
ranked = rerank.sync(client=client, body=RerankInput(query=texts[0], documents=texts))
scores = {item.index: item.relevance_score for item in ranked.results}
"""
HUGGINGFACE_HUB = """
from huggingface_hub import InferenceClient

client = InferenceClient(rest)
vectors = client.feature_extraction(texts)
"""
LANGCHAIN_HUGGINGFACE = """
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings

# The constructor rejects URLs.
embeddings = HuggingFaceEndpointEmbeddings(huggingfacehub_api_token="none")
embeddings.client, embeddings.async_client = InferenceClient(rest), AsyncInferenceClient(rest)
vectors = embeddings.embed_documents(texts)
"""
LLAMA_INDEX = """
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

embeddings = TextEmbeddingsInference(model_name="all-MiniLM-L6-v2", base_url=rest)
vectors = embeddings.get_text_embedding_batch(texts)
"""
HAYSTACK = """
from haystack import Document
from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPIDocumentEmbedder

embedder = HuggingFaceAPIDocumentEmbedder(
    api_type="text_embeddings_inference", api_params={"url": rest}, normalize=True
)
documents = embedder.run([Document(content=text) for text in texts])["documents"]
vectors = [document.embedding for document in documents]
"""
COHERE = """
import cohere

client = cohere.ClientV2("none", base_url=rest)  # the key, if the server requires one
ranked = client.rerank(model="all-MiniLM-L6-v2", query=texts[0], documents=texts)
scores = {result.index: result.relevance_score for result in ranked.results}
embedded = client.embed(
    model="all-MiniLM-L6-v2", texts=texts, input_type="search_document", embedding_types=["float"], truncate="END"
)
vectors = embedded.embeddings.float_
"""
LANGCHAIN_COHERE = """
from langchain_cohere import CohereRerank
from langchain_core.documents import Document

reranker = CohereRerank(model="all-MiniLM-L6-v2", base_url=rest, cohere_api_key="none")
documents = reranker.compress_documents([Document(text) for text in texts], texts[0])
scores = [document.metadata["relevance_score"] for document in documents]
"""
LLAMA_INDEX_COHERE_RERANK = """
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank

reranker = CohereRerank(model="all-MiniLM-L6-v2", base_url=rest, api_key="none", top_n=3)
nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
ranked = reranker.postprocess_nodes(nodes, query_str=texts[0])
scores = {node.text: node.score for node in ranked}
"""
LLAMA_INDEX_TEI_RERANK = """
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

reranker = TextEmbeddingInference(base_url=rest, top_n=3)  # requires a cross-encoder
nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
ranked = reranker.postprocess_nodes(nodes, query_str=texts[0])
scores = {node.text: node.score for node in ranked}
"""
TEI_CLIENT = """
from tei_client import GrpcClient

client = GrpcClient(grpc_address)
vectors = client.embed(texts, truncate=True)
"""
COHERE_HAYSTACK = """
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker

ranker = CohereRanker("all-MiniLM-L6-v2", api_key=Secret.from_token("none"), api_base_url=rest)
ranked = ranker.run(texts[0], [Document(content=text) for text in texts])["documents"]
scores = {document.content: document.score for document in ranked}
"""
JINA_HAYSTACK = """
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.jina import JinaRanker

ranker = JinaRanker("all-MiniLM-L6-v2", api_key=Secret.from_token("none"), base_url=f"{rest}/v1/rerank")
ranked = ranker.run(texts[0], [Document(content=text[:256]) for text in texts])["documents"]  # it cannot truncate
scores = {document.content: document.score for document in ranked}
"""
TRITONCLIENT = """
import numpy as np
import tritonclient.http as triton  # tritonclient.grpc has the same classes, for grpc_address

client = triton.InferenceServerClient(rest.removeprefix("http://"))
tensor = triton.InferInput("text", [len(texts)], "BYTES")
tensor.set_data_from_numpy(np.array(texts, dtype=object))
vectors = client.infer("all-MiniLM-L6-v2", [tensor]).as_numpy("pooled")
"""
KSERVE = """
import asyncio

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def infer():
    client = InferenceRESTClient(config=RESTConfig(protocol="v2"))
    tensor = InferInput("text", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array(texts, dtype=object))
    response = await client.infer(rest, InferRequest("all-MiniLM-L6-v2", [tensor]), model_name="all-MiniLM-L6-v2")
    await client.close()
    return response.get_output_by_name("pooled").as_numpy()


vectors = asyncio.run(infer())
"""
GRPC_HEALTH = """
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

channel = grpc.insecure_channel(grpc_address)
health = health_pb2_grpc.HealthStub(channel)
response = health.Check(health_pb2.HealthCheckRequest(service="attendant.v1.EncoderService"))
is_serving = response.status == health_pb2.HealthCheckResponse.SERVING
"""
GRPC_REFLECTION = """
import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(grpc_address)
pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
encode = pool.FindServiceByName("attendant.v1.EncoderService").FindMethodByName("Encode")
Request, Response = GetMessageClass(encode.input_type), GetMessageClass(encode.output_type)
call = channel.unary_unary(
    f"/{encode.containing_service.full_name}/{encode.name}",
    request_serializer=Request.SerializeToString,
    response_deserializer=Response.FromString,
)
request = Request(inputs=[{"text": text} for text in texts])
response = call(request)
"""
