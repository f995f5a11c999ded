// The commands of ark-bench: each adds itself, with its options, to the command line.
#pragma once

namespace ark {

class CommandLine;

// A server that speaks OpenAI's API, as `vllm bench serve` measures it.
void add_serve_bench(CommandLine& line);
// Load time, prefill and decode speed, memory of one model, without HTTP.
void add_model_bench(CommandLine& line);
// A trace of requests, scheduled in virtual time.
void add_schedule_bench(CommandLine& line);
// What a step would take and send on many ranks.
void add_plan_bench(CommandLine& line);
// Latency and bandwidth of the transports by message size.
void add_dma_bench(CommandLine& line);

}  // namespace ark
