#include "engine/cuda/make_image.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "engine/cuda/dealing.h"
#include "engine/cuda/instance_filler.h"
#include "engine/cuda/placement.h"
#include "engine/cuda/planned_tiles.h"
#include "engine/cuda/taken_up.h"
#include "engine/program/kv_codec.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "engine/program/variant_facts.h"
#include "engine/program/weight_codec.h"

namespace ark::cuda {
namespace {

// As cudaMalloc aligns.
constexpr uint64_t kAlignment = 256;
uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

RankImage::RankImage(const RankSetup& setup, const ExecutorOptions& options, const VariantSet& variants,
                     std::size_t program, int32_t groups, const TileShape& tiles, const RankWays& ways)
    : setup_(setup),
      options_(options),
      variants_(variants),
      number_(program),
      groups_(groups),
      tiles_(tiles),
      weights_(*setup.program),
      sends_(*setup.program),
      told_rows_(ways.told_rows) {
  if (setup.program->vals.size() + 1 > kMaxVals) {
    throw Error(Code::kUnsupported, "the program has " + std::to_string(setup.program->vals.size()) +
                                        " sizes; device loops take " + std::to_string(kMaxVals - 1));
  }
  if (groups < 0 || (groups & (groups - 1)) != 0)
    throw Error(Code::kUsage,
                "--groups " + std::to_string(groups) + ": tiles share an output by a power of two");
  if (ways.tells) rank_parts_ = plan_rank_parts(*setup.program, appended(), ways.part_rows);
  if (ways.shares) rank_shares_ = plan_rank_shares(*setup.program, sends_, appended(), ways.shares_from);
  plan_schedule();
}

uint64_t RankImage::take(uint64_t bytes) {
  const uint64_t offset = arena_bytes_;
  arena_bytes_ += aligned(bytes);
  return offset;
}

void RankImage::plan_schedule() {
  const Program& p = *setup_.program;
  const std::vector<ark::Instance> instances = unroll(p);
  takers_ = takers(p, *setup_.binding, longest_row(tiles_));
  rank_parts_.leave_to_norms(p, takers_);
  // For sums of device code, which the program does not know.
  std::vector<int32_t> also(instances.size(), kNone), after_attention = also;
  int32_t last_attention = kNone;
  rank_.item_tokens = kRowsOfStrips, rank_.item_strip = kItemTokens, rank_.item_heads = 1;
  for (std::size_t i = 0; i < instances.size(); ++i) {
    const Phase& phase = p.phases[instances[i].phase];
    const Variant& variant = p.variants[phase.variant];
    if (is_product(variant.code)) also[i] = plan_stream(instances, static_cast<int32_t>(i));
    bases_.push_back(is_product(variant.code) ? streams_.back().base : kNone);
    if (variant.code != OpCode::kAttention) continue;
    also[i] = after_attention[i] = std::exchange(last_attention, static_cast<int32_t>(i));
    const auto operand = [&](std::size_t n) -> const Buffer& {
      return p.buffers[resolve(p, phase, phase.operands[n], instances[i].trip)];
    };
    if (!heads_at_.count(phase.variant))
      plan_heads(phase.variant, p.vals[operand(0).dims[1]].max, p.vals[operand(1).dims[1]].max);
    plan_items(phase.variant, operand(1), operand(2));
  }
  OnDevice device = on_device(p, *setup_.binding, appended(), sends_);
  device.also = std::move(also);
  for (const auto& [norm, stream] : taken_up_)
    device.more[norm] = accesses_taken_up(p, instances[at(stream_instances_[stream])]);
  needed_ = dependencies(p, *setup_.binding, device);
  device.also = std::move(after_attention);
  choose_told(std::move(device));
  if (lamport_.floats == 0) rank_parts_ = {};
  place_few(instances);
  for (std::size_t i = 0; i < instances.size(); ++i) {
    if (is_gone(instances[i].phase)) continue;
    ++instance_count_;
    skipped_count_ += is_skipped(i);
  }
  plan_memory(instances.size());
}

void RankImage::place_few(std::span<const ark::Instance> all) {
  std::vector<Placed> placed(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    placed[i].base = is_gone(all[i].phase) ? Placed::kNothing : bases_[i];
  for (std::size_t s = 0; s < streams_.size(); ++s) {  // of all neighbours, which lie side by side
    const auto tiles = [&](i32 rows) {
      const Lineup line = planned_tiles(streams_[s], rows, tiles_).lineup(streams_[s]);
      return std::max(line.grid, line.all);
    };
    placed[at(stream_instances_[s])].tiles = {tiles(kFewRows), tiles(tiles_.row_block)};
  }
  place(placed, needed_, options_.processors);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (bases_[i] == kNone) bases_[i] = std::max(0, placed[i].base);
  }
}

// [kv_heads + 1] places in what follows: the query heads of each.
void RankImage::plan_heads(int32_t variant, int64_t heads, int64_t kv_heads) {
  const std::vector<int64_t> map = VariantFacts::of(setup_.program->variants[variant]).head_map;
  heads_at_[variant] = static_cast<int32_t>(heads_.size());
  const std::size_t table = heads_.size();
  heads_.resize(table + at(kv_heads) + 1);
  for (int64_t kv = 0; kv < kv_heads; ++kv) {
    heads_[table + at(kv)] = static_cast<int32_t>(heads_.size() - table);
    for (int64_t h = 0; h < heads; ++h) {
      if ((map.empty() ? h : map[h]) == kv) heads_.push_back(static_cast<int32_t>(h));
    }
  }
  heads_[table + at(kv_heads)] = static_cast<int32_t>(heads_.size() - table);
}

// As many as attention by strips has room for at once, if all of it may go by strips, which these GPUs' code then does;
// where it did not, items of so many tokens would only take longer.
void RankImage::plan_items(int32_t variant, const Buffer& keys, const Buffer& values) {
  const Program& p = *setup_.program;
  const auto max = [&](const Buffer& b, std::size_t axis) {
    return static_cast<i32>(p.vals[b.dims[axis]].max);
  };
  const VariantFacts facts = VariantFacts::of(p.variants[variant]);
  const int32_t* first = heads_.data() + heads_at_.at(variant);
  int32_t group = 0;
  for (int32_t kv = 0; kv < max(keys, 1); ++kv) group = std::max(group, first[kv + 1] - first[kv]);
  const bool may =
      facts.softcap == 0 && attends_by_strips(tiles_ == kLargestTiles, kv_codec_of(keys.dtype)->format,
                                              max(keys, 3), max(values, 3));
  const int32_t tokens = may ? strip_tokens(group) : kItemTokens,
                strip = may ? std::max(1, kStripRows / std::max(1, group)) : kItemTokens;
  rank_.item_tokens = std::min(rank_.item_tokens, static_cast<u8>(tokens));
  rank_.item_strip = std::min(rank_.item_strip, static_cast<u8>(strip));
  rank_.item_heads = std::max(rank_.item_heads, static_cast<u16>(std::min(max(keys, 1), i32{UINT16_MAX})));
}

int32_t RankImage::item_tokens(int32_t step_tokens, int32_t longest) const {
  return item_tokens_of(rank_.item_tokens, rank_.item_strip, rank_.item_heads, step_tokens, longest,
                        options_.processors);
}

int32_t RankImage::plan_stream(std::span<const ark::Instance> all, int32_t instance) {
  const Program& p = *setup_.program;
  const Phase& phase = p.phases[all[at(instance)].phase];
  const int32_t trip = all[at(instance)].trip;
  const Buffer& w = p.buffers[resolve(p, phase, phase.operands[1], trip)];
  const WeightUse& use = p.weights[w.weight];
  Stream s{};
  s.panel = use.panel;
  s.unit_rows = static_cast<i32>(unit_rows(use.block));
  s.unit_bytes = static_cast<i32>(codec_of(use.stored)->unit_bytes(use));
  s.unit_reciprocal = 0xffffffffu / static_cast<u32>(s.unit_rows) + 1;
  const std::vector<int32_t> pieces = pieces_of(p.variants[phase.variant].recipe, use);
  const auto [borders, is_new] = border_at_.try_emplace({phase.variant, s.unit_rows, s.unit_bytes},
                                                        static_cast<int32_t>(borders_.size()));
  if (is_new) borders_.insert(borders_.end(), pieces.begin(), pieces.end());
  s.borders = at(borders->second);
  s.weights = static_cast<uint64_t>(weights_.offsets[at(w.weight)]);
  s.second = kNowhere;
  if (p.variants[phase.variant].code == OpCode::kGatedMatMul) {
    const Buffer& second = p.buffers[resolve(p, phase, phase.operands[3], trip)];
    s.second = static_cast<uint64_t>(weights_.offsets[at(second.weight)]);
  }
  s.k = static_cast<i32>(p.vals[w.dims[0]].max);
  s.n = static_cast<i32>(p.vals[w.dims[1]].max);
  s.pieces = static_cast<i32>(pieces.size()) - 1;
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i)
    s.longest_piece = std::max(s.longest_piece, pieces[i + 1] - pieces[i]);
  s.panels = (s.n + s.panel - 1) / s.panel;
  const int32_t taker = takers_[at(instance)];
  place_beside(s, all, instance);
  plan_groups(s, resolve(p, phase, phase.operands[0], trip), taker != kNone,
              variants_.wide_rows(number_, all[at(instance)].phase, tiles_));
  // Sums of groups go to one room after the other.
  int32_t after = kNone;
  std::size_t shared_before = 0;
  for (std::size_t i = streams_.size(); s.partials != kNowhere && i-- > 0 && shared_before < kPartialRooms;) {
    if (streams_[i].partials == kNowhere) continue;
    if (shared_before++ == 0) s.partials = (streams_[i].partials + 1) % kPartialRooms;
    const int32_t own = stream_instances_[i], its_taker = takers_[at(own)];
    if (shared_before == kPartialRooms)
      after = streams_[i].arrivals == kNowhere && its_taker != kNone ? its_taker : own;
  }
  if (s.partials != kNowhere && s.arrivals == kNowhere) taken_up_[taker] = streams_.size();
  s.base = s.before > 0 ? streams_.back().base : static_cast<i16>(next_base_);  // of all neighbours
  stream_instances_.push_back(instance);
  streams_.push_back(s);
  const i64 tiles =
      std::max(planned_tiles(s, kFewRows, tiles_).grid, planned_tiles(s, tiles_.row_block, tiles_).grid);
  next_base_ = static_cast<int32_t>((next_base_ + tiles) % options_.processors);
  return after;
}

// Among its neighbours that multiply the same rows: they run side by side.
void RankImage::place_beside(Stream& s, std::span<const ark::Instance> all, int32_t instance) const {
  const Program& p = *setup_.program;
  const auto input_of = [&](std::size_t i) {
    const Phase& phase = p.phases[all[i].phase];
    return is_product(p.variants[phase.variant].code) ? resolve(p, phase, phase.operands[0], all[i].trip)
                                                      : kNone;
  };
  const std::size_t own = at(instance);
  std::size_t first = own, last = own + 1;
  while (first > 0 && input_of(first - 1) == input_of(own)) --first;
  while (last < all.size() && input_of(last) == input_of(own)) ++last;
  i32 before = 0, beside = 0, wide_before = 0, wide_beside = 0;
  for (std::size_t i = first; i < last && last - first > 1; ++i) {
    const Phase& phase = p.phases[all[i].phase];
    const Buffer& w = p.buffers[resolve(p, phase, phase.operands[1], all[i].trip)];
    const int32_t panel = p.weights[w.weight].panel;
    const auto panels = static_cast<i32>((p.vals[w.dims[1]].max + panel - 1) / panel);
    const i32 pairs = p.variants[phase.variant].code == OpCode::kGatedMatMul ? panels : (panels + 1) / 2;
    beside += panels, wide_beside += pairs;
    if (i < own) before += panels, wide_before += pairs;
  }
  if (beside > UINT16_MAX) return;
  s.before = static_cast<u16>(before), s.beside = static_cast<u16>(beside);
  s.wide_before = static_cast<u16>(wide_before), s.wide_beside = static_cast<u16>(wide_beside);
}

// Of a step of so many tokens.
SymbolValues RankImage::sizes_of(int32_t tokens) const {
  return {{"items", tokens}, {"pages", options_.limits.pages}, {"rows", tokens}, {"tokens", tokens}};
}

// How it is cut, and the room of what tiles share. `partials`: kNowhere if they never do; `arrivals`: also if the norm
// behind takes their sums up.
void RankImage::plan_groups(Stream& s, BufferId x, bool is_taken_up, int32_t wide_rows) {
  const Program& p = *setup_.program;
  const std::vector<ValId>& dims = p.buffers[x].dims;
  const auto rows_of = [&](auto value) {
    int64_t rows = 1;
    for (auto d = dims.begin(); d + 1 < dims.end(); ++d) rows *= value(p.vals[*d]);
    return rows;
  };
  bool is_bounded = true;  // by a step's tokens
  for (int32_t n = 1; n <= kMostToldRows && is_bounded; ++n) {
    const SymbolValues sizes = sizes_of(n);
    is_bounded = rows_of([&](const Val& v) { return v.e.evaluate(sizes); }) <= std::max(n, kFewRows);
  }
  leaves_scratch_ = leaves_scratch_ && is_bounded;
  // What takes wide tiles has no more rows than a step, by which the ring is chosen.
  const Cutting how = {.rows = rows_of([](const Val& v) { return v.max; }),
                       .panels = s.beside > 0 ? s.beside : s.panels,
                       .weights = weights_of(s),
                       .processors = options_.processors,
                       .groups = groups_,
                       .tiles = tiles_,
                       .is_taken_up = is_taken_up,
                       .wide_rows = is_bounded || wide_rows != kExactWideRows ? wide_rows : 0};
  is_taken_up = cut(s, how);
  if (s.wide_from != 0 && s.wide_rows == kExactWideRows) {
    const int levels = log2_of(static_cast<u32>(s.pieces)) - 1 - tiles_.wide_levels;
    rank_.waiting_levels = std::max(rank_.waiting_levels, levels);
    wide_from_ = std::min(wide_from_, std::max(s.wide_from, kSlimWideRows + 1));
  }
  s.arrivals = s.partials = kNowhere;
  const auto shared = static_cast<uint64_t>(shared_rows(s, how));
  if (shared == 0) return;
  s.partials = 0;
  if (!is_taken_up) {
    const int64_t blocks = std::max<int64_t>((how.rows - 1) / tiles_.row_block + 1, s.some_blocks);
    s.arrivals = arrival_words_;
    arrival_words_ += static_cast<uint64_t>(s.panels * blocks);
  }
  const uint64_t columns = static_cast<uint64_t>(s.panels) * static_cast<uint64_t>(s.panel);
  partial_bytes_ =
      std::max(partial_bytes_, aligned(static_cast<uint64_t>(how.weights) * shared * columns * 4));
}

Stream RankImage::stream_at(std::size_t number, const RankPlaces& places) const {
  Stream s = streams_[number];
  s.weights += places.weights;
  s.second = s.second == kNowhere ? 0 : s.second + places.weights;
  s.borders = places.arena + borders_offset_ + s.borders * 4;
  s.partials = s.partials != kNowhere ? places.arena + partials_ + s.partials * partial_bytes_ : 0;
  s.arrivals = s.arrivals != kNowhere ? places.arena + arrivals_ + s.arrivals * 4 : 0;
  return s;
}

RankTables RankImage::rank_tables(const RankPlaces& places) const {
  const Program& p = *setup_.program;
  RankTables t = rank_;
  for (u64* address : {&t.instances, &t.waits, &t.messages, &t.streams, &t.caches, &t.page_table,
                       &t.last_tokens, &t.page_tokens, &t.positions, &t.token_slots, &t.places, &t.items,
                       &t.ready, &t.longest, &t.through, &t.sample_counts, &t.waiting, &t.readers}) {
    *address += places.arena;
  }
  if (lamport_.floats > 0) {
    t.lamport = places.arena + lamport_state_, t.lamport_rows = places.arena + lamport_rows_;
    t.lamport_pitch = lamport_.pitch;
    t.told_rows = static_cast<u16>(lamport_.rows);
  }
  if (rank_parts_.pitch > 0) {
    t.parts = places.parts;
    t.part_rows = rank_parts_.rows;
    t.part_pitch = rank_parts_.pitch;
    ARK_CHECK(places.parts_to.size() <= kMaxParts, "places of more ranks than parts have");
    std::ranges::copy(places.parts_to, t.parts_to);
  }
  if (rank_shares_.elements > 0) {
    ARK_CHECK(places.shares.size() <= kMaxParts, "places of more ranks than share sums");
    std::ranges::copy(places.shares, t.shares);
    t.shares_from = static_cast<i32>(rank_shares_.from / kSendElements);
    t.shares_per_step = rank_shares_.count;
  }
  t.token_ids = places.arena + buffers_[p.token_ids];
  t.step_positions = p.positions == kNone ? 0 : places.arena + buffers_[p.positions];
  t.instance_count = instance_count_;
  t.skipped_count = skipped_count_;
  t.stream_count = static_cast<i32>(streams_.size());
  t.val_count = static_cast<i32>(p.vals.size());
  t.rank = p.rank;
  t.ranks = p.ranks;
  t.writes_results = number_ == 0;
  for (const Buffer& buffer : p.buffers)
    t.cache_count += buffer.kind == BufferKind::kKvPage && buffer.alias == kNone;
  return t;
}

std::vector<std::byte> RankImage::tables(const RankPlaces& places) const {
  const Program& p = *setup_.program;
  std::vector<std::byte> bytes(table_bytes_);
  const auto put = [&](uint64_t offset, const void* from, std::size_t size) {
    ARK_CHECK(offset + size <= bytes.size(), "a device table that is larger than planned");
    if (size) std::memcpy(bytes.data() + offset, from, size);
  };
  InstanceFiller filler(*this, places);
  filler.run();
  put(rank_.instances, filler.instances.data(), filler.instances.size() * sizeof(Instance));
  // As RankTables::skipped_count says.
  const uint64_t few = rank_.instances + filler.instances.size() * sizeof(Instance),
                 skipped = few + filler.few_instances.size() * sizeof(Instance);
  put(few, filler.few_instances.data(), filler.few_instances.size() * sizeof(Instance));
  put(skipped, filler.skipped.data(), filler.skipped.size() * sizeof(u64));
  put(rank_.waits, filler.waits.data(), filler.waits.size() * sizeof(Wait));
  put(rank_.messages, filler.messages.data(), filler.messages.size() * sizeof(Message));
  put(aux_, filler.aux.data(), filler.aux.size() * sizeof(Size));
  put(borders_offset_, borders_.data(), borders_.size() * 4);
  put(heads_offset_, heads_.data(), heads_.size() * 4);
  for (std::size_t c = 0; c < bases_.size(); ++c) put(counters_ + c * kLineBytes, &options_.counter_base, 4);
  put(rank_.streams, filler.streams.data(), filler.streams.size() * sizeof(Stream));
  uint64_t cache = rank_.caches;
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    if (p.buffers[b].kind != BufferKind::kKvPage || p.buffers[b].alias != kNone) continue;
    const CachePages pages{places.arena + buffers_[b], static_cast<uint64_t>(page_bytes(p, p.buffers[b]))};
    put(cache, &pages, sizeof pages);
    cache += sizeof pages;
  }
  return bytes;
}

}  // namespace ark::cuda
