-- Script for wrk: cycle through the request bodies in a file, and print the figures as one line of JSON.
-- A line is a body for wrk's URL, or "/path<TAB>body". BENCH_HEADERS holds "name: value" lines.
local requests, at = {}, 0
local file = assert(os.getenv("BENCH_BODIES"))

wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
for name, value in string.gmatch(os.getenv("BENCH_HEADERS") or "", "([^:\n]+): ([^\n]+)") do
  wrk.headers[name] = value
end

function init(args)
  for line in io.lines(file) do
    local path, body = string.match(line, "^(/[^\t]*)\t(.*)$")
    requests[#requests + 1] = wrk.format(nil, path, nil, body or line)
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\nBENCH {"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "failed": %d, "bytes": %d, "max_ms": %f}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout, summary.bytes, latency.max / 1e3))
end
