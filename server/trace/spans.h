// Records as OpenTelemetry spans, in OTLP's JSON (opentelemetry-proto, ExportTraceServiceRequest; ids in hexadecimal).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "server/json_fwd.h"
#include "server/trace/slowest.h"

namespace ark::trace {

// A span of kind SERVER for each request, with one of kind INTERNAL for each of its phases. `unix_ns`: what
// the Unix time was at the steady clock's zero. `random`: bits for the ids that no traceparent gives.
Json spans_of(const std::vector<RecordPtr>& records, int64_t unix_ns,
              const std::function<uint64_t()>& random);

}  // namespace ark::trace
