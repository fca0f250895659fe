-- For wrk: POSTs the files named after --, in turn, and prints what it measured as one line of JSON.
-- wrk ... -s post.lua URL -- HEADER=VALUE ... -- FILE ...

local bodies, turn = {}, 0

function init(args)
  local files = false
  for _, word in ipairs(args) do
    if word == "--" then
      files = true
    elseif files then
      local file = assert(io.open(word, "rb"))
      bodies[#bodies + 1] = file:read("*a")
      file:close()
    else
      local name, value = word:match("([^=]+)=(.*)")
      if name then wrk.headers[name] = value end
    end
  end
  for number, body in ipairs(bodies) do bodies[number] = wrk.format("POST", nil, wrk.headers, body) end
end

function request()
  turn = turn % #bodies + 1
  return bodies[turn]
end

function done(summary, latency, requests)
  local failed = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %f, "p50_ms": %f, "p90_ms": %f, "p99_ms": %f, "max_ms": %f, "bad_status": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(90) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3, failed.status, failed.connect + failed.read + failed.write + failed.timeout))
end
