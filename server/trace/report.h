// A record as JSON for people: /debug/slow.
#pragma once

#include "server/json_fwd.h"
#include "server/trace/slowest.h"

namespace ark::trace {

// {"ms", "cause", "cause_ms", "about", "causes": {name: milliseconds}}; of nothing, no cause.
Json report_of(const schedule::Shares& shares);
// The request, what it took and why, and its phases one after the other. Times in milliseconds.
Json report_of(const schedule::Record& record);

}  // namespace ark::trace
