#include "engine/cuda/cost/step_tables.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "engine/cuda/dealing.h"
#include "engine/cuda/direct_links.h"

namespace ark::cuda::cost {
namespace {

// Where the image would lie: apart from 0, which means absent, and from each other.
constexpr uint64_t kWeights = uint64_t{1} << 44, kArenas = uint64_t{1} << 50, kArena = uint64_t{1} << 45;

std::vector<const Program*> programs_of(const std::vector<RankSetup>& setups) {
  std::vector<const Program*> all;
  for (const RankSetup& setup : setups) all.push_back(setup.program);
  return all;
}

}  // namespace

StepMachine machine_of(int32_t processors, int32_t shared_per_block, int64_t l2_bytes, int32_t ranks) {
  StepMachine machine{processors / ranks, 0, tiles_for(shared_per_block),
                      pieces_ahead(l2_bytes, processors / ranks * ranks), ranks};
  while (machine.stages < kMaxStages &&
         shared_layout(machine.stages + 1, machine.tiles.scratch).total <= static_cast<u32>(shared_per_block))
    ++machine.stages;
  if (machine.processors < 1)
    throw Error(Code::kUnsupported, std::to_string(ranks) + " ranks are more than the GPU's " +
                                        std::to_string(processors) + " processors; use fewer");
  return machine;
}

StepTables::StepTables(const std::vector<RankSetup>& setups, ExecutorOptions options,
                       const StepMachine& machine, Numerics numerics, int32_t groups, const StepShape& shape,
                       RankWays ways)
    : program_(setups[0].program), machine_(machine), variants_(programs_of(setups), numerics) {
  options.processors = machine.processors;
  ways.tells = ways.shares = setups.size() > 1;
  std::vector<std::unique_ptr<RankImage>> images;
  std::vector<const RankImage*> views;
  std::vector<RankPlaces> places(setups.size());
  for (std::size_t r = 0; r < setups.size(); ++r) {
    images.push_back(
        std::make_unique<RankImage>(setups[r], options, variants_, r, groups, machine.tiles, ways));
    views.push_back(images.back().get());
    places[r].weights = kWeights;
    places[r].arena = kArenas + r * kArena;
  }
  connect(views, places);
  for (ChannelPlace& place : places[0].channels) {
    const auto number = static_cast<std::size_t>(&place - places[0].channels.data());
    if (program_->channels[number].peer >= machine.ranks) place.link = LinkKind::kMapped;
  }
  bytes_ = images[0]->tables(places[0]);
  const RankTables rank = images[0]->rank_tables(places[0]);
  instances_ = table<Instance>(rank.instances, at(rank.instance_count));
  const Instance& last = instances_.back();
  waits_ = table<cuda::Wait>(rank.waits, at(last.first_wait + last.waits));

  int32_t step_tokens = 0, longest = 0;
  for (const StepShape::Sequence& s : shape.sequences) {
    step_tokens += s.count;
    longest = std::max(longest, s.cached + s.count);
  }
  const int32_t most = images[0]->item_tokens(step_tokens, longest);
  int64_t tokens = 0;
  for (const StepShape::Sequence& s : shape.sequences) {
    const auto slot = static_cast<int>(&s - shape.sequences.data());
    for (int32_t i = 0, count = 0; i < s.count; i += count) {
      count = item_tokens(s.cached + i, s.count - i, most);
      items_.push_back({slot, static_cast<int>(tokens) + i, count, s.cached + i});
    }
    tokens += s.count;
  }
  int32_t wide_from = INT32_MAX;
  leaving_rows_ = INT32_MAX;
  for (const auto& image : images) {
    leaving_rows_ = std::min(leaving_rows_, image->leaving_rows(machine.stages));
    wide_from = std::min(wide_from, image->wide_from());
  }
  const auto step_rows = static_cast<i32>(tokens);  // rows are no more
  stages_ = step_rows >= wide_from
                ? wide_stages(machine.stages, machine.tiles)
                : ring_stages(machine.stages, step_rows, leaving_rows_, machine.tiles.scratch);
  shares_from_ = int64_t{rank.shares_from} * kSendElements;
  tells_ = tokens <= rank.told_rows && rank.lamport != 0;
  if (tells_ && rank.skipped_count > 0)
    instances_ = table<Instance>(rank.instances + instances_.size() * sizeof(Instance),
                                 at(rank.instance_count - rank.skipped_count));
  if (tells_) cleared_bytes_ = tokens * rank.lamport_pitch * 4 / machine.processors;
  tells_ranks_ = rank.lamport != 0 && tokens <= rank.part_rows;
  tells_any_ranks_ = std::ranges::any_of(instances_, [&](const Instance& i) { return tells_ranks(i); });
  read_needs();
  const SymbolValues symbols = {{"items", std::ssize(items_)},
                                {"pages", options.limits.pages},
                                {"rows", std::ssize(shape.sequences)},
                                {"tokens", tokens}};
  for (const Val& val : program_->vals) vals_.push_back(static_cast<i32>(val.e.evaluate(symbols)));
  read_told();
  splits_ = most_splits(longest);
}

template <class T>
std::vector<T> StepTables::table(u64 address, std::size_t count) const {
  std::vector<T> all(count);
  ARK_CHECK(address >= kArenas && address - kArenas + count * sizeof(T) <= bytes_.size(),
            "a table of the image");
  if (count > 0) std::memcpy(all.data(), bytes_.data() + (address - kArenas), count * sizeof(T));
  return all;
}

KvFormat StepTables::appended_format(const Instance& i) const {
  const Appended::Part* part = variants_.appended(0).of(i.phase);
  ARK_CHECK(part != nullptr, "a product that appends nothing");
  const Phase& phase = program_->phases[part->append];
  const BufferId values = resolve(*program_, phase, phase.operands.back(), i.trip);
  return kv_codec_of(program_->buffers[values].dtype)->format;
}

i32 StepTables::word(u64 address) const { return table<i32>(address, 1)[0]; }

bool StepTables::tells_sums(const Instance& i) const {
  return tells_ && i.lamport_sums != 0 && size(i.stream.m) <= i.sums_rows;
}
bool StepTables::tells_ranks(const Instance& i) const { return tells_ranks_ && i.parts_at != 0; }
bool StepTables::is_by_norm(const Instance& i) const { return i.by_norm != 0 && tells_ && tells_ranks(i); }
bool StepTables::is_left_out(const Instance& i) const {
  return tells_ranks(i) && i.messages > 0 && (i.readers_period == 0 || is_by_norm(i));
}
bool StepTables::adds_parts(const Instance& i) const {
  return tells_ranks(i) && (i.readers_period > 0) != is_by_norm(i);
}
bool StepTables::multiplies(const Instance& i) const {
  return is_product(program_->variants[program_->phases[i.phase].variant].code);
}
bool StepTables::shares(const Instance& i) const {
  if (i.share == 0 || (i.share_parts_at == 0 ? tells_ranks(i) : tells_ranks_)) return false;
  return (multiplies(i) ? int64_t{size(i.stream.m)} * i.stream.n
                        : product(i.readers_period > 0 ? i.reduce.elements : i.send.elements)) > shares_from_;
}
int32_t StepTables::waits(const Instance& i) const {
  if (tells_) return i.waits - i.more_waits;
  return i.waits - i.few_waits - (tells_ranks(i) ? i.messages : 0);
}

bool StepTables::leaves_gpu(const Instance& i) const {
  return (i.links & 1 << static_cast<int>(LinkKind::kMapped)) != 0;
}

// Who stores where it looks.
void StepTables::read_told() {
  std::map<u64, int32_t> tellers;
  std::map<i32, int32_t> products;  // by where they store parts of sums
  for (std::size_t n = 0; n < instances_.size(); ++n) {
    const Instance& i = instances_[n];
    std::vector<int32_t>& told = told_.emplace_back();
    if (adds_parts(i)) told.push_back(products.at(i.parts_at));
    if (tells_ranks(i) && multiplies(i)) products[i.parts_at] = static_cast<int32_t>(n);
    if (!tells_) continue;
    const u64 sums = tells_sums(i) ? i.lamport_sums : 0;
    for (const u64 place : {i.lamport_x, multiplies(i) ? 0 : sums})
      if (place != 0) told.push_back(tellers.at(place));
    for (const u64 place : {i.lamport_out, multiplies(i) ? sums : 0})
      if (place != 0) tellers[place] = static_cast<int32_t>(n);
  }
}

// A counter that has reached a value means that an instance is complete, which says so itself.
void StepTables::read_needs() {
  std::map<std::pair<u64, u64>, int32_t> complete;
  // Sent and not yet received: ranks are alike, so a peer's arrive when the own ones do.
  std::vector<int32_t> sent;
  for (std::size_t n = 0; n < instances_.size(); ++n) {
    const Instance& i = instances_[n];
    std::vector<int32_t>& needed = needs_.emplace_back();
    const i32 first = i.first_wait + (tells_ ? 0 : i.few_waits);
    for (i32 w = first; w < first + waits(i); ++w) {
      const cuda::Wait& wait = waits_[at(w)];
      if (wait.wide == 0) needed.push_back(complete.at({wait.counter, wait.offset}));
    }
    if (tells_ranks(i)) {
      // Its messages are left out.
    } else if (i.readers_period > 0) {
      needed.insert(needed.end(), sent.begin(), sent.end());
      sent.clear();
    } else if (i.messages > 0) {
      sent.push_back(static_cast<int32_t>(n));
    }
    complete[{i.counter, i.complete_offset}] = static_cast<int32_t>(n);
  }
}

}  // namespace ark::cuda::cost
