// What docs/gpu-results.md has rows for, on a real GPU: ARK_GPU=1. Elsewhere a few steps of small models on the
// emulator: the figures say nothing then, but all of this runs. Results go to the file that ARK_GPU_RESULTS names, one
// JSON object a line, and to the output.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/conformance/cuda/micro.h"
#include "tests/conformance/cuda/test_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void write_line(const std::string& line) {
  std::cout << line << std::endl;
  if (const char* path = std::getenv("ARK_GPU_RESULTS")) std::ofstream(path, std::ios::app) << line << "\n";
}
void report(const std::string& name, double value, const char* unit, double floor = 0) {
  char line[256];
  std::snprintf(line, sizeof line, R"({"name":"%s","value":%.3f,"unit":"%s","floor":%.3f})", name.c_str(),
                value, unit, floor);
  write_line(line);
}
void report_not_measured(const std::string& name, const std::string& why) {
  write_line(nlohmann::json{{"name", name}, {"not_measured", why}}.dump());
}

class GpuBench : public ::testing::Test {
 protected:
  const bool is_real_ = std::getenv("ARK_GPU") != nullptr;
  const int warm_ = is_real_ ? 10 : 1, alone_ = is_real_ ? 100 : 2, together_ = is_real_ ? 200 : 2;  // steps
  const int32_t context_ = is_real_ ? 128 : 8, batch_ = is_real_ ? 32 : 3;

  void SetUp() override { gpu_ = test_gpu({}); }

  RunnerSetup setup(int32_t batch, int64_t lease = 0, int ranks = 1) const {
    RunnerSetup s;
    s.ranks = ranks;
    s.max_tokens = is_real_ ? 256 : 16;
    s.max_rows = s.max_slots = batch;
    s.max_length = is_real_ ? 1024 : 64;
    s.page_size = 16;
    s.pages = batch * s.max_length / s.page_size;
    s.options.device.processors = test_processors();
    s.options.gpu = gpu_;
    s.options.lease = lease;
    s.options.threads = 16;
    return s;
  }

  std::string name_of(const std::string& model, int32_t batch, const std::string& how) const {
    return model + ", batch " + std::to_string(batch) + ", context " + std::to_string(context_) + how;
  }

  // Decode steps of all slots' sequences with context_ tokens cached: time of one step alone (median), and per
  // step with the next one always posted.
  void measure(const std::string& model_name, const DecoderModel& model, const RunnerSetup& s,
               const std::string& how = "") const {
    const std::string name = name_of(model_name, s.max_slots, how);
    const auto runner = make_runner(model, s);
    std::vector<Sequence> live;
    int32_t next_page = 0;
    for (int32_t slot = 0; slot < s.max_slots; ++slot) {
      live.push_back({.slot = slot, .tokens = std::vector<int32_t>(static_cast<std::size_t>(context_), 7)});
      StepDescriptor step;
      add_chunk(step, live.back(), context_, s.page_size, next_page, true, kWantToken);
      runner->post(step);
      wait_for(*runner);
    }
    const auto post = [&] {
      StepDescriptor step;
      for (Sequence& sequence : live) {
        sequence.tokens.push_back(kFeedbackToken);
        add_chunk(step, sequence, 1, s.page_size, next_page, true, kWantToken);
      }
      runner->post(step);
    };
    std::vector<double> alone;
    for (int i = 0; i < warm_ + alone_; ++i) {
      const auto start = Clock::now();
      post();
      wait_for(*runner);
      if (i >= warm_) alone.push_back(microseconds_since(start));
    }
    post();
    const auto start = Clock::now();
    for (int i = 0; i < together_; ++i) {
      post();
      wait_for(*runner);
    }
    const double each = microseconds_since(start) / together_;
    wait_for(*runner);
    const double rate = gpu_->info().memory_rate;
    const double floor = rate > 0 ? static_cast<double>(runner->memory().weights) / rate * 1e6 : 0;
    report(name + ", step alone", median(alone), "us", floor);
    report(name + ", steps back to back", each, "us", floor);
  }

  TokenGraphOptions gpt2_124m() const {
    if (!is_real_) return {.layers = 1, .weight = DType::kF16};
    return {.layers = 12,
            .hidden = 768,
            .heads = 12,
            .kv_heads = 12,
            .head_dim = 64,
            .intermediate = 3072,
            .vocabulary = 50257,
            .max_positions = 1024,
            .weight = DType::kF16};
  }
  TokenGraphOptions llama_1b() const {
    if (!is_real_) return {.layers = 1, .weight = DType::kBF16};
    return {.layers = 16,
            .hidden = 2048,
            .heads = 32,
            .kv_heads = 8,
            .head_dim = 64,
            .intermediate = 8192,
            .vocabulary = 128256,
            .max_positions = 1024,
            .weight = DType::kBF16};
  }

  std::shared_ptr<cuda::Gpu> gpu_;
};

TEST_F(GpuBench, HopsBarriersAndExchanges) {
  for (const cuda::MicroResult& r : cuda::measure_micro(*gpu_, is_real_ ? 2000 : 3))
    report(r.name, r.nanoseconds / 1000, "us");
}

TEST_F(GpuBench, Gpt2) {
  const DecoderModel model = gpt2_tokens(gpt2_124m());
  const std::string name = "GPT-2 124M fp16";
  measure(name, model, setup(1));
  measure(name, model, setup(batch_));
  measure(name, model, setup(1, 1), ", lease 1");
  const std::string graph = ", CUDA graph of lease 1";
  RunnerSetup replayed = setup(1, 1);
  replayed.options.device.as_graph = true;
  try {
    measure(name, model, replayed, graph);
  } catch (const Error& error) {  // a driver without what it takes
    report_not_measured(name_of(name, 1, graph), error.what());
  }
  measure(name, model, setup(1, 0, 2), ", 2 ranks");
}

TEST_F(GpuBench, Llama1b) { measure("Llama-1B-shaped bf16", llama_tokens(llama_1b()), setup(1)); }

}  // namespace
}  // namespace ark::test
