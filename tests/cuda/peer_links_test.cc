// Memory that GPUs share, over the fake driver: handles, refusals, leaks, ranks as threads and as processes, deaths.
#include "engine/cuda/peer_links.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "dma/launch.h"
#include "engine/compile.h"
#include "engine/cuda/links.h"
#include "tests/cuda/fake/driver.h"
#include "tests/engine/token_graphs.h"
#include "tests/open_files.h"

namespace ark::cuda {
namespace {

using test::Environment;
using test::refusal;
using ::testing::HasSubstr;

dma::Deadline soon() { return dma::Deadline::after(std::chrono::seconds(60)); }
std::byte* pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }
uint64_t& word(uint64_t address) { return *reinterpret_cast<uint64_t*>(address); }

class SharedMemory : public test::FakeDriver {
 protected:
  void SetUp() override {
    FakeDriver::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    fake_->gpus = 8;
    used_ = fake_->used;
  }
  void TearDown() override {
    if (fake_) {
      EXPECT_EQ(fake_->handles, 0);
      EXPECT_EQ(fake_->ranges, 0);
      EXPECT_EQ(fake_->mappings, 0);
      EXPECT_EQ(fake_->used, used_);
      fake_->gpus = 1;
    }
    FakeDriver::TearDown();
  }
  uint64_t used_ = 0;
};

TEST_F(SharedMemory, IsStoredIntoByAnotherGpu) {
  const auto a = open_gpu(0), b = open_gpu(1);
  BlockHandle handle;
  SharedBlock own = a->allocate_shared(5000, "inboxes", handle);
  EXPECT_EQ(own.bytes, 5000u);
  EXPECT_TRUE(handle.file);
  EXPECT_EQ(handle.fabric, "");
  a->clear(own.address, own.bytes);
  SharedBlock there = b->open_shared(handle, own.bytes);
  EXPECT_NE(there.address, own.address);
  const uint64_t number = 42;
  b->upload(there.address + 4992, std::as_bytes(std::span(&number, 1)));
  EXPECT_EQ(word(own.address + 4992), 42u);
  // The memory is there as long as one has it.
  own = {};
  word(there.address) = 7;
  EXPECT_EQ(fake_->handles, 1);
}

TEST_F(SharedMemory, GoesThroughAFabricWhereThereIsOne) {
  fake_->sharing.fabric = true;
  const auto a = open_gpu(0), b = open_gpu(1);
  for (const bool up : {true, false}) {
    fake_->sharing.fabric_is_up = up;
    BlockHandle handle;
    const SharedBlock own = a->allocate_shared(64, "inboxes", handle);
    EXPECT_TRUE(handle.file);
    ASSERT_EQ(handle.fabric.size(), up ? 64u : 0u);
    if (!up) continue;
    const SharedBlock there = b->open_shared({.fabric = handle.fabric}, 64);
    word(there.address) = 9;
    EXPECT_EQ(word(own.address), 9u);
  }
}

TEST_F(SharedMemory, OfAGpuOrDriverThatHasNoneIsRefusedByName) {
  BlockHandle handle;
  const auto why = [&] {
    return refusal([&] { open_gpu()->allocate_shared(64, "inboxes", handle); }, Code::kUnsupported);
  };
  fake_->sharing.files = false;
  EXPECT_EQ(why(), "the GPU's memory has no descriptors");
  fake_->sharing.virtual_memory = false;
  EXPECT_EQ(why(), "the GPU has no virtual memory management");
  fake_->sharing = {};
  fake_->memory = 1 << 20;
  EXPECT_THAT(refusal([&] { open_gpu()->allocate_shared(64, "inboxes", handle); }, Code::kExhausted),
              HasSubstr("memory for inboxes"));
  fake_->memory = 64 << 20;
  EXPECT_THAT(refusal([&] { open_gpu()->open_shared({.file = Descriptor(dup(0))}, 64); }, Code::kUnsupported),
              HasSubstr("the GPU refuses memory of a peer"));
  const Environment old("ARK_LIBCUDA", ARK_FAKE_OLD_LIBCUDA);
  EXPECT_THAT(refusal([&] { open_gpu()->open_shared(handle, 64); }, Code::kUnavailable),
              HasSubstr("a newer driver"));
}

TEST_F(SharedMemory, EveryCallThatFailsIsANamedErrorAndLeavesNothing) {
  const auto a = open_gpu(0), b = open_gpu(1);
  bool is_through = false;
  for (int n = 1; !is_through; ++n) {
    ASSERT_LT(n, 50);
    BlockHandle handle;
    SharedBlock own, there;
    fake_->hostile.refuse_in = n;
    try {
      own = a->allocate_shared(64, "inboxes", handle);
      there = b->open_shared(handle, 64);
      is_through = true;
      EXPECT_GT(n, 8);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the GPU refuses ")) << n;
    }
    fake_->hostile.refuse_in = 0;
    own = there = {};
    ASSERT_EQ(fake_->handles + fake_->ranges + fake_->mappings, 0) << n;
  }
}

TEST_F(SharedMemory, TheDriverIsAskedWhichGpusReachEachOther) {
  EXPECT_EQ(why_unreachable(0, 0), "");
  EXPECT_EQ(why_unreachable(0, 3), "");
  fake_->sharing.peers = false;
  EXPECT_EQ(why_unreachable(0, 0), "");
  EXPECT_EQ(why_unreachable(0, 3), "the driver lets neither reach the other's memory");
  fake_->sharing.virtual_memory = false;
  EXPECT_EQ(why_unreachable(0, 0), "the GPU has no virtual memory management");
  EXPECT_THAT(refusal([] { why_unreachable(0, 8); }, Code::kUnavailable),
              HasSubstr("the driver sees 8 GPUs"));
}

// ---- links

const Compiled& compiled(int ranks) {
  static std::map<int, Compiled> all;
  if (const auto found = all.find(ranks); found != all.end()) return found->second;
  test::TokenGraphOptions graph;
  graph.heads = graph.kv_heads = 8;
  const CompileOptions options{
      .ranks = ranks, .max_tokens = 8, .max_rows = 4, .max_items = 8, .page_size = 4, .pages = 8};
  return all.emplace(ranks, compile_decoder(test::gpt2_tokens(graph), options)).first->second;
}

constexpr uint64_t kFirst = ~uint64_t{0} - 3;

dma::EndpointSpec spec() {
  dma::EndpointSpec spec;
  spec.first_count = kFirst;
  for (int c = 0; c < 4; ++c) spec.channels.push_back({.name = "exchange", .slot_bytes = 1 << 12});
  return spec;
}

struct Rank {
  std::shared_ptr<Gpu> gpu;
  std::unique_ptr<PeerLinks> links;
  std::string error;
};

struct LinksOptions {
  std::vector<int> ordinals;  // of each rank's GPU
  std::vector<bool> wanted = {};
};

// All ranks in this process, each on a thread of its own while they meet.
class PeerLinksOverDriver : public SharedMemory {
 protected:
  std::vector<Rank> meet(const LinksOptions& o) {
    const auto size = static_cast<int>(o.ordinals.size());
    compiled(size);
    groups_ = dma::make_local_groups(
        size, [](int) { return spec(); }, soon());
    std::vector<Rank> ranks(o.ordinals.size());
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        try {
          ranks[r].gpu = open_gpu(o.ordinals[r]);
          const Gate::Work work = ranks[r].gpu->gate().enter();
          ranks[r].links = std::make_unique<PeerLinks>(*ranks[r].gpu, compiled(size).programs[r], *groups_[r],
                                                       o.wanted.empty() || o.wanted[r]);
        } catch (const Error& error) {
          ranks[r].error = error.what();
          groups_[r]->report_dead(r, error.what());  // as who drives a rank does
        }
      });
    }
    threads.clear();
    return ranks;
  }
  std::vector<std::unique_ptr<dma::Group>> groups_;
};

// The ends of all channels between ranks that reach each other fit, and nothing lies on anything else.
void check_ends(const std::vector<Rank>& ranks) {
  const auto size = static_cast<int>(ranks.size());
  uint64_t value = 1000;
  std::map<uint64_t, uint64_t> expected;  // what somebody has stored, by the owner's address
  for (int r = 0; r < size; ++r) {
    const Program& program = compiled(size).programs[r];
    for (std::size_t c = 0; c < program.channels.size(); ++c) {
      const Channel& channel = program.channels[c];
      if (!ranks[r].links->reaches(channel.peer)) continue;
      const ChannelPlace place = ranks[r].links->place(static_cast<int32_t>(c));
      EXPECT_EQ(place.link, LinkKind::kMapped);
      EXPECT_EQ(place.slot_bytes, uint64_t{1} << 12);
      EXPECT_EQ(place.slot_count, 2u);
      EXPECT_EQ(place.relay, 0u);
      EXPECT_EQ(place.first_count, kFirst);
      EXPECT_EQ(place.first, kFirst);
      EXPECT_EQ(word(place.awaited), kFirst);
      const Program& theirs = compiled(size).programs[channel.peer];
      for (std::size_t d = 0; d < theirs.channels.size(); ++d) {
        const Channel& other = theirs.channels[d];
        if (other.peer != r || other.outgoing == channel.outgoing ||
            dma_channel_of(theirs, static_cast<int32_t>(d)) !=
                dma_channel_of(program, static_cast<int32_t>(c)))
          continue;
        const ChannelPlace end = ranks[channel.peer].links->place(static_cast<int32_t>(d));
        // Stores here are seen there.
        word(place.raised) = ++value;
        EXPECT_EQ(word(end.awaited), value);
        EXPECT_TRUE(expected.emplace(end.awaited, value).second);
        word(end.awaited) = kFirst;
        if (!channel.outgoing) continue;
        for (uint64_t at = 0; at < place.slot_count * place.slot_bytes; at += 8) {
          word(place.slots + at) = ++value;
          EXPECT_TRUE(expected.emplace(end.slots + at, value).second);
        }
      }
    }
  }
  for (const auto& [address, stored] : expected) {
    if (word(address) != kFirst) {
      ASSERT_EQ(word(address), stored);
    }
  }
  EXPECT_GT(expected.size(), 1000u);
}

TEST_F(PeerLinksOverDriver, EndsOfTwoFourAndEightGpusFit) {
  for (const std::vector<int>& ordinals :
       {std::vector{0, 1}, std::vector{0, 0}, std::vector{3, 1, 0, 2}, std::vector{0, 1, 2, 3, 4, 5, 6, 7}}) {
    const std::vector<Rank> ranks = meet({ordinals});
    for (const Rank& rank : ranks) {
      ASSERT_EQ(rank.error, "");
      EXPECT_EQ(text_of(rank.links->ways()).find("host"), std::string::npos) << text_of(rank.links->ways());
    }
    check_ends(ranks);
  }
}

TEST_F(PeerLinksOverDriver, AreChosenPairByPair) {
  const std::vector<Rank> ranks = meet({{0, 1, 2, 3}, {true, true, false, true}});
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(text_of(ranks[r].links->ways()),
              "GPU to GPU: 0-1, 0-3, 1-3; through memory of the host: 0-2, 1-2, 2-3 (rank 2: "
              "ARK_GPU_LINKS=host asks "
              "for it)");
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(ranks[r].links->reaches(peer), r != peer && r != 2 && peer != 2);
    }
  }
  check_ends(ranks);
  // The rest goes through memory of the host, as before.
  HostLinks host(*ranks[0].gpu);
  const Gate::Work work = ranks[0].gpu->gate().enter();
  const Program& program = compiled(4).programs[0];
  const std::vector<ChannelPlace> places = host.places(program, *groups_[0], 4096, ranks[0].links.get());
  ASSERT_EQ(places.size(), program.channels.size());
  for (std::size_t c = 0; c < places.size(); ++c) {
    const bool is_far = program.channels[c].peer == 2;
    const auto* counter = reinterpret_cast<const dma::Counter64*>(places[c].awaited);
    const dma::Region control = groups_[0]->sender(program.channels[c].peer, 0).here.regions[10];
    const auto at = static_cast<uint64_t>(reinterpret_cast<const std::byte*>(counter) - control.base);
    EXPECT_EQ(at < control.bytes, is_far) << c;
  }
}

TEST_F(PeerLinksOverDriver, FallBackWhereGpusDoNotReachEachOtherOrLoseWhatIsStored) {
  fake_->sharing.peers = false;
  const std::vector<Rank> two = meet({{0, 1, 1}});
  EXPECT_EQ(two[0].error, "");
  const std::string text = text_of(two[0].links->ways());
  EXPECT_THAT(
      text,
      HasSubstr("GPU to GPU: 1-2; through memory of the host: 0-1, 0-2 (the GPU refuses access to memory "
                "of a peer: CUDA_ERROR (the fake driver says so))"));
  fake_->sharing = {.loses_stores = true};
  const std::vector<Rank> lost = meet({{0, 1}});
  EXPECT_EQ(text_of(lost[1].links->ways()),
            "through memory of the host: 0-1 (what GPUs store into each other's memory is lost between ranks "
            "1 and 0)");
  fake_->sharing = {.virtual_memory = false};
  const std::vector<Rank> old = meet({{0, 1}});
  EXPECT_EQ(text_of(old[1].links->ways()),
            "through memory of the host: 0-1 (rank 0: the GPU has no virtual memory management)");
  for (const auto* ranks : {&lost, &old}) {
    EXPECT_FALSE((*ranks)[0].links->reaches(1));
    EXPECT_FALSE((*ranks)[1].links->reaches(0));
  }
}

// Whichever call fails on whichever rank: all agree on a way, and what one pair has got the others keep.
TEST_F(PeerLinksOverDriver, EveryCallThatFailsCostsNoMoreThanTheWay) {
  int fallen = 0;
  for (int n = 1; n < 60; ++n) {
    const auto gpus = std::pair(open_gpu(0), open_gpu(1));  // contexts that are there already fail no more
    fake_->hostile.refuse_in = n;
    const std::vector<Rank> ranks = meet({{0, 1}});
    fake_->hostile.refuse_in = 0;
    if (!ranks[0].links || !ranks[1].links) continue;  // it was the opening of a GPU
    EXPECT_EQ(text_of(ranks[0].links->ways()), text_of(ranks[1].links->ways())) << n;
    EXPECT_EQ(ranks[0].links->reaches(1), ranks[1].links->reaches(0)) << n;
    fallen += !ranks[0].links->reaches(1);
    if (!ranks[0].links->reaches(1)) {
      EXPECT_EQ(fake_->handles, 0) << n;
    }
  }
  EXPECT_GT(fallen, 12);
}

TEST_F(PeerLinksOverDriver, ARankThatDiesWhileTheyMeetIsNamed) {
  compiled(2);
  groups_ = dma::make_local_groups(
      2, [](int) { return spec(); }, soon());
  std::jthread other([&] { groups_[1]->report_dead(1, "the test says so"); });
  const auto gpu = open_gpu();
  const Gate::Work work = gpu->gate().enter();
  EXPECT_EQ(refusal([&] { PeerLinks(*gpu, compiled(2).programs[0], *groups_[0], true); }, Code::kUnavailable),
            "rank 1 is dead: the test says so");
}

// ---- ranks as processes: each has a driver of its own

using ark::test::open_files;

// Raises the peers' arrivals of all its channels by store and waits for theirs, `rounds` times.
void exchange(const PeerLinks& links, const Program& program, dma::Group& group, uint64_t rounds) {
  for (uint64_t round = 1; round <= rounds; ++round) {
    for (std::size_t c = 0; c < program.channels.size(); ++c) {
      if (!program.channels[c].outgoing) continue;
      const ChannelPlace to = links.place(static_cast<int32_t>(c));
      word(to.slots) = round * 100 + static_cast<uint64_t>(group.rank());
      std::atomic_ref(word(to.raised)).store(kFirst + round, std::memory_order_release);
    }
    for (std::size_t c = 0; c < program.channels.size(); ++c) {
      if (program.channels[c].outgoing) continue;
      const ChannelPlace from = links.place(static_cast<int32_t>(c));
      while (std::atomic_ref(word(from.awaited)).load(std::memory_order_acquire) != kFirst + round) {
        if (group.abort().raised()) throw Error(Code::kUnavailable, group.trouble());
        std::this_thread::yield();
      }
      EXPECT_EQ(word(from.slots), round * 100 + static_cast<uint64_t>(program.channels[c].peer));
      std::atomic_ref(word(from.raised)).store(kFirst + round, std::memory_order_release);
    }
    for (std::size_t c = 0; c < program.channels.size(); ++c) {
      if (!program.channels[c].outgoing) continue;
      const ChannelPlace to = links.place(static_cast<int32_t>(c));
      while (std::atomic_ref(word(to.awaited)).load(std::memory_order_acquire) != kFirst + round) {
        if (group.abort().raised()) throw Error(Code::kUnavailable, group.trouble());
        std::this_thread::yield();
      }
    }
  }
}

constexpr uint64_t kRounds = 50;

std::unique_ptr<dma::Group> join(const dma::Environment& environment) {
  return dma::join_group(dma::join_environment(environment, soon()), "", spec(), soon());
}

class PeerLinksRank : public SharedMemory {
 protected:
  // `role`: "exchange", "hang"; "1 GPU" or "8 GPUs" before.
  static constexpr const char* kRole = "ARK_TEST_ROLE";
  static dma::RankProcesses start(int size, const std::string& role) {
    setenv(kRole, role.c_str(), 1);
    return {size, {"--gtest_filter=PeerLinksRank.Body", "--gtest_brief=1"}};
  }
  void run(dma::Group& group, int gpus, const std::function<void(PeerLinks&)>& body) {
    fake_->gpus = 8;
    const auto gpu = open_gpu(group.rank() % gpus);
    const Program& program = compiled(group.size()).programs[group.rank()];
    const Gate::Work work = gpu->gate().enter();
    PeerLinks links(*gpu, program, group, true);
    EXPECT_EQ(text_of(links.ways()).find("host"), std::string::npos) << text_of(links.ways());
    if (!HasFailure()) body(links);
  }
};

TEST_F(PeerLinksRank, Body) {
  const char* role = std::getenv(kRole);
  if (!dma::Environment::is_set() || role == nullptr) return;  // only in the copies
  const auto group = join(dma::Environment::from_process());
  try {
    run(*group, std::strstr(role, "1 GPU") ? 1 : 8, [&](PeerLinks& links) {
      const bool hangs = std::strstr(role, "hang") != nullptr;
      exchange(links, compiled(group->size()).programs[group->rank()], *group,
               hangs ? 1'000'000'000 : kRounds);
    });
    group->bootstrap().barrier(soon());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(group->dead_rank() >= 0 ? 69 : 70);
  }
}

TEST_F(PeerLinksRank, ExchangeBetweenProcessesOnOneGpuAndOnSeveral) {
  for (const auto& [size, role] :
       std::vector<std::pair<int, std::string>>{{2, "1 GPU"}, {2, "8 GPUs"}, {4, "8 GPUs"}, {8, "8 GPUs"}}) {
    SCOPED_TRACE(role + ", ranks " + std::to_string(size));
    const auto before = open_files();
    {
      const dma::RankProcesses processes = start(size, role);
      const auto group = join(processes.environment());
      run(*group, role == "1 GPU" ? 1 : 8,
          [&](PeerLinks& links) { exchange(links, compiled(size).programs[0], *group, kRounds); });
      group->bootstrap().barrier(soon());
      for (int rank = 1; rank < size; ++rank) {
        int status = -1;
        ASSERT_EQ(waitpid(processes.pid(rank), &status, 0), processes.pid(rank));
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
      }
    }
    EXPECT_EQ(open_files(), before);
  }
}

TEST_F(PeerLinksRank, AKilledOneLeavesNoHandleAndItsMemoryToTheOthers) {
  const auto before = open_files();
  {
    const dma::RankProcesses processes = start(3, "8 GPUs, hang");
    const auto group = join(processes.environment());
    run(*group, 8, [&](PeerLinks& links) {
      const Program& program = compiled(3).programs[0];
      std::jthread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        kill(processes.pid(1), SIGKILL);
      });
      EXPECT_THAT(refusal([&] { exchange(links, program, *group, 1'000'000'000); }, Code::kUnavailable),
                  HasSubstr("rank 1 is dead"));
      // A step that is still under way stores into what nobody reads any more: no fault.
      for (std::size_t c = 0; c < program.channels.size(); ++c) {
        const ChannelPlace place = links.place(static_cast<int32_t>(c));
        word(place.raised) = 5;
        if (program.channels[c].outgoing) std::memset(pointer(place.slots), 1, place.slot_bytes);
      }
    });
    int status = -1;
    ASSERT_EQ(waitpid(processes.pid(2), &status, 0), processes.pid(2));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 69) << status;
  }
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace ark::cuda
