// Memory that NICs reach, over the fake driver: dma-bufs, refusals, flushes, leaks; and what ranks of GPUs make of it.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <set>
#include <thread>

#include "engine/compile.h"
#include "engine/cuda/links.h"
#include "engine/cuda/nic_boxes.h"
#include "engine/cuda/peer_links.h"
#include "tests/cuda/fake/driver.h"
#include "tests/dma/fake_nic.h"
#include "tests/engine/token_graphs.h"
#include "tests/open_files.h"

namespace ark::cuda {
namespace {

using test::Environment;
using test::refusal;
using ::testing::HasSubstr;

dma::Deadline in_time() { return dma::Deadline::after(std::chrono::seconds(60)); }

using ark::test::open_files;

class NicMemory : public test::FakeDriver {
 protected:
  void SetUp() override {
    FakeDriver::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    fake_->gpus = 2;
    fake_->flushes = 0;
    used_ = fake_->used;
  }
  void TearDown() override {
    if (fake_) {
      expect_nothing_left();
      fake_->gpus = 1;
    }
    FakeDriver::TearDown();
  }
  void expect_nothing_left() const {
    EXPECT_EQ(fake_->handles, 0);
    EXPECT_EQ(fake_->ranges, 0);
    EXPECT_EQ(fake_->mappings, 0);
    EXPECT_EQ(fake_->used, used_);
  }
  uint64_t used_ = 0;
};

TEST_F(NicMemory, IsWhatItsDescriptorNames) {
  const auto gpu = open_gpu(1);
  const auto before = open_files();
  {
    const NicBlock block = gpu->allocate_for_nic(5000, "inboxes");
    EXPECT_EQ(block.bytes, 5000u);
    gpu->clear(block.address, block.bytes);
    const dma::Memory there = dma::map_shared(block.file.number, block.bytes, "test");
    const uint64_t number = 42;
    gpu->upload(block.address + 4992, std::as_bytes(std::span(&number, 1)));
    EXPECT_EQ(*reinterpret_cast<uint64_t*>(there.region.base + 4992), 42u);
    *reinterpret_cast<uint64_t*>(there.region.base) = 43;
    EXPECT_EQ(*reinterpret_cast<uint64_t*>(block.address), 43u);
  }
  EXPECT_EQ(open_files(), before);
}

TEST_F(NicMemory, IsFlushedByTheDriverWhereTheGpuDoesNotSeeItInOrder) {
  for (const int ordering : {0, 100, 200}) {
    fake_->nic = {.ordering = ordering};
    fake_->flushes = 0;
    const auto gpu = open_gpu();
    const NicBlock block = gpu->allocate_for_nic(64, "inboxes");
    // Any thread.
    std::jthread([&] { EXPECT_TRUE(gpu->flush_nic_writes()); }).join();
    EXPECT_EQ(fake_->flushes, ordering == 0 ? 1 : 0);
    fake_->nic.flush_result = 719;
    EXPECT_EQ(gpu->flush_nic_writes(), ordering != 0);
    gpu->gate().lose();
    EXPECT_FALSE(gpu->flush_nic_writes());
    fake_->nic.flush_result = 0;
  }
  // What a lost GPU has is left to the driver: of the test that makes three.
  EXPECT_EQ(fake_->handles, 3);
  fake_->handles = fake_->ranges = fake_->mappings = 0;
  fake_->used = used_;
}

TEST_F(NicMemory, OfAGpuOrDriverThatHasNoneIsRefusedByName) {
  const auto why = [&] {
    const std::string told =
        refusal([&] { open_gpu()->allocate_for_nic(64, "inboxes"); }, Code::kUnsupported);
    EXPECT_EQ(why_not_by_nic(0), told);
    return told;
  };
  EXPECT_EQ(why_not_by_nic(1), "");
  fake_->nic = {.flush_options = 2};
  EXPECT_EQ(why(), "the GPU neither sees a NIC's writes in order nor lets the host flush them");
  fake_->nic = {.ordering = 100, .flush_options = 0};
  EXPECT_EQ(why_not_by_nic(0), "");
  fake_->nic = {.dma_buf = false};
  EXPECT_EQ(why(), "the driver makes no dma-buf of GPU memory (its open kernel modules do)");
  fake_->nic = {.rdma_virtual = false};
  EXPECT_EQ(why(), "the GPU has no GPUDirect RDMA");
  fake_->nic = {.rdma = false};
  EXPECT_EQ(why(), "the GPU has no GPUDirect RDMA");
  fake_->sharing.virtual_memory = false;
  EXPECT_EQ(why(), "the GPU has no virtual memory management");
  fake_->nic = {};
  fake_->sharing = {};
  fake_->memory = 1 << 20;
  EXPECT_THAT(refusal([&] { open_gpu()->allocate_for_nic(64, "inboxes"); }, Code::kExhausted),
              HasSubstr("memory for inboxes"));
  fake_->memory = 64 << 20;
  const Environment old("ARK_LIBCUDA", ARK_FAKE_OLD_LIBCUDA);
  EXPECT_THAT(refusal([&] { open_gpu()->allocate_for_nic(64, "inboxes"); }, Code::kUnavailable),
              HasSubstr("a newer driver"));
}

TEST_F(NicMemory, EveryCallThatFailsIsANamedErrorAndLeavesNothing) {
  const auto gpu = open_gpu();
  const auto before = open_files();
  bool is_through = false;
  int failed = 0;
  for (int n = 1; !is_through; ++n) {
    ASSERT_LT(n, 50);
    fake_->hostile.refuse_in = n;
    try {
      const NicBlock block = gpu->allocate_for_nic(64, "inboxes");
      is_through = true;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the GPU refuses ")) << n;
      ++failed;
    }
    fake_->hostile.refuse_in = 0;
    expect_nothing_left();
    ASSERT_EQ(open_files(), before) << n;
  }
  EXPECT_GE(failed, 6);  // granularity, memory, addresses, mapping, access, dma-buf
}

// ---- ranks

const Compiled& two_ranks() {
  static const Compiled compiled = [] {
    test::TokenGraphOptions graph;
    graph.heads = graph.kv_heads = 8;
    return compile_decoder(
        test::gpt2_tokens(graph),
        {.ranks = 2, .max_tokens = 8, .max_rows = 4, .max_items = 8, .page_size = 4, .pages = 8});
  }();
  return compiled;
}

class NicBoxes : public NicMemory {
 protected:
  struct Rank {
    std::shared_ptr<Gpu> gpu;
    dma::test::FakeNic nic;
  };
  // Both ranks of a group whose wire is a NIC's, with a GPU each.
  std::vector<std::unique_ptr<dma::Group>> meet(std::vector<Rank>& ranks, bool wanted = true) {
    auto transports = dma::transport_named("socket").make(0, 2);
    for (int r = 0; r < 2; ++r) {
      ranks[r].gpu = open_gpu(r);
      transports[r] = std::make_unique<dma::test::FakeNicTransport>(std::move(transports[r]), ranks[r].nic);
    }
    return dma::make_local_groups(
        2,
        [&](int r) {
          dma::EndpointSpec spec;
          for (int c = 0; c < 4; ++c)
            spec.channels.push_back({.name = "exchange", .slot_bytes = 1 << 12, .by_devices = true});
          spec.device = nic_boxes(ranks[r].gpu, wanted);
          // The fake driver knows nothing of the fake NIC.
          if (wanted)
            spec.device.settle = [by_driver = spec.device.settle, nic = &ranks[r].nic] {
              return by_driver() && nic->flush();
            };
          return spec;
        },
        in_time(), std::move(transports));
  }
  static std::vector<std::string> ways_of(std::vector<Rank>& ranks,
                                          std::vector<std::unique_ptr<dma::Group>>& groups) {
    std::vector<std::string> ways(2);
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        const Gate::Work work = ranks[r].gpu->gate().enter();
        const PeerLinks links(*ranks[r].gpu, two_ranks().programs[r], *groups[r], false);
        ways[r] = text_of(links.ways());
      });
    }
    threads.clear();
    return ways;
  }
};

TEST_F(NicBoxes, SlotsLieInTheGpusAndAllElseInTheHosts) {
  std::vector<Rank> ranks(2);
  auto groups = meet(ranks);
  for (const std::string& way : ways_of(ranks, groups))
    EXPECT_EQ(way, "by a NIC that reads and writes GPU memory: 0-1 (rank 0: ARK_GPU_LINKS=host asks for it)");
  EXPECT_EQ(fake_->mappings, 4);
  HostLinks links(*ranks[0].gpu);
  const Gate::Work work = ranks[0].gpu->gate().enter();
  const Program& program = two_ranks().programs[0];
  const dma::RegionTable here = groups[0]->sender(1, 0).here;
  const dma::Region inboxes = here.regions[8], outboxes = here.regions[9], control = here.regions[10];
  EXPECT_EQ(here.count, 11u);
  const auto lies_in = [](uint64_t address, const dma::Region& region) {
    return address - reinterpret_cast<uint64_t>(region.base) < region.bytes;
  };
  std::set<uint64_t> slots;
  const std::vector<ChannelPlace> places = links.places(program, *groups[0], 4096);
  for (std::size_t c = 0; c < places.size(); ++c) {
    EXPECT_EQ(places[c].link, LinkKind::kPosted);
    EXPECT_TRUE(lies_in(places[c].slots, program.channels[c].outgoing ? outboxes : inboxes)) << c;
    EXPECT_TRUE(lies_in(places[c].awaited, control)) << c;
    slots.insert(places[c].slots);
  }
  EXPECT_EQ(slots.size(), places.size());
  // Only the host's memory had to be mapped: control region and ring.
  EXPECT_EQ(fake_->mapped, 2);
}

TEST_F(NicBoxes, GoWithTheGroupAndTakeTheGpuWithThem) {
  const int before = fake_->contexts;  // of GPUs that other tests have lost
  std::vector<Rank> ranks(2);
  auto groups = meet(ranks);
  for (Rank& rank : ranks) rank.gpu.reset();
  EXPECT_EQ(fake_->contexts, before + 2);
  groups.clear();
  EXPECT_EQ(fake_->contexts, before);
  expect_nothing_left();
}

// Whichever call of the driver fails on whichever rank: both go through the host's memory and say why.
TEST_F(NicBoxes, EveryCallThatFailsCostsNoMoreThanTheWay) {
  int staged = 0;
  for (int n = 1; n < 40; ++n) {
    std::vector<Rank> ranks(2);
    const auto gpus = std::pair(open_gpu(0), open_gpu(1));  // contexts that are there already fail no more
    std::vector<std::unique_ptr<dma::Group>> groups;
    fake_->hostile.refuse_in = n;
    try {
      groups = meet(ranks);
    } catch (const Error&) {
      fake_->hostile.refuse_in = 0;
      continue;  // it was the opening of a GPU
    }
    fake_->hostile.refuse_in = 0;
    const std::vector<std::string> ways = ways_of(ranks, groups);
    EXPECT_EQ(ways[0], ways[1]) << n;
    const bool is_staged = ways[0].find("the GPU refuses") != std::string::npos;
    EXPECT_THAT(ways[0], HasSubstr(is_staged ? "through memory of the host: 0-1 (" : "by a NIC that")) << n;
    EXPECT_EQ(groups[0]->sender(1, 0).on_device, !is_staged) << n;
    staged += is_staged;
    EXPECT_EQ(fake_->mappings, is_staged ? 0 : 4) << n;
  }
  EXPECT_GE(staged, 12);
}

// Where a NIC loses what it writes, the pair goes through the host's memory, both ways, and both say so.
TEST_F(NicBoxes, AreTriedBeforeAnythingIsSent) {
  for (const bool works : {true, false}) {
    std::vector<Rank> ranks(2);
    ranks[1].nic.flushes = works;
    auto groups = meet(ranks);
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] { try_nic_boxes(*ranks[r].gpu, *groups[r], 3, in_time()); });
    threads.clear();
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(
          groups[r]->endpoint().why_staged(1 - r),
          works ? "" : "what a NIC brings from GPU memory of rank 0 to that of rank 1 is not what was sent");
      EXPECT_EQ(groups[r]->sender(1 - r, 0).on_device, works);
      EXPECT_EQ(groups[r]->receiver(1 - r, 2).on_device, works);
    }
    const std::vector<std::string> ways = ways_of(ranks, groups);
    EXPECT_EQ(ways[0], ways[1]);
    EXPECT_THAT(ways[0],
                HasSubstr(works ? "by a NIC that" : "host asks for it; by a NIC: what a NIC brings"));
  }
}

TEST_F(NicBoxes, AFlushThatTheDriverRefusesIsNamedByTheTrial) {
  std::vector<Rank> ranks(2);
  auto groups = meet(ranks);
  fake_->nic.flush_result = 719;
  std::vector<std::string> errors(2);
  std::vector<std::jthread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      errors[r] = refusal(
          [&] { try_nic_boxes(*ranks[r].gpu, *groups[r], 3, dma::Deadline::after(std::chrono::seconds(2))); },
          Code::kUnavailable);
    });
  }
  threads.clear();
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("does not arrive: ")) << error;
    EXPECT_THAT(error, HasSubstr("; ARK_GPU_LINKS=host takes memory of the host")) << error;
  }
}

TEST_F(NicBoxes, AreNotAskedForWithHostLinksAlone) {
  std::vector<Rank> ranks(2);
  auto groups = meet(ranks, false);
  for (const std::string& way : ways_of(ranks, groups))
    EXPECT_EQ(way,
              "through memory of the host: 0-1 (rank 0: ARK_GPU_LINKS=host asks for it; by a NIC: rank 0: "
              "ARK_GPU_LINKS=host asks for it)");
  EXPECT_EQ(fake_->handles, 0);
}

}  // namespace
}  // namespace ark::cuda
