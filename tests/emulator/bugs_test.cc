// Bugs seeded into the device loop, its bodies and compiled programs: each must be caught. A test that finds
// nothing in a sound loop proves little; these prove that it would find what usually goes wrong.
//
// Device bugs are places marked ARK_BUG(name) in engine/cuda: one compiled source holds them all, a launch
// chooses one by name. They run under the detector in the fixed schedule first, then in random and PCT ones.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <set>

#include "base/error.h"
#include "dma/ring.h"
#include "engine/validate/validate.h"
#include "tests/conformance/cuda/gpu_ranks.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/hooks.h"
#include "tests/emulator/kernels/ring.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

using emulator::bug_hash;
using emulator::EmulatedGpu;
using emulator::Failure;
using emulator::Fault;
using emulator::Landing;
using emulator::Options;
using emulator::Schedule;
using emulator::World;

// Who caught a bug, and how: empty if nobody did.
using Verdict = std::string;

struct Bug {
  std::string name;
  unsigned hash;  // of the place in device code; 0: a program's
  std::function<Verdict(const Options&)> run;
};
#define ARK_DEVICE_BUG(name, run) \
  Bug { #name, bug_hash(#name), run }

Verdict verdict_of(const Failure& failure) {
  const bool by_detector = failure.fault() == Fault::kRace || failure.fault() == Fault::kProxy;
  return std::string(by_detector ? "detector: " : "emulator: ") + name_of(failure.fault());
}

// ---- decoders on an emulated GPU, ranks of two processors

struct Decoder {
  DecoderModel model;
  RunnerSetup setup;
};

// What a model has beside its defaults.
using Shape = std::function<void(TokenGraphOptions&)>;

Decoder decoder(int32_t groups, Link link, int64_t intermediate, int32_t ranks, DType weight,
                const Shape& shape) {
  TokenGraphOptions o;
  o.weight = weight;
  o.intermediate = intermediate;
  o.kv_heads = 2;
  o.max_positions = 192;
  if (shape) shape(o);
  Decoder d{llama_tokens(o), {}};
  d.setup.ranks = ranks;
  d.setup.max_tokens = 16;
  d.setup.max_length = 32;
  d.setup.pages = 32;
  d.setup.max_slots = 12;
  d.setup.options.device.processors = 2;
  d.setup.options.device.groups = groups;
  d.setup.link = link;
  return d;
}

std::vector<int32_t> prompt() {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 11; ++i) tokens.push_back(i * 37 % 101);
  return tokens;
}

// A page copied twice in a row and then written on: a forked sequence.
Rows run_page_copies(StepRunner& runner) {
  const auto tokens = prompt();
  Sequence first{.slot = 1, .tokens = {tokens.begin(), tokens.begin() + 4}};
  int32_t page = 10;
  StepDescriptor step;
  add_chunk(step, first, 4, 4, page, false, 0);
  runner.post(step);
  wait_for(runner);
  Sequence second{.slot = 2, .tokens = tokens, .cached = 3, .pages = {21}};
  StepDescriptor next;
  next.page_copies = {{10, 20}, {20, 21}};
  next.page_deltas.push_back({2, 0, 21});
  add_chunk(next, second, 8, 4, page, true, kWantLogits);
  runner.post(next);
  return {wait_for(runner).rows[0].logits};
}

Rows run_decode(StepRunner& runner) { return run_greedy(runner, prompt(), 5, 2); }
// More rows in a step than kFewRows.
Rows run_at_once(StepRunner& runner) { return run_greedy(runner, prompt(), 11, 1); }

Rows run_parts_of_ten(StepRunner& runner) { return run_greedy(runner, random_tokens(30, 7, 101), 10, 1); }
Rows run_parts_of_twenty(StepRunner& runner) { return run_greedy(runner, random_tokens(80, 7, 101), 20, 1); }
Rows run_parts_of_forty(StepRunner& runner) { return run_greedy(runner, random_tokens(80, 7, 101), 40, 1); }
// Sends and credits, which steps of few rows between them leave out.
Rows run_between_few(StepRunner& runner) {
  run_at_once(runner);
  run_decode(runner);
  return run_at_once(runner);
}

// The same, of sends of sixteen rows: those of eleven are told.
Rows run_between_told(StepRunner& runner) {
  const auto run_sends = [&] { return run_greedy(runner, random_tokens(16, 7, 101), 16, 1); };
  run_sends();
  run_at_once(runner);
  return run_sends();
}

// A step of `count` tokens of each: their last ones' logits, added to `all`.
void run_together(StepRunner& runner, std::vector<Sequence>& sequences, int32_t count, int32_t& page,
                  Rows& all) {
  StepDescriptor step;
  for (Sequence& s : sequences) add_chunk(step, s, count, runner.limits().page_size, page, true, kWantLogits);
  runner.post(step);
  for (auto& row : wait_for(runner).rows) all.push_back(row.logits);
}

// Of twelve sequences: more tiles of attention than a block opens before it waits.
Rows run_twelve(StepRunner& runner) {
  std::vector<Sequence> sequences;
  for (int32_t slot = 0; slot < 12; ++slot)
    sequences.push_back({.slot = slot, .tokens = random_tokens(5, slot, 101)});
  int32_t page = 0;
  Rows all;
  for (const int32_t count : {2, 1, 1}) run_together(runner, sequences, count, page, all);
  return all;
}

// Two sequences whose window has keys of two splits, of the second alone: whose first one's tile is idle.
Rows run_windows(StepRunner& runner) {
  std::vector<Sequence> sequences = {{.slot = 0, .tokens = random_tokens(kSplitKeys + 20, 1, 101)},
                                     {.slot = 1, .tokens = random_tokens(kSplitKeys + 80, 2, 101)}};
  int32_t page = 0;
  for (Sequence& s : sequences) {
    while (s.cached + 1 < std::ssize(s.tokens)) {
      StepDescriptor step;
      const auto left = static_cast<int32_t>(std::ssize(s.tokens)) - 1 - s.cached;
      add_chunk(step, s, std::min(left, 150), runner.limits().page_size, page, false, 0);
      runner.post(step);
      wait_for(runner);
    }
  }
  Rows all;
  run_together(runner, sequences, 1, page, all);
  return all;
}

// More rows than wide tiles begin with.
Rows run_wide(StepRunner& runner) { return run_greedy(runner, random_tokens(70, 7, 101), 70, 1); }

// Tiles of many rows, a last one of few, and more keys than a block of them.
Rows run_many(StepRunner& runner) { return run_greedy(runner, random_tokens(312, 7, 101), 104, 1); }

// Runs a decoder and compares its bytes with those of the run without a bug.
class OnDecoder {
 public:
  explicit OnDecoder(Rows (*drive)(StepRunner&), int32_t groups = 0, Link link = Link::kDirect,
                     int64_t intermediate = 64, int32_t ranks = 2, DType weight = DType::kF32,
                     const Shape& shape = {})
      : drive_(drive),
        decoder_(std::make_shared<Decoder>(decoder(groups, link, intermediate, ranks, weight, shape))) {
    decoder_->setup.options.device.told_rows = decoder_->setup.options.device.part_rows = cuda::kFewRows;
  }
  // A GPU for each rank, exchanging by stores.
  OnDecoder with_gpus(Way way) && { return is_spread_ = true, way_ = way, *this; }
  // Its products take wide tiles.
  OnDecoder with_wide_tiles(cuda::Numerics numerics = cuda::Numerics::kFast) && {
    decoder_->setup.options.device.numerics = numerics;
    return std::move(*this).with_tokens(160, 192);
  }
  // Of a step and of a sequence.
  OnDecoder with_tokens(int32_t most, int32_t length) && {
    RunnerSetup& setup = decoder_->setup;
    setup.max_tokens = most, setup.max_length = length, setup.page_size = 16, setup.pages = 128;
    return *this;
  }
  // Of steps whose sums over ranks go by words; of those that tell other rows so. Else few.
  OnDecoder with_part_rows(int32_t rows) && { return decoder_->setup.options.device.part_rows = rows, *this; }
  OnDecoder with_told_rows(int32_t rows) && { return decoder_->setup.options.device.told_rows = rows, *this; }
  // Whose ranks add up their shares of sums.
  OnDecoder with_shares() && { return decoder_->setup.options.device.shares_from = 1, *this; }
  OnDecoder with_processors(int32_t count) && {
    return decoder_->setup.options.device.processors = count, *this;
  }
  OnDecoder with_pages(int32_t size) && { return decoder_->setup.page_size = size, *this; }
  OnDecoder with_kv(DType type) && { return decoder_->setup.kv_dtype = type, *this; }

  Verdict operator()(const Options& options) {
    Verdict verdict;
    const Rows got = run(options, &verdict);
    if (!verdict.empty() || !options.bug) return verdict;
    if (expected_->empty()) {
      Options sound = options;
      sound.bug = 0;
      *expected_ = run(sound, nullptr);
    }
    return same_bits(*expected_, got) ? "" : "oracle: other logits";
  }

 private:
  Rows run(const Options& options, Verdict* verdict) {
    const auto world = std::make_shared<World>(options);
    // Some bugs are only seen by it.
    const std::chrono::seconds deadline(options.bug ? 2 : 60);  // sound ones end, however busy the machine is
    decoder_->setup.options.step_deadline = deadline;
    decoder_->setup.options.gpu = std::make_shared<EmulatedGpu>(
        world, emulator::EmulatedGpuOptions{.processors = 4, .seeded_bugs = true});
    try {
      std::unique_ptr<StepRunner> runner;
      if (is_spread_) {
        runner = std::make_unique<GpuRanks>(
            decoder_->model, GpusOptions{.world = world,
                                         .processors = {2, 2},
                                         .way = way_,
                                         .seeded_bugs = true,
                                         .step_deadline = deadline,
                                         .told_rows = decoder_->setup.options.device.told_rows,
                                         .part_rows = decoder_->setup.options.device.part_rows,
                                         .shares_from = decoder_->setup.options.device.shares_from});
      } else {
        runner = make_runner(decoder_->model, decoder_->setup);
      }
      return drive_(*runner);
    } catch (const Error& error) {
      // What is refused before it runs has caught nothing.
      if (!verdict || error.code() != Code::kUnavailable) throw;
      const auto failure = world->failure();
      *verdict = failure ? verdict_of(*failure)
                         : std::string("watchdog: ") + std::string(error.what()).substr(0, 40);
      return {};
    }
  }

  Rows (*drive_)(StepRunner&);
  bool is_spread_ = false;
  Way way_ = Way::kHost;
  std::shared_ptr<Decoder> decoder_;
  std::shared_ptr<Rows> expected_ = std::make_shared<Rows>();
};

// ---- the ring of requests, its consumer being dma::Ring itself

Verdict run_ring(const Options& options) {
  constexpr int kBlocks = 3, kCount = 400;  // more than the ring holds
  emulator::Machine machine(options);
  auto host = [&](uint64_t bytes, const char* name) {
    return machine.memory().allocate(bytes, emulator::kHost, name);
  };
  auto* ring = reinterpret_cast<dma::Ring*>(host(sizeof(dma::Ring), "ring"));
  std::byte* control = machine.memory().allocate(sizeof(cuda::Control), 0, "control");
  std::memset(control, 0, sizeof(cuda::Control));
  machine.memory().initialise(control, sizeof(cuda::Control));
  RingParameters p{};
  p.queue = reinterpret_cast<uint64_t>(ring);
  std::byte* tickets = machine.memory().allocate(sizeof(cuda::RingTickets), 0, "tickets");
  std::memset(tickets, 0, sizeof(cuda::RingTickets));
  machine.memory().initialise(tickets, sizeof(cuda::RingTickets));
  p.tickets = reinterpret_cast<uint64_t>(tickets);
  const std::byte* source = host(kBlocks * kCount * 16, "source");
  p.source = reinterpret_cast<uint64_t>(source);
  p.count = kCount;
  p.loop.control = reinterpret_cast<uint64_t>(control);
  p.loop.host = reinterpret_cast<uint64_t>(host(4096, "host words"));
  p.loop.deadline_ns = 1'000'000'000'000;
  p.loop.processors = kBlocks;
  emulator::LaunchRequest request;
  request.blocks = kBlocks;
  request.shared_bytes = kRingShared;
  request.kernel = [](const void* q) { post_requests(*static_cast<const RingParameters*>(q)); };
  request.parameter.resize(sizeof p);
  std::memcpy(request.parameter.data(), &p, sizeof p);
  machine.launch(std::move(request));

  int popped[kBlocks] = {}, idle = 0;
  uint64_t turns = 0;
  auto pop = [&]() -> Verdict {
    dma::Request r;
    while (ring->try_pop(r)) {
      idle = 0;
      if (r.route >= kBlocks || r.bytes != 16 ||
          r.source_offset != 16u * static_cast<uint64_t>(r.route * kCount + popped[r.route]++)) {
        return "consumer: a request that nobody posted, or not in turn";
      }
      machine.host_acquires(reinterpret_cast<std::byte*>(ring) + dma::kRingSlotsOffset +
                            turns++ % dma::kRingSlots * 16);
      machine.host_reads(source + r.source_offset, 8);
    }
    return "";
  };
  try {
    bool done = false;
    for (uint32_t turn = 0; !done || idle < 2; turn++) {
      if (!done) {
        const auto progress = machine.advance(turn % 50 == 0 ? 4000 : 3);
        done = progress == emulator::Machine::Progress::kDone;
      }
      if (turn % 50 != 0 && turn % 2 == 0 && !done) continue;
      idle++;
      if (Verdict v = pop(); !v.empty()) return v;
      if (idle > 10'000) return "consumer: no request comes";
    }
  } catch (const Failure& failure) {
    if (!options.bug) ADD_FAILURE() << failure.what();
    return verdict_of(failure);
  }
  for (int n : popped) {
    if (n != kCount) return "consumer: requests are lost";
  }
  return "";
}

// ---- programs that somebody broke

Verdict validate_broken(bool (*breaks)(Program&, Binding&)) {
  TokenGraphOptions o{.layers = 2, .kv_heads = 2};
  CompileOptions c{.ranks = 2, .max_tokens = 16, .max_rows = 4, .max_items = 16, .page_size = 4, .pages = 8};
  Compiled compiled = compile_decoder(llama_tokens(o), c);
  if (!breaks(compiled.programs[0], compiled.bindings[0])) return "";
  return validate(compiled.programs, compiled.bindings).empty() ? "" : "validator";
}

bool drop_wait(Program& p, WaitKind kind) {
  for (Phase& phase : p.phases) {
    for (size_t i = 0; i < phase.waits.size(); i++) {
      if (phase.waits[i].kind != kind) continue;
      phase.waits.erase(phase.waits.begin() + static_cast<ptrdiff_t>(i));
      return true;
    }
  }
  return false;
}

std::vector<Bug> program_bugs() {
  auto bug = [](const char* name, bool (*breaks)(Program&, Binding&)) {
    return Bug{name, 0, [breaks](const Options&) { return validate_broken(breaks); }};
  };
  return {
      bug("program_without_a_phase_wait",
          [](Program& p, Binding&) { return drop_wait(p, WaitKind::kPhase); }),
      bug("program_without_an_arrival",
          [](Program& p, Binding&) { return drop_wait(p, WaitKind::kArrived); }),
      bug("program_without_a_credit", [](Program& p, Binding&) { return drop_wait(p, WaitKind::kCredit); }),
      bug("program_waits_for_the_next_phase",
          [](Program& p, Binding&) {
            for (Phase& phase : p.phases) {
              for (Wait& w : phase.waits) {
                if (w.kind == WaitKind::kPhase)
                  return w.phase = static_cast<PhaseId>(&phase - &p.phases[0]), true;
              }
            }
            return false;
          }),
      bug("program_with_overlapping_buffers",
          [](Program&, Binding& b) {
            int64_t* first = nullptr;
            for (int64_t& offset : b.offsets) {
              if (offset < 0) continue;
              if (first && *first != offset) return offset = *first, true;
              first = first ? first : &offset;
            }
            return false;
          }),
      bug("program_with_small_inbox",
          [](Program& p, Binding&) {
            for (Channel& c : p.channels) {
              if (!c.outgoing) return c.bytes -= 64, true;
            }
            return false;
          }),
  };
}

std::vector<Bug> device_bugs() {
  const OnDecoder decode(run_decode), grouped(run_decode, 2), pages(run_page_copies);
  // Its products take more pieces of weights than the ring has stages.
  const OnDecoder deep(run_decode, 0, Link::kDirect, 2048);
  const OnDecoder posted(run_decode, 0, Link::kPosted);
  // Its norms take up what tiles before them share.
  const OnDecoder alone(run_decode, 2, Link::kDirect, 64, 1);
  // Its products are on tensor cores.
  const OnDecoder halves(run_decode, 0, Link::kDirect, 64, 1, DType::kF16);
  // Each piece of its products has its rows of x apart.
  const OnDecoder rows(run_at_once, 0, Link::kDirect, 64, 1),
      row_halves(run_at_once, 0, Link::kDirect, 64, 1, DType::kF16),
      row_codes(run_at_once, 0, Link::kDirect, 64, 1, DType::kF32,
                [](TokenGraphOptions&o) { o.bits = 4, o.block = 32; }),
      // Whose two batches of pieces want more scratch than a step of eleven rows has.
      long_rows(run_at_once, 1, Link::kDirect, 2048, 1, DType::kF16,
                [](TokenGraphOptions&o) { o.hidden = 64; });
  const OnDecoder wide = OnDecoder(run_wide, 1, Link::kDirect, 448, 1, DType::kF16).with_wide_tiles();
  // Whose sums wait in registers, in scratch and in memory.
  const OnDecoder wide_trees =
      OnDecoder(run_wide, 1, Link::kDirect, 2112, 1, DType::kF16, [](TokenGraphOptions& o) {
        o.hidden = 128;
      }).with_wide_tiles(cuda::Numerics::kExact);
  // Of codes, whose pieces are two slices.
  const OnDecoder wide_codes =
      OnDecoder(run_wide, 1, Link::kDirect, 2112, 1, DType::kF32, [](TokenGraphOptions& o) {
        o.hidden = 128, o.bits = 4, o.block = 32;
      }).with_wide_tiles(cuda::Numerics::kExact);
  const OnDecoder grouped_rows(run_at_once, 2);
  // Its keys and values are, too: tiles of 66 rows, which are taken by sixteen, and the last two.
  const OnDecoder attended =
      OnDecoder(run_at_once, 0, Link::kDirect, 64, 1, DType::kF32, [](TokenGraphOptions& o) {
        o.heads = 12;
      }).with_kv(DType::kF16);
  // Whose keys and values a phase appends.
  const OnDecoder codes_apart =
      OnDecoder(run_decode, 0, Link::kDirect, 64, 1, DType::kF32, [](TokenGraphOptions& o) {
        o.head_dim = 72;
      }).with_kv(DType::kI8);
  // By strips, values in two parts.
  const OnDecoder strips =
      OnDecoder(run_many, 0, Link::kDirect, 64, 1, DType::kF32,
                [](TokenGraphOptions& o) { o.heads = 8, o.head_dim = 96, o.max_positions = 384; })
          .with_kv(DType::kF16)
          .with_processors(1)
          .with_tokens(112, 384);
  // Whose steps have more rows than such as exchange parts of sums by words.
  const OnDecoder sent(run_at_once), between_few(run_between_few);
  const OnDecoder shared = OnDecoder(run_at_once).with_shares();
  // Of ranks that share the table of tokens' rows, which no product stores.
  const OnDecoder shared_table =
      OnDecoder(run_at_once, 0, Link::kDirect, 64, 2, DType::kF32, [](TokenGraphOptions& o) {
        o.vocabulary = 2053;
      }).with_shares();
  // Whose sums over ranks go by words, but nothing else.
  const OnDecoder part_rows = OnDecoder(run_between_few).with_part_rows(12),
                  between_told = OnDecoder(run_between_told).with_part_rows(12);
  // Steps of more than few rows tell.
  const OnDecoder told = OnDecoder(run_parts_of_ten, 0, Link::kDirect, 64, 1).with_told_rows(16),
                  told_halves =
                      OnDecoder(run_parts_of_ten, 0, Link::kDirect, 64, 1, DType::kF16).with_told_rows(16),
                  told_wide = OnDecoder(run_parts_of_twenty, 1, Link::kDirect, 448, 1, DType::kF16)
                                  .with_wide_tiles()
                                  .with_told_rows(32),
                  told_groups = OnDecoder(run_parts_of_ten, 2, Link::kDirect, 64, 1).with_told_rows(16);
  // Of two blocks of rows.
  const OnDecoder told_blocks =
      OnDecoder(run_parts_of_forty, 2, Link::kDirect, 64, 1).with_tokens(80, 96).with_told_rows(64);
  // Whose wide tiles of gate and up share outputs, one each of a processor.
  const OnDecoder told_wide_groups = OnDecoder(run_parts_of_twenty, 2, Link::kDirect, 128, 1, DType::kF16,
                                               [](TokenGraphOptions& o) { o.hidden = 512; })
                                         .with_wide_tiles()
                                         .with_told_rows(32)
                                         .with_processors(4);
  // Of whose head one processor has the second panel's first group, the other one its last.
  const OnDecoder split(run_decode, 2, Link::kDirect, 64, 1, DType::kF32,
                        [](TokenGraphOptions& o) { o.hidden = 64, o.vocabulary = 150; });
  // Whose norms' rows are of several warps.
  const OnDecoder broad(run_decode, 0, Link::kDirect, 64, 2, DType::kF32,
                        [](TokenGraphOptions& o) { o.hidden = 256; });
  // Whose one block has all tiles of attention.
  const OnDecoder on_one = OnDecoder(run_decode, 0, Link::kDirect, 64, 1).with_processors(1);
  const OnDecoder twelve =
                      OnDecoder(run_twelve, 0, Link::kDirect, 64, 1).with_processors(1).with_tokens(24, 32),
                  twelve_halves = OnDecoder(run_twelve, 0, Link::kDirect, 64, 1)
                                      .with_processors(1)
                                      .with_tokens(24, 32)
                                      .with_kv(DType::kF16);
  const OnDecoder windows = OnDecoder(run_windows, 0, Link::kDirect, 64, 1, DType::kF32,
                                      [](TokenGraphOptions& o) { o.window = 60, o.max_positions = 640; })
                                .with_processors(1)
                                .with_tokens(160, 640);
  // Whose warps' first keys lie in few pages.
  const OnDecoder pages_of_eight = OnDecoder(run_decode).with_pages(8),
                  halves_of_eight = OnDecoder(run_decode).with_kv(DType::kF16).with_pages(8);
  return {
      // who waits, and for what
      ARK_DEVICE_BUG(missing_phase_wait, decode),
      ARK_DEVICE_BUG(wrong_epoch, decode),
      ARK_DEVICE_BUG(off_by_one_wait, decode),
      ARK_DEVICE_BUG(greedy_wait, decode),
      ARK_DEVICE_BUG(missing_barrier_after_wait, decode),
      // who signals
      ARK_DEVICE_BUG(signal_without_barrier, decode),
      ARK_DEVICE_BUG(block_scope_signal, decode),
      ARK_DEVICE_BUG(lost_signal, decode),
      ARK_DEVICE_BUG(double_signal, decode),
      // between ranks
      ARK_DEVICE_BUG(missing_arrival_wait, sent),
      ARK_DEVICE_BUG(block_scope_arrival, sent),
      ARK_DEVICE_BUG(lost_doorbell, sent),
      ARK_DEVICE_BUG(lost_credit, sent),
      ARK_DEVICE_BUG(wrong_slot, sent),
      ARK_DEVICE_BUG(part_not_told, decode),
      ARK_DEVICE_BUG(part_of_another_rank, decode),
      ARK_DEVICE_BUG(parts_not_awaited, decode),
      ARK_DEVICE_BUG(parts_not_cleared, decode),
      ARK_DEVICE_BUG(parts_not_settled, between_few),
      ARK_DEVICE_BUG(skipped_not_raised, between_few),
      ARK_DEVICE_BUG(part_not_told, part_rows),
      ARK_DEVICE_BUG(parts_not_awaited, part_rows),
      ARK_DEVICE_BUG(parts_not_cleared, part_rows),
      ARK_DEVICE_BUG(parts_not_settled, between_told),
      ARK_DEVICE_BUG(share_of_another_rank, shared_table),
      ARK_DEVICE_BUG(stored_share_of_another_rank, shared),
      ARK_DEVICE_BUG(share_not_told, shared),
      ARK_DEVICE_BUG(share_not_awaited, shared),
      ARK_DEVICE_BUG(share_without_barrier, shared),
      ARK_DEVICE_BUG(relaxed_share, shared),
      ARK_DEVICE_BUG(missing_arrival_wait, shared),
      ARK_DEVICE_BUG(block_scope_arrival, shared),
      // borders of steps
      ARK_DEVICE_BUG(go_without_barrier, decode),
      ARK_DEVICE_BUG(relaxed_go, decode),
      ARK_DEVICE_BUG(ready_without_barrier, decode),
      ARK_DEVICE_BUG(early_end, grouped),
      ARK_DEVICE_BUG(deltas_without_barrier, decode),
      ARK_DEVICE_BUG(stale_page_table, decode),
      ARK_DEVICE_BUG(page_copy_without_barrier, pages),
      // the ring of weights
      ARK_DEVICE_BUG(missing_init_barrier, decode),
      ARK_DEVICE_BUG(refill_without_wait, deep),
      ARK_DEVICE_BUG(unaligned_bulk_copy, decode),
      ARK_DEVICE_BUG(short_copy, decode),
      ARK_DEVICE_BUG(stuck_stage, deep),
      ARK_DEVICE_BUG(piece_of_another_lane, deep),
      ARK_DEVICE_BUG(piece_left_waiting, deep),
      ARK_DEVICE_BUG(missing_ring_fence, wide),
      ARK_DEVICE_BUG(stale_ring, wide),
      ARK_DEVICE_BUG(ring_of_other_turn, wide),
      ARK_DEVICE_BUG(missing_ring_fence, wide_trees),
      ARK_DEVICE_BUG(stale_ring, wide_trees),
      ARK_DEVICE_BUG(ring_of_other_turn, wide_trees),
      ARK_DEVICE_BUG(scratch_of_more_rows, long_rows),
      ARK_DEVICE_BUG(empty_count, deep),
      ARK_DEVICE_BUG(missing_mbarrier_phase, deep),
      ARK_DEVICE_BUG(missing_release, deep),
      ARK_DEVICE_BUG(release_without_sync_warp, deep),
      // tiles
      ARK_DEVICE_BUG(missing_copy_wait, decode),
      ARK_DEVICE_BUG(off_by_one_tile, decode),
      ARK_DEVICE_BUG(overlapping_tiles, decode),
      ARK_DEVICE_BUG(missing_scratch_barrier, decode),
      ARK_DEVICE_BUG(divergent_collective, decode),
      ARK_DEVICE_BUG(early_join, grouped_rows),
      ARK_DEVICE_BUG(early_join, split),
      ARK_DEVICE_BUG(taken_up_without_barrier, alone),
      ARK_DEVICE_BUG(added_up_without_barrier, broad),
      ARK_DEVICE_BUG(group_left_out, alone),
      ARK_DEVICE_BUG(missing_x_wait, row_halves),
      ARK_DEVICE_BUG(x_over_sums, rows),
      ARK_DEVICE_BUG(copied_into_use, row_codes),
      ARK_DEVICE_BUG(wide_missing_x_wait, wide),
      ARK_DEVICE_BUG(wide_waiting_of_others, wide_trees),
      ARK_DEVICE_BUG(wide_waiting_in_rooms, wide_trees),
      ARK_DEVICE_BUG(wide_all_slim, wide_trees),
      ARK_DEVICE_BUG(wide_all_slim, wide),
      ARK_DEVICE_BUG(wide_waits_for_right, wide_trees),
      ARK_DEVICE_BUG(wide_sums_kept, wide_trees),
      ARK_DEVICE_BUG(wide_rests_left_out, wide_trees),
      ARK_DEVICE_BUG(wide_sums_kept, wide_codes),
      ARK_DEVICE_BUG(wide_first_slice_again, wide_codes),
      ARK_DEVICE_BUG(wide_stage_left_early, wide_codes),
      ARK_DEVICE_BUG(wide_missing_barrier, wide_codes),
      ARK_DEVICE_BUG(wide_missing_barrier, wide),
      ARK_DEVICE_BUG(wide_copy_into_use, wide),
      ARK_DEVICE_BUG(wide_rows_of_others, wide),
      ARK_DEVICE_BUG(rest_left_out, halves),
      ARK_DEVICE_BUG(appended_without_barrier, decode),
      ARK_DEVICE_BUG(stale_places, decode),
      ARK_DEVICE_BUG(codes_without_sync_warp, codes_apart),
      // rows and sums that say themselves that they are there
      ARK_DEVICE_BUG(x_not_awaited, decode),
      ARK_DEVICE_BUG(same_half, decode),
      ARK_DEVICE_BUG(half_not_cleared, halves),
      ARK_DEVICE_BUG(sums_not_awaited, grouped),
      ARK_DEVICE_BUG(sums_not_cleared, grouped),
      ARK_DEVICE_BUG(sums_not_cleared, alone),
      ARK_DEVICE_BUG(sums_not_awaited, alone),
      ARK_DEVICE_BUG(every_one_gathers, grouped),
      ARK_DEVICE_BUG(quiet_signal, decode),
      // the same beyond few rows
      ARK_DEVICE_BUG(half_of_few, told),
      ARK_DEVICE_BUG(half_not_cleared, told),
      ARK_DEVICE_BUG(x_not_awaited, told),
      ARK_DEVICE_BUG(copies_not_looked_at, told_halves),
      ARK_DEVICE_BUG(wide_copies_not_looked_at, told_wide),
      ARK_DEVICE_BUG(sums_not_awaited, told_groups),
      ARK_DEVICE_BUG(sums_not_cleared, told_groups),
      ARK_DEVICE_BUG(every_one_gathers_wide, told_wide_groups),
      ARK_DEVICE_BUG(x_not_awaited, told_blocks),
      ARK_DEVICE_BUG(sums_not_cleared, told_blocks),
      // attention: what is known before the wait
      ARK_DEVICE_BUG(another_page, pages_of_eight),
      ARK_DEVICE_BUG(another_page, halves_of_eight),
      ARK_DEVICE_BUG(tile_of_another_number, on_one),
      ARK_DEVICE_BUG(asked_before_open, halves_of_eight),
      ARK_DEVICE_BUG(next_not_opened, twelve),
      ARK_DEVICE_BUG(next_not_opened, twelve_halves),
      ARK_DEVICE_BUG(idle_without_barrier, windows),
      // attention on tensor cores
      ARK_DEVICE_BUG(queries_without_barrier, attended),
      ARK_DEVICE_BUG(merged_without_barrier, attended),
      ARK_DEVICE_BUG(keys_without_sync_warp, attended),
      ARK_DEVICE_BUG(targets_in_use, attended),
      ARK_DEVICE_BUG(turned_values, attended),
      ARK_DEVICE_BUG(run_of_another_tile, twelve_halves),
      ARK_DEVICE_BUG(rows_of_other_tiles, twelve_halves),
      // and by strips
      ARK_DEVICE_BUG(strips_without_barrier, strips),
      ARK_DEVICE_BUG(strips_left_early, strips),
      ARK_DEVICE_BUG(first_run_not_told, strips),
      ARK_DEVICE_BUG(strips_without_wait, strips),
      ARK_DEVICE_BUG(rooms_without_barrier, strips),
      ARK_DEVICE_BUG(warps_not_parted, strips),
      // requests
      ARK_DEVICE_BUG(ring_overrun, run_ring),
      ARK_DEVICE_BUG(wrong_lap, run_ring),
      ARK_DEVICE_BUG(relaxed_request, run_ring),
      ARK_DEVICE_BUG(early_fence, run_ring),  // weak words only: whatever else there is, is in order
      ARK_DEVICE_BUG(stale_source, posted),
      ARK_DEVICE_BUG(lost_request, posted),
  };
}

std::vector<Bug> gpu_bugs() {
  const OnDecoder spread = OnDecoder(run_decode).with_gpus(Way::kHost),
                  peers = OnDecoder(run_decode).with_gpus(Way::kGpu),
                  sent_to_peers = OnDecoder(run_parts_of_ten).with_gpus(Way::kGpu),
                  between_few = OnDecoder(run_between_few).with_gpus(Way::kGpu),
                  shared = OnDecoder(run_parts_of_ten).with_shares().with_gpus(Way::kGpu);
  // Whose other processors take messages, too.
  const OnDecoder spread_rows =
      OnDecoder(run_at_once, 0, Link::kDirect, 64, 2, DType::kF32, [](TokenGraphOptions& o) {
        o.hidden = 256;
      }).with_gpus(Way::kHost);
  const OnDecoder shared_table = OnDecoder(run_parts_of_ten, 0, Link::kDirect, 64, 2, DType::kF32,
                                           [](TokenGraphOptions& o) { o.vocabulary = 2053; })
                                     .with_shares()
                                     .with_gpus(Way::kGpu);
  return {
      // between GPUs
      ARK_DEVICE_BUG(relaxed_store, spread),
      ARK_DEVICE_BUG(first_one_sends, spread),
      ARK_DEVICE_BUG(stale_store, spread),
      ARK_DEVICE_BUG(relaxed_relay, spread_rows),
      // in each other's memory
      ARK_DEVICE_BUG(relaxed_store, sent_to_peers),
      ARK_DEVICE_BUG(stale_store, sent_to_peers),
      ARK_DEVICE_BUG(first_one_sends, sent_to_peers),
      ARK_DEVICE_BUG(narrow_store, sent_to_peers),
      ARK_DEVICE_BUG(early_store, sent_to_peers),
      ARK_DEVICE_BUG(generous_credit, sent_to_peers),
      ARK_DEVICE_BUG(lost_peer_credit, sent_to_peers),
      ARK_DEVICE_BUG(narrow_peer_wait, sent_to_peers),
      ARK_DEVICE_BUG(relaxed_peer_wait, sent_to_peers),
      ARK_DEVICE_BUG(narrow_readers, sent_to_peers),
      ARK_DEVICE_BUG(restless_readers, sent_to_peers),
      ARK_DEVICE_BUG(every_one_sends, sent_to_peers),
      ARK_DEVICE_BUG(wrong_sent_slot, sent_to_peers),
      ARK_DEVICE_BUG(part_not_told, peers),
      ARK_DEVICE_BUG(parts_not_awaited, peers),
      ARK_DEVICE_BUG(parts_not_cleared, peers),
      ARK_DEVICE_BUG(parts_not_settled, between_few),
      ARK_DEVICE_BUG(stored_share_of_another_rank, shared),
      ARK_DEVICE_BUG(share_not_told, shared),
      ARK_DEVICE_BUG(share_not_awaited, shared),
      ARK_DEVICE_BUG(share_without_barrier, shared),
      ARK_DEVICE_BUG(relaxed_share, shared),
      ARK_DEVICE_BUG(narrow_share, shared),
      ARK_DEVICE_BUG(share_of_another_rank, shared_table),
      // parts that products have stored
      ARK_DEVICE_BUG(relaxed_store, shared),
      ARK_DEVICE_BUG(narrow_store, shared),
  };
}

// Fixed order first: it is the fastest. What only some orders show comes later.
std::vector<Options> hunting_schedules() {
  std::vector<Options> all = {{.schedule = Schedule::kFixed, .landing = Landing::kLate, .detector = true}};
  for (uint64_t seed = 1; seed <= 8; seed++) {
    all.push_back(
        {.schedule = Schedule::kRandom, .landing = Landing::kRandom, .seed = seed, .detector = true});
    all.push_back({.schedule = Schedule::kPct, .landing = Landing::kRandom, .seed = seed, .detector = true});
  }
  return all;
}

constexpr const char* kScheduleNames[] = {"fixed", "random", "PCT"};

TEST(SeededBugs, WithoutThemNothingIsFound) {
  const OnDecoder decode(run_decode), grouped(run_decode, 2), pages(run_page_copies),
      posted(run_decode, 0, Link::kPosted), spread = OnDecoder(run_decode).with_gpus(Way::kHost),
                                            peers = OnDecoder(run_decode).with_gpus(Way::kGpu),
                                            between = OnDecoder(run_between_few).with_gpus(Way::kGpu);
  for (const Options& options : hunting_schedules()) {
    if (options.seed > 1) break;
    for (auto run :
         {std::function<Verdict(const Options&)>(decode), std::function<Verdict(const Options&)>(pages),
          std::function<Verdict(const Options&)>(grouped), std::function<Verdict(const Options&)>(posted),
          std::function<Verdict(const Options&)>(spread), std::function<Verdict(const Options&)>(peers),
          std::function<Verdict(const Options&)>(between),
          std::function<Verdict(const Options&)>(run_ring)}) {
      EXPECT_EQ(run(options), "") << kScheduleNames[static_cast<int>(options.schedule)] << options.seed;
    }
  }
}

// A bug that several decoders would show is sought on the first of them, and with ARK_FULL=1 on each.
void expect_caught(const std::vector<Bug>& bugs) {
  size_t caught = 0, sought = 0;
  std::set<std::string> names;
  for (const Bug& bug : bugs) {
    if (!names.insert(bug.name).second && !std::getenv("ARK_FULL")) continue;
    ++sought;
    Verdict verdict;
    const char* schedule = "";
    for (Options options : hunting_schedules()) {
      options.bug = bug.hash;
      verdict = bug.run(options);
      if (bug.hash) schedule = kScheduleNames[static_cast<int>(options.schedule)];
      if (!verdict.empty() || !bug.hash) break;
    }
    std::printf("  %-34s %-8s %s\n", bug.name.c_str(), schedule,
                verdict.empty() ? "NOT CAUGHT" : verdict.c_str());
    std::fflush(stdout);
    EXPECT_FALSE(verdict.empty()) << bug.name;
    caught += !verdict.empty();
  }
  std::printf("seeded bugs: %zu of %zu caught\n", caught, sought);
}

TEST(SeededBugs, EveryOneIsCaught) {
  std::vector<Bug> bugs = device_bugs();
  for (Bug& bug : program_bugs()) bugs.push_back(std::move(bug));
  EXPECT_GE(bugs.size(), 45u);
  expect_caught(bugs);
}

TEST(SeededBugs, EveryOneBetweenGpusIsCaught) { expect_caught(gpu_bugs()); }

}  // namespace
}  // namespace ark::test
