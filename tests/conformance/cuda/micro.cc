#include "tests/conformance/cuda/micro.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "engine/cuda/links.h"
#include "engine/cuda/sources.h"
#include "tests/conformance/cuda/micro_kernel_parameters.h"
#include "tests/fixtures.h"

namespace ark::cuda {
namespace {

// The kernel's own headers beside those that the library carries.
KernelSource micro_source() {
  KernelSource source = source_of("#include \"tests/conformance/cuda/micro_kernel.h\"\n");
  for (const char* name :
       {"tests/conformance/cuda/micro_kernel.h", "tests/conformance/cuda/micro_kernel_parameters.h"}) {
    std::ifstream file(test::source_root() / name);
    std::stringstream text;
    text << file.rdbuf();
    source.headers.push_back({name, text.str()});
  }
  return source;
}

constexpr int kMostBlocks = 1024;
constexpr uint64_t kCounterBytes = 64 * 1024;

// Two ranks of this process with a channel from the first to the second, posted.
class PostedPair {
 public:
  PostedPair(Gpu& gpu, uint64_t tickets) : links_(gpu) {
    dma::EndpointSpec spec;
    spec.channels = {{.name = "micro", .slot_bytes = kMicroFloats * sizeof(float)}};
    spec.force_posted = true;
    groups_ = dma::make_local_groups(
        2, [&](int) { return spec; }, dma::Deadline::after(std::chrono::seconds(20)));
    Program ends[2];
    for (int r = 0; r < 2; ++r) ends[r].channels = {{.peer = 1 - r, .outgoing = r == 0, .name = "micro"}};
    sender_ = links_.places(ends[0], *groups_[0], tickets).at(0);
    receiver_ = links_.places(ends[1], *groups_[1], tickets).at(0);  // posts nothing
  }
  // Only while requests are measured: a pump that looks without a pause disturbs all else.
  void poll(bool on, bool is_emulated) {
    std::function<bool()> may_post;
    if (on) may_post = [] { return true; };
    groups_[0]->endpoint().pump().poll_while(may_post, is_emulated ? 50'000 : 0);
  }
  const ChannelPlace& sender() const { return sender_; }
  const ChannelPlace& receiver() const { return receiver_; }
  const float* inbox(uint64_t message) const {
    return reinterpret_cast<const float*>(groups_[1]->receiver(0, 0).slot(message));
  }

 private:
  std::vector<std::unique_ptr<dma::Group>> groups_;
  HostLinks links_;  // ends first
  ChannelPlace sender_, receiver_;
};

class Bench {
 public:
  Bench(Gpu& gpu, int rounds)
      : gpu_(gpu),
        kernel_(gpu.load(micro_source())),
        counters_(gpu, kCounterBytes, "counters"),
        floats_(gpu, 6 * kMicroFloats * sizeof(float), "inboxes"),
        words_(gpu, 256, "words"),
        tickets_(gpu, HostLinks::kTicketBytes, "tickets"),
        host_(gpu.allocate_mapped(128, "echo words")),
        pair_(gpu, tickets_.address()) {
    gpu_.clear(tickets_.address(), HostLinks::kTicketBytes);
    p_.outbox = pair_.sender().slots;
    p_.queue = pair_.sender().queue;
    p_.tickets = pair_.sender().first;
    p_.head = pair_.sender().head;
    p_.source = pair_.sender().source;
    p_.target = pair_.sender().target;
    p_.arrivals = pair_.receiver().awaited;
    // One block a processor at most, as the loop has it: more would make its barrier look slower than it is.
    const int32_t resident = kernel_->resident_blocks(kMicroThreads, 0);
    blocks_ = std::min({kMostBlocks, resident, gpu.info().processors}) / 2 * 2;
    ARK_CHECK(blocks_ >= 2, "a GPU that holds fewer than two blocks");
    p_.rounds = rounds;
    p_.counters = counters_.address();
    p_.inboxes = floats_.address();
    p_.outputs = floats_.address() + 4 * kMicroFloats * sizeof(float);
    p_.host = host_.device;
    p_.nanoseconds = words_.address();
    p_.failed = words_.address() + 64;
    p_.deadline_ns = 5'000'000'000;
  }
  ~Bench() { gpu_.release(host_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  MicroResult run(int mode, const std::string& name) {
    gpu_.clear(counters_.address(), kCounterBytes);
    gpu_.clear(words_.address(), 256);
    std::memset(host_.host, 0, 128);
    p_.mode = mode;
    pair_.poll(mode == kPostedRequest, gpu_.info().is_emulated);
    const auto launch = kernel_->launch({blocks_, kMicroThreads, 0}, std::as_bytes(std::span(&p_, 1)));
    answer(*launch);
    uint32_t failed = 0;
    uint64_t nanoseconds = 0;
    gpu_.download(std::as_writable_bytes(std::span(&failed, 1)), p_.failed);
    gpu_.download(std::as_writable_bytes(std::span(&nanoseconds, 1)), p_.nanoseconds);
    if (failed) throw Error(Code::kUnavailable, name + ": a wait passed its deadline");
    if (mode == kAllReduce) check_sums();
    if (mode == kPostedRequest) check_inbox();
    return {name, static_cast<double>(nanoseconds) / p_.rounds};
  }
  int32_t blocks() const { return blocks_; }

 private:
  // The host's part of kHostEcho, until the kernel ends.
  void answer(Launch& launch) {
    auto* words = reinterpret_cast<uint32_t*>(host_.host);
    std::atomic_ref<uint32_t> asked(words[0]), answered(words[16]);
    for (uint32_t turn = 0; launch.is_running();) {
      for (int look = 0; look < 10000; ++look) {
        const uint32_t now = asked.load(std::memory_order_acquire);
        if (now != turn) answered.store(turn = now, std::memory_order_release);
      }
      std::this_thread::yield();
    }
  }

  void check_sums() {
    std::vector<float> sums(2 * kMicroFloats);
    gpu_.download(std::as_writable_bytes(std::span(sums)), p_.outputs);
    const auto last = static_cast<float>(p_.rounds - 1);
    for (int i = 0; i < kMicroFloats; ++i) {
      const float expected = (static_cast<float>(i) + last) + (2 * static_cast<float>(i) + last);
      ARK_CHECK(sums[i] == expected && sums[kMicroFloats + i] == expected,
                "the all-reduce gives " + std::to_string(sums[i]) + " at " + std::to_string(i) + ", not " +
                    std::to_string(expected));
    }
  }

  void check_inbox() {
    const auto last = static_cast<uint64_t>(p_.rounds - 1);
    for (int i = 0; i < kMicroFloats; ++i) {
      ARK_CHECK(
          pair_.inbox(last)[i] == static_cast<float>(i) + static_cast<float>(last),
          "the posted message holds " + std::to_string(pair_.inbox(last)[i]) + " at " + std::to_string(i));
    }
  }

  Gpu& gpu_;
  std::unique_ptr<Kernel> kernel_;
  DeviceMemory counters_, floats_, words_, tickets_;
  MappedMemory host_;
  PostedPair pair_;
  MicroParameters p_{};
  int32_t blocks_ = 0;
};

}  // namespace

std::vector<MicroResult> measure_micro(Gpu& gpu, int rounds) {
  const Gate::Work work = gpu.gate().enter();
  Bench bench(gpu, rounds);
  std::vector<MicroResult> results;
  results.push_back(bench.run(kGridBarrier, "barrier of " + std::to_string(bench.blocks()) + " blocks"));
  results.push_back(bench.run(kCounterHop, "counter, there and back"));
  results.back().name = "counter hop, block to block";
  results.back().nanoseconds /= 2;
  results.push_back(bench.run(kAllReduce, "all-reduce of 8 KiB between two ranks"));
  results.push_back(bench.run(kHostEcho, "word to the host and back"));
  results.push_back(bench.run(kPostedRequest, "posted request of 8 KiB, GPU -> pump -> arrival"));
  return results;
}

}  // namespace ark::cuda
