// Whose fault the slowest requests of a run are, where the server tells: ark's /debug/slow.
#pragma once

#include <string>

#include "server/json_fwd.h"
#include "server/tools/bench/traffic.h"

namespace ark::bench {

// Of the slowest hundredth, at least one, by first token, pause between tokens and whole: {"ttft": {"requests", "ms",
// "cause", "causes": {name: milliseconds}}, "itl": ..., "e2el": ...}, means of the requests. {} where nobody tells.
Json blame_of_p99(const ServeOptions& options, const Traffic& traffic);

// The same for people, from "p99_blame" of a result; "" without.
std::string blame_table(const Json& result);

}  // namespace ark::bench
