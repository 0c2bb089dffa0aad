import { hasKey, routeUrl } from "./api.js";

/**
 * A request of the page as a program: a shell command with curl, Python with the client package, and grpcurl. If the
 * server requires an API key, the programs read it from the environment variable ATTENDANT_KEY. If it uses TLS, they
 * read the path of a private CA from ATTENDANT_CA, and accept public CAs if it is not set.
 *
 * @typedef {Record<string, any>} Body  of a request to the REST API
 */

const SERVICE = "attendant.v1.EncoderService";
const GRPC_PORT = 8081;
const REST_ONLY = ["decimals", "encoding_format"];
const PRINTED = {
  attend: "response.results[0].maps[0].matrix.round(3)",
  outputs: "response.results[0].layer_outputs[0].weights.round(3)", // of attend with outputs
  compare: "response.layers[-1].cosine.round(3)",
  similarity: "response.scores.round(3)",
  rerank: "[(result.index, round(result.relevance_score, 3)) for result in response.results]",
};

/** Prefixes of the enum values of the proto, by operation and field. */
const ENUMS = {
  attend: {
    kind: "ATTENTION_KIND", head_reduce: "HEAD_REDUCE", layer_reduce: "MAP_LAYER_REDUCE", unit: "UNIT_KIND",
    special_tokens: "SPECIAL_TOKENS", segments: "SEGMENTS", dtype: "DTYPE", outputs: "LAYER_OUTPUT",
  },
  compare: {},
  similarity: { similarity: "SIMILARITY_FUNCTION", unit: "UNIT_KIND", effect: "EFFECT" },
  rerank: { unit: "UNIT_KIND", effect: "EFFECT" },
};

/** Return a request as a shell command. */
export function curlOf(/** @type {string} */ operation, /** @type {Body} */ body) {
  const lines = [`curl -s ${quote(routeUrl(`v1/${operation}`))}`, "-H 'content-type: application/json'"];
  if (hasTls()) lines.push('${ATTENDANT_CA:+--cacert "$ATTENDANT_CA"}');
  if (hasKey()) lines.push('-H "authorization: Bearer $ATTENDANT_KEY"');
  lines.push(`-d ${quote(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

/** Return a request as a Python program that uses the client package. */
export function pythonOf(/** @type {string} */ operation, /** @type {Body} */ body) {
  const { inputs, occurrences, query, queries, documents, ...rest } = body;
  const options = Object.entries(rest).filter(([name, value]) => !REST_ONLY.includes(name) && value !== null)
    .map(([name, value]) => `${name}=${python(value)}`);
  const first = query === undefined ? [] : [python(query)];
  const lists = [inputs?.map(pythonInput), occurrences?.map(pythonOccurrence), queries?.map(python), documents?.map(python)]
    .filter((list) => list !== undefined).map((list) => `[\n${list.map((item) => `            ${item},\n`).join("")}        ]`);
  const names = [
    "Client", ...(inputs?.some(isPair) ? ["Input"] : []), ...(occurrences ? ["Occurrence"] : []),
    ...(hasTls() ? ["TlsFiles"] : []),
  ];
  const base = routeUrl("").replace(/\/$/, "");
  const key = hasKey() ? ', api_key=os.environ["ATTENDANT_KEY"]' : "";
  const tls = hasTls() ? ', tls=TlsFiles(ca=os.environ.get("ATTENDANT_CA"))' : "";
  return [
    ...(hasKey() || hasTls() ? ["import os", ""] : []),
    `from attendant_client import ${names.join(", ")}`,
    "",
    `with Client(${python(base)}${key}${tls}) as client:`,
    `    response = client.${operation}(`,
    ...[...first, ...lists, ...options].map((argument) => `        ${argument},`),
    "    )",
    `print(${PRINTED[body.outputs ? "outputs" : operation]})`,
    "",
  ].join("\n");
}

/** Return a request as a shell command with grpcurl. The port is the default port of gRPC. */
export function grpcurlOf(/** @type {string} */ operation, /** @type {Body} */ body) {
  const { hostname } = new URL(routeUrl(""));
  const security = hasTls() ? '${ATTENDANT_CA:+-cacert "$ATTENDANT_CA"}' : "-plaintext";
  const lines = [`grpcurl ${security} -d ${quote(JSON.stringify(messageOf(operation, body)))}`];
  if (hasKey()) lines.push('-H "authorization: Bearer $ATTENDANT_KEY"');
  lines.push(`${hostname}:${GRPC_PORT} ${SERVICE}/${operation[0].toUpperCase()}${operation.slice(1)}`);
  return lines.join(" \\\n  ");
}

/** Return a request as the JSON form of its gRPC message. Fields with their default value are left out. */
export function messageOf(/** @type {string} */ operation, /** @type {Body} */ body) {
  const message = {};
  for (const [name, value] of Object.entries(body)) {
    const prefix = ENUMS[operation][name];
    if (REST_ONLY.includes(name) || value === null || (["layers", "heads"].includes(name) && value === "all")) continue;
    if (name === "inputs") message.inputs = value.map((input) => (isPair(input) ? input : { text: input }));
    else if (name === "occurrences") {
      message.occurrences = value.map(({ text, span: [start, end] }) => ({ text, span: { start, end } }));
    } else if (prefix) {
      const enumValue = (/** @type {string} */ text) => `${prefix}_${text.toUpperCase()}`;
      message[name] = Array.isArray(value) ? value.map(enumValue) : enumValue(value);
    } else message[name] = value;
  }
  return message;
}

function hasTls() {
  return new URL(routeUrl("")).protocol === "https:";
}

function isPair(/** @type {string | object} */ input) {
  return typeof input === "object";
}

function pythonInput(/** @type {any} */ input) {
  return isPair(input) ? `Input(${python(input.text)}, pair=${python(input.pair)})` : python(input);
}

function pythonOccurrence(/** @type {{text: string, span: [number, number]}} */ { text, span }) {
  return `Occurrence(${python(text)}, span=(${span.join(", ")}))`;
}

/** Return a value as a Python literal. Literals of JSON strings and numbers are literals of Python too. */
function python(/** @type {any} */ value) {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  return JSON.stringify(value);
}

/** Quote text for a shell: in single quotes, only the quote itself is special. */
function quote(/** @type {string} */ text) {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}
