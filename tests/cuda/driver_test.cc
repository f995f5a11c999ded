#include "engine/cuda/driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "engine/compile.h"
#include "engine/cuda/links.h"
#include "engine/cuda/loop_host.h"
#include "tests/cuda/environment.h"
#include "tests/cuda/fake/driver.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

using test::FakeDriver;
using test::refusal;

TEST(Driver, WithoutLibcudaOneLineSaysSo) {
  const test::Environment variable("ARK_LIBCUDA", "libcuda-that-is-not-here.so.1");
  EXPECT_EQ(refusal([] { open_gpu(); }, Code::kUnavailable),
            "no CUDA here: libcuda-that-is-not-here.so.1 cannot be loaded");
  EXPECT_EQ(Error(Code::kUnavailable, "").exit_code(), 69);
}

// Any library that is no CUDA driver.
TEST(Driver, AWrongLibraryIsNamedWithTheFunctionItLacks) {
  const test::Environment variable("ARK_LIBCUDA", "libm.so.6");
  const std::string text = refusal([] { open_gpu(); }, Code::kUnavailable);
  EXPECT_NE(text.find("libm.so.6 has no function cuInit"), std::string::npos) << text;
}

TEST_F(FakeDriver, DescribesTheGpu) {
  const auto gpu = open_gpu();
  EXPECT_EQ(gpu->info().name, "Fake GPU");
  EXPECT_EQ(gpu->info().arch, "sm_90a");
  EXPECT_EQ(gpu->info().processors, 4);
  EXPECT_EQ(gpu->info().l2, 50 << 20);
  EXPECT_NEAR(gpu->info().memory_rate, 3.35e12, 0.01e12);  // an H100's clock and bus
  EXPECT_NE(gpu->info().versions.find("driver 13.0, NVRTC "), std::string::npos) << gpu->info().versions;
}

TEST_F(FakeDriver, RefusesWhatCannotServe) {
  fake_->gpus = 0;
  EXPECT_EQ(refusal([] { open_gpu(); }, Code::kUnavailable),
            "no CUDA here: CUDA_ERROR_NO_DEVICE (the fake driver says so)");
  fake_->gpus = 1;
  EXPECT_EQ(refusal([] { open_gpu(1); }, Code::kUnavailable), "no CUDA here: the driver sees 1 GPUs");
  fake_->major = 7;
  EXPECT_EQ(refusal([] { open_gpu(); }, Code::kUnsupported),
            "no CUDA here: Fake GPU is a sm_70; sm_80 or newer with cooperative launches is needed");
  fake_->major = 8, fake_->minor = 6, fake_->shared_per_block = 98 << 10;
  const std::string text = refusal([] { open_gpu(); }, Code::kUnsupported);
  EXPECT_NE(text.find("gives a block 98 KiB of shared memory, the loop needs "), std::string::npos) << text;
  EXPECT_NE(text.find("use --device cpu"), std::string::npos) << text;
  EXPECT_EQ(fake_->contexts, 0);
}

TEST_F(FakeDriver, TakesGpusOfSmallBlocksAndOfNewMinorVersions) {
  fake_->major = 8, fake_->minor = 9, fake_->shared_per_block = 99 << 10;
  EXPECT_EQ(open_gpu()->info().arch, "sm_89");
  EXPECT_EQ(open_gpu()->info().shared_per_block, 99 << 10);
  fake_->major = 8, fake_->minor = 5;  // no such thing; sm_80's code would run on it
  EXPECT_EQ(open_gpu()->info().arch, "sm_80");
  fake_->major = 99;
  const std::string text = refusal([] { open_gpu(); }, Code::kUnsupported);
  EXPECT_NE(text.find("is a sm_995, which NVRTC "), std::string::npos) << text;
  EXPECT_EQ(fake_->contexts, 0);
}

TEST_F(FakeDriver, MemoryHasOwnersAndItsEndIsNamed) {
  const auto gpu = open_gpu();
  {
    DeviceMemory a(*gpu, 1 << 20, "weights"), b;
    b = std::move(a);
    std::vector<std::byte> in(1000, std::byte{7}), out(1000);
    gpu->upload(b.address() + 24, in);
    gpu->download(out, b.address() + 24);
    EXPECT_EQ(in, out);
    gpu->clear(b.address(), 1 << 20);
    gpu->download(out, b.address() + 24);
    EXPECT_EQ(out, std::vector<std::byte>(1000));
    EXPECT_EQ(refusal([&] { gpu->allocate(uint64_t{64} << 20, "pages"); }, Code::kExhausted),
              "64 MiB of GPU memory for pages cannot be had; 63 MiB are free");
  }
  EXPECT_EQ(fake_->used, 0u);
  const MappedMemory mapped = gpu->allocate_mapped(100, "mailbox");
  EXPECT_EQ(mapped.host[99], std::byte{0});
  gpu->release(mapped);
  EXPECT_EQ(fake_->mapped, 0);
}

std::atomic<bool> let_end;

TEST_F(FakeDriver, LaunchesRunUntilTheyEnd) {
  const auto gpu = open_gpu();
  const auto kernel = gpu->load(source());
  EXPECT_GT(kernel->facts().registers, 0);
  EXPECT_EQ(kernel->resident_blocks(288, 1000), 4);
  EXPECT_EQ(kernel->resident_blocks(288, 300'000), 0);
  let_end = false;
  static uint64_t seen;
  fake_->kernel = [](const void* parameter, int blocks, int threads) {
    while (!let_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::memcpy(&seen, parameter, sizeof seen);
    seen += static_cast<uint64_t>(blocks * threads);
  };
  const uint64_t parameter = 1'000'000;
  const auto launch = kernel->launch({4, 288, 1000}, std::as_bytes(std::span(&parameter, 1)));
  EXPECT_TRUE(launch->is_running());
  let_end = true;
  while (launch->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(seen, 1'000'000u + 4 * 288);
}

TEST_F(FakeDriver, WhatCannotBeResidentIsRefusedNotHung) {
  const auto gpu = open_gpu();
  const auto kernel = gpu->load(source());
  const uint64_t parameter = 0;
  const int launches = fake_->launches;
  EXPECT_EQ(
      refusal(
          [&] {
            kernel->launch({5, 288, 1000}, std::as_bytes(std::span(&parameter, 1)));
          },
          Code::kUnsupported),
      "the loop needs 5 blocks of 288 threads and 1000 bytes of shared memory at once, but the GPU holds 4; "
      "fewer ranks or processors are needed");
  EXPECT_EQ(fake_->launches, launches);
}

TEST_F(FakeDriver, ADeadKernelIsNamed) {
  const auto gpu = open_gpu();
  const auto kernel = gpu->load(source());
  fake_->kernel = [](const void*, int, int) {};
  fake_->end_result = 716;
  const uint64_t parameter = 0;
  const auto launch = kernel->launch({4, 288, 0}, std::as_bytes(std::span(&parameter, 1)));
  EXPECT_EQ(refusal(
                [&] {
                  while (launch->is_running()) std::this_thread::yield();
                },
                Code::kUnavailable),
            "the loop kernel died: CUDA_ERROR_MISALIGNED_ADDRESS (the fake driver says so)");
}

TEST_F(FakeDriver, CodeOfAnotherVersionIsRefusedWithTheCompilersName) {
  const auto gpu = open_gpu();
  const int loads = fake_->module_loads;
  fake_->module_result = 222;
  const std::string text = refusal([&] { gpu->load(source()); }, Code::kUnavailable);
  EXPECT_NE(text.find("the GPU refuses the loop that NVRTC "), std::string::npos) << text;
  EXPECT_GE(fake_->module_loads, loads + 1);  // once for each version of NVRTC on this machine
}

// Ranks of one process share regions, and a page may be registered once; requests are for the device's ring
// alone.
TEST_F(FakeDriver, LinksMapEachRegionOnceAndGiveItBack) {
  const CompileOptions compile{
      .ranks = 2, .max_tokens = 8, .max_rows = 4, .max_items = 8, .page_size = 4, .pages = 8};
  const Compiled compiled = compile_decoder(test::gpt2_tokens(), compile);
  for (const bool posted : {false, true}) {
    dma::EndpointSpec spec;
    spec.force_posted = posted;
    for (int c = 0; c < 4; ++c) spec.channels.push_back({.name = "exchange", .slot_bytes = 1 << 16});
    const auto groups = dma::make_local_groups(
        2, [&](int) { return spec; }, dma::Deadline::after(std::chrono::seconds(20)));
    const auto gpu = open_gpu();
    const int before = fake_->mapped;
    {
      const Gate::Work work = gpu->gate().enter();
      HostLinks links(*gpu);
      for (int r = 0; r < 2; ++r) {
        const Program& program = compiled.programs[r];
        const std::vector<ChannelPlace> places = links.places(program, *groups[r], 4096);
        ASSERT_EQ(places.size(), program.channels.size());
        ASSERT_GE(places.size(), 2u);
        for (const ChannelPlace& place : places) {
          EXPECT_EQ(place.link, posted ? LinkKind::kPosted : LinkKind::kMapped);
          EXPECT_EQ(place.slot_bytes, uint64_t{1} << 16);
          EXPECT_EQ(place.slot_count, 2u);
          EXPECT_EQ(place.queue != 0, posted);
          EXPECT_EQ(place.raised != 0, !posted);
        }
      }
      // Each rank's counters and inbox, and of posted links its outbox and its rings.
      EXPECT_GE(fake_->mapped - before, posted ? 8 : 4);
      EXPECT_EQ(links.posting().size(), posted ? 2u : 0u);
      EXPECT_EQ(groups[0]->endpoint().queues().ring(dma::Priority::kDecode).try_push({}), !posted);
      EXPECT_TRUE(groups[0]->endpoint().queues().ring(dma::Priority::kBulk).try_push({.route = 8}));
    }
    EXPECT_EQ(fake_->mapped, before);
  }
}

TEST_F(FakeDriver, LinksRefuseMessagesBeyondTheTablesAndRequests) {
  Program program;
  program.channels = {{.peer = 1, .outgoing = true, .bytes = int64_t{5} << 30, .name = "logits"}};
  dma::EndpointSpec spec;
  spec.channels = {{.name = "exchange", .slot_bytes = uint64_t{5} << 30}};
  const auto groups = dma::make_local_groups(
      2, [&](int) { return spec; }, dma::Deadline::after(std::chrono::seconds(20)));
  const auto gpu = open_gpu();
  const Gate::Work work = gpu->gate().enter();
  HostLinks links(*gpu);
  const std::string text = refusal([&] { links.places(program, *groups[0], 4096); }, Code::kUnsupported);
  EXPECT_NE(text.find("channel logits has messages of 5368709120 bytes"), std::string::npos) << text;
}

TEST_F(FakeDriver, CountsTheGpusThatRanksTakeInTurn) {
  fake_->gpus = 3;
  EXPECT_EQ(count_gpus(), 3);
  EXPECT_NO_THROW(open_gpu(2));
  fake_->gpus = 0;
  EXPECT_EQ(refusal([] { count_gpus(); }, Code::kUnavailable), "no CUDA here: the driver sees no GPU");
  fake_->gpus = 1;
}

// Whoever asks first initialises the driver, which reads the variable then.
TEST_F(FakeDriver, CountingInitialisesForModulesThatAreLoadedAtOnce) {
  const test::Environment loading("CUDA_MODULE_LOADING", "LAZY");
  EXPECT_EQ(count_gpus(), 1);
  EXPECT_TRUE(fake_->was_eager);
}

TEST_F(FakeDriver, MemoryWhoseAddressCannotBeHadIsGivenBack) {
  const auto gpu = open_gpu();
  const int before = fake_->mapped;
  alignas(4096) static std::byte memory[4096];
  fake_->address_result = 1;
  EXPECT_THROW(gpu->map(memory, sizeof memory), Error);
  EXPECT_EQ(fake_->mapped, before);
  fake_->address_result = 0;
  EXPECT_NE(gpu->map(memory, sizeof memory), 0u);
  gpu->unmap(memory);
}

// Ranks of one process map each other's memory: the driver takes a page once.
TEST_F(FakeDriver, MemoryThatSeveralMapIsRegisteredOnce) {
  const auto a = open_gpu(), b = open_gpu();
  const int before = fake_->mapped;
  alignas(4096) static std::byte memory[4096];
  const uint64_t address = a->map(memory, sizeof memory);
  EXPECT_EQ(b->map(memory, sizeof memory), address);
  EXPECT_EQ(fake_->mapped, before + 1);
  a->unmap(memory);
  EXPECT_EQ(fake_->mapped, before + 1) << "b still uses it";
  b->unmap(memory);
  EXPECT_EQ(fake_->mapped, before);
  a->map(memory, sizeof memory);
  a->unmap(memory);
  EXPECT_EQ(fake_->mapped, before);
}

std::atomic<bool> may_end;

// A loop that does not even hear the abort: what would wait for it for ever is left to the end of the
// process.
TEST_F(FakeDriver, ALoopThatDoesNotEndLosesTheGpuAndHangsNobody) {
  may_end = false;
  fake_->kernel = [](const void*, int, int) {
    while (!may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const int modules = fake_->modules, events = fake_->events, contexts = fake_->contexts;
  const int mapped = fake_->mapped;
  const uint64_t used = fake_->used;
  const auto start = std::chrono::steady_clock::now();
  {
    auto gpu = open_gpu();
    const auto kernel = gpu->load(source());
    LoopSetup setup;
    setup.kernel = kernel.get();
    setup.shape = {4, 288, 0};
    setup.parameter = [](const LaunchTerms&) { return std::vector<std::byte>(8); };
    setup.step_deadline = setup.last_words = std::chrono::milliseconds(50);
    const StepCapacity capacity{.tokens = 8, .sequences = 4, .rows = 4, .vocabulary = 10};
    LoopHost host(*gpu, capacity, 0, std::move(setup));
    const DeviceMemory weights(*gpu, 4096, "weights");
    StepDescriptor step;
    step.tokens = {1};
    step.sequences = {{0, 0, 1, 0}};
    write_record(step, 1, capacity, host.free_slot());
    host.post();
    const auto wait = [&] {
      while (!host.poll(std::chrono::milliseconds(10))) {
      }
    };
    EXPECT_EQ(refusal(wait, Code::kUnavailable),
              "the loop made no progress within its deadline; the GPU does not answer");
    EXPECT_TRUE(gpu->gate().is_lost());
    EXPECT_EQ(refusal([&] { gpu->allocate(16, "more"); }, Code::kUnavailable),
              "the GPU is lost: a loop on it does not end");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(fake_->running, 1);
  EXPECT_EQ(fake_->modules, modules + 1);
  EXPECT_EQ(fake_->events, events + 1);
  EXPECT_EQ(fake_->contexts, contexts + 1);
  EXPECT_EQ(fake_->used, used + 4096);
  may_end = true;
  while (fake_->running != 0) std::this_thread::yield();
  // As it was, for the tests that follow.
  fake_->contexts = contexts, fake_->used = used, fake_->mapped = mapped;
}

TEST_F(FakeDriver, ASecondLoadComesFromTheCache) {
  { EXPECT_GT(open_gpu()->load(source())->facts().compile_seconds, 0); }
  const auto kernel = open_gpu()->load(source());
  EXPECT_EQ(kernel->facts().compile_seconds, 0);
  EXPECT_GT(kernel->facts().registers, 0);
}

}  // namespace
}  // namespace ark::cuda
