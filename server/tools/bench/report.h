// Figures of a run, with the keys of `vllm bench serve`.
#pragma once

#include <string>

#include "server/json_fwd.h"
#include "server/text/tokenizer.h"
#include "server/tools/bench/traffic.h"

namespace ark::bench {

// duration, completed, failed, tokens, throughputs and the selected metrics; with `--save-detailed` also each
// request's times and text. Output tokens are counted by the server, else by the tokenizer, else by the
// events that carried text. TPOT is (latency - TTFT) / (output tokens - 1) of a request with more than one.
Json figures(const ServeOptions& options, const Traffic& traffic, const text::Tokenizer* tokenizer);

// The figures as a table for people.
std::string table(const ServeOptions& options, const Json& figures);

}  // namespace ark::bench
