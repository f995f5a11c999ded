#include "tests/emulator/emulated_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "tests/emulator/hooks.h"

namespace ark::emulator {
namespace {

// Blocks double their part of `data` once the host has said so; the last statement answers.
cuda::KernelSource source() {
  cuda::KernelSource s;
  s.text = R"(
#include "parameters.h"
using namespace ark::dev;
ARK_KERNEL(ark_loop, Parameters, 64) {
  if (thread_id() == 0) {
    for (;;) {
      const u32 seen = ld_acquire<Scope::sys>(p.go);
      if (seen) break;
      pause(p.go, seen, 1);
    }
  }
  sync();
  const int i = block_id() * block_threads() + thread_id();
  p.data[i] *= FACTOR;
  if (!ARK_BUG(missing_barrier)) sync();
  if (thread_id() == 0) red_release_add<Scope::sys>(p.go + 16, ARK_BUG(lost_answer) ? 0u : 1u);
}
)";
  s.headers = {{"parameters.h",
                "#pragma once\n#include \"dma/device.h\"\n"
                "struct Parameters { float* data; ark::dev::u32* go; };\n"}};
  s.flags = {"-DFACTOR=2"};
  return s;
}

struct Parameters {
  uint64_t data, go;
};

std::vector<float> run(const Options& options, bool seeded_bugs = false) {
  auto world = std::make_shared<World>(options);
  EmulatedGpu gpu(world, {.processors = 2, .seeded_bugs = seeded_bugs});
  auto kernel = gpu.load(source());
  cuda::DeviceMemory data(gpu, 128 * 4, "data");
  std::vector<float> values(128);
  for (int i = 0; i < 128; i++) values[i] = static_cast<float>(i);
  gpu.upload(data.address(), std::as_bytes(std::span(values)));
  const cuda::MappedMemory go = gpu.allocate_mapped(128, "go");
  const Parameters p{data.address(), go.device};
  auto* words = reinterpret_cast<uint32_t*>(go.host);
  {
    auto launch = kernel->launch({2, 64, 0}, std::as_bytes(std::span(&p, 1)));
    EXPECT_TRUE(launch->is_running());
    std::atomic_ref(words[0]).store(1);
    while (std::atomic_ref(words[16]).load() < 2 && launch->is_running()) std::this_thread::yield();
    while (launch->is_running()) std::this_thread::yield();
    EXPECT_EQ(words[16], options.bug ? 0u : 2u);
  }
  gpu.download(std::as_writable_bytes(std::span(values)), data.address());
  gpu.release(go);
  return values;
}

TEST(EmulatedGpu, RunsWhatItCompiles) {
  for (Schedule schedule : {Schedule::kFixed, Schedule::kRandom, Schedule::kPct}) {
    for (bool detector : {false, true}) {
      const auto values = run({.schedule = schedule, .detector = detector});
      for (int i = 0; i < 128; i++) ASSERT_EQ(values[i], 2 * i);
    }
  }
}

TEST(EmulatedGpu, SwitchesSeededBugsOnByName) {
  EXPECT_EQ(run({.detector = true}, true)[5], 10);
  run({.bug = bug_hash("lost_answer")}, true);
}

TEST(EmulatedGpu, IsLostAfterAFailure) {
  auto world = std::make_shared<World>(Options{.detector = true});
  EmulatedGpu gpu(world);
  auto kernel = gpu.load(source());
  const cuda::MappedMemory go = gpu.allocate_mapped(128, "go");
  reinterpret_cast<uint32_t*>(go.host)[0] = 1;
  const Parameters p{64, go.device};  // no data there
  auto launch = kernel->launch({1, 64, 0}, std::as_bytes(std::span(&p, 1)));
  auto wait = [&] {
    while (launch->is_running()) std::this_thread::yield();
  };
  EXPECT_THROW(wait(), Error);
  ASSERT_TRUE(world->failure());
  EXPECT_EQ(world->failure()->fault(), Fault::kHostMemory);
  EXPECT_THAT(world->failure()->what(), testing::HasSubstr("kernel.cc:14"));
  EXPECT_THROW(kernel->launch({1, 64, 0}, std::as_bytes(std::span(&p, 1))), Error);
}

TEST(EmulatedGpu, RefusesWhatDoesNotFit) {
  auto world = std::make_shared<World>();
  EmulatedGpu gpu(world, {.processors = 2, .memory = 1 << 20});
  auto kernel = gpu.load(source());
  const Parameters p{};
  EXPECT_THROW(kernel->launch({3, 64, 0}, std::as_bytes(std::span(&p, 1))), Error);
  EXPECT_THROW(kernel->launch({1, 64, 1 << 20}, std::as_bytes(std::span(&p, 1))), Error);
  EXPECT_THROW(gpu.allocate(2 << 20, "too much"), Error);
  cuda::KernelSource wrong = source();
  wrong.text += "int f() { return undeclared; }\n";
  try {
    gpu.load(wrong);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("undeclared"));
  }
}

}  // namespace
}  // namespace ark::emulator
