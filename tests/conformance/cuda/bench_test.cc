// What docs/gpu-results.md has rows for, on a real GPU: ARK_GPU=1, else skipped. Results go to the file that
// ARK_GPU_RESULTS names, one JSON object a line, and to the output.
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
  void SetUp() override {
    if (!std::getenv("ARK_GPU")) GTEST_SKIP() << "no GPU: ARK_GPU=1 says that there is one";
    gpu_ = test_gpu({});
  }

  RunnerSetup setup(int32_t batch, int64_t lease = 0, int ranks = 1) const {
    RunnerSetup s;
    s.ranks = ranks;
    s.max_tokens = 256;
    s.max_rows = s.max_slots = batch;
    s.max_length = 1024;
    s.page_size = 16;
    s.pages = batch * 64;
    s.options.gpu = gpu_;
    s.options.lease = lease;
    s.options.threads = 16;
    return s;
  }

  // Decode steps of `batch` sequences with `context` tokens cached: time of one step alone (median), and per
  // step with the next one always posted.
  void measure(const std::string& name, const DecoderModel& model, const RunnerSetup& s,
               int32_t context) const {
    const auto runner = make_runner(model, s);
    std::vector<Sequence> live;
    int32_t next_page = 0;
    for (int32_t slot = 0; slot < s.max_slots; ++slot) {
      live.push_back({.slot = slot, .tokens = std::vector<int32_t>(static_cast<std::size_t>(context), 7)});
      StepDescriptor step;
      add_chunk(step, live.back(), context, s.page_size, next_page, true, kWantToken);
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
    for (int i = 0; i < 110; ++i) {
      const auto start = Clock::now();
      post();
      wait_for(*runner);
      if (i >= 10) alone.push_back(microseconds_since(start));
    }
    constexpr int kSteps = 200;
    post();
    const auto start = Clock::now();
    for (int i = 0; i < kSteps; ++i) {
      post();
      wait_for(*runner);
    }
    const double each = microseconds_since(start) / kSteps;
    wait_for(*runner);
    const double rate = gpu_->info().memory_rate;
    const double floor = rate > 0 ? static_cast<double>(runner->memory().weights) / rate * 1e6 : 0;
    report(name + ", step alone", median(alone), "us", floor);
    report(name + ", steps back to back", each, "us", floor);
  }

  static TokenGraphOptions gpt2_124m() {
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
  static TokenGraphOptions llama_1b() {
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
  for (const cuda::MicroResult& r : cuda::measure_micro(*gpu_, 2000))
    report(r.name, r.nanoseconds / 1000, "us");
}

TEST_F(GpuBench, Gpt2) {
  const DecoderModel model = gpt2_tokens(gpt2_124m());
  measure("GPT-2 124M fp16, batch 1, context 128", model, setup(1), 128);
  measure("GPT-2 124M fp16, batch 32, context 128", model, setup(32), 128);
  measure("GPT-2 124M fp16, batch 1, context 128, lease 1", model, setup(1, 1), 128);
  const std::string graph = "GPT-2 124M fp16, batch 1, context 128, CUDA graph of lease 1";
  RunnerSetup replayed = setup(1, 1);
  replayed.options.device.as_graph = true;
  try {
    measure(graph, model, replayed, 128);
  } catch (const Error& error) {  // a driver without what it takes
    report_not_measured(graph, error.what());
  }
  measure("GPT-2 124M fp16, batch 1, context 128, 2 ranks", model, setup(1, 0, 2), 128);
}

TEST_F(GpuBench, Llama1b) {
  measure("Llama-1B-shaped bf16, batch 1, context 128", llama_tokens(llama_1b()), setup(1), 128);
}

}  // namespace
}  // namespace ark::test
