-- wrk: post the bodies of a file, one a line, in turn; print what happened as one line of JSON.
local bodies, at = {}, 0
local file = assert(os.getenv("BENCH_BODIES"))

wrk.method = "POST"
wrk.headers["content-type"] = "application/json"

function init(args)
  for line in io.lines(file) do bodies[#bodies + 1] = line end
end

function request()
  at = at % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[at])
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\nBENCH {"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "failed": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
