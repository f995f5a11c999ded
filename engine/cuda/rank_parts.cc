#include "engine/cuda/rank_parts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/index.h"
#include "engine/cuda/products_of_sums.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"

namespace ark::cuda {
namespace {

constexpr int32_t kMostRows = 32;
// Of all ranks' parts in a rank's memory: of 70B's widths and depth, by eight ranks, those of eight rows take 670 MB.
constexpr int64_t kMostBytes = int64_t{1} << 30;
// Of a sum, that its rank's link carries beyond what it would if each rank added up a share (rank_shares.h), which
// takes an instance and a trip more (cost/rates.h: 376 GB/s, 8 us).
constexpr int64_t kMostLinkBytes = 3 << 20;
// Elements of a row that a norm adds up, at most: a block takes a row, where sums by themselves are of many blocks. Of
// more, these and the hop behind them take less (replayed: cost/).
constexpr int64_t kLongestTakenUp = 4096;
// Floats that a row's parts begin at a multiple of; and so many that belong to nobody.
constexpr int32_t kUnit = 16;

class PartsFinder {
 public:
  PartsFinder(const Program& program, const Appended& appended, int32_t rows)
      : p_(program),
        products_(program, appended),
        all_(products_.instances()),
        most_rows_(rows > 0 ? std::clamp<int32_t>(rows, kFewRows, kMostRows) : kMostRows) {
    for (int64_t n = 1; n <= kMostRows; ++n)
      steps_.push_back({{"items", n}, {"pages", n}, {"rows", n}, {"tokens", n}});
    begin();
  }

  RankParts run() {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (code(i) == OpCode::kRecvReduce) look_at(i);
    }
    found_.rows = part_rows(p_.ranks, widest_, found_.pitch, most_rows_);
    if (found_.rows == 0 || !meets_in_each_step() || !settle()) begin();
    if (found_.pitch == kUnit) found_.pitch = 0;
    return std::move(found_);
  }

 private:
  void begin() {
    found_.rows = most_rows_;
    found_.place.assign(all_.size(), 0);
    found_.settles = found_.place;
    found_.product.assign(all_.size(), kNone);
    found_.taker = found_.product;
    found_.pitch = kUnit;
  }
  OpCode code(std::size_t i) const { return code_of(p_, all_[i]); }
  BufferId operand(std::size_t i, std::size_t n) const { return resolve(p_, all_[i], n); }

  int64_t rows_of(const Buffer& parts, const SymbolValues& step) const {
    int64_t rows = 1;
    for (std::size_t a = 0; a + 1 < parts.dims.size(); ++a) rows *= p_.vals[parts.dims[a]].e.evaluate(step);
    return rows;
  }
  // Whether ranks exchange something in each step, also where no rows of logits are wanted: else one might store the
  // step after the next's parts where a peer still looks for this one's.
  bool meets_in_each_step() const {
    const SymbolValues least = {{"items", 1}, {"pages", 1}, {"rows", 0}, {"tokens", 1}};
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (!is_receive(code(i))) continue;
      if (found_.place[i] == 0 || rows_of(p_.buffers[operand(i, 0)], least) > 0) return true;
    }
    return false;
  }

  // Elements of a row of parts; 0: not of so many rows as a step has tokens, at most, or not by whole runs.
  int64_t width_of(const Buffer& parts) const {
    if (parts.dims.empty()) return 0;
    for (std::size_t n = 0; n < steps_.size(); ++n) {
      if (rows_of(parts, steps_[n]) > static_cast<int64_t>(n + 1)) return 0;
    }
    const int64_t width = p_.vals[parts.dims.back()].e.constant().value_or(0);
    return width % kUnit == 0 ? width : 0;
  }

  // A sum over ranks: of what a product stores for nobody else.
  void look_at(std::size_t reduce) {
    const std::optional<ProductOfSum> found = products_.of(reduce);
    if (!found) return;
    const std::size_t product = found->product;
    const int64_t width = width_of(p_.buffers[operand(product, kProductOut)]);
    const std::size_t out = p_.phases[all_[reduce].phase].operands.size() - 1;
    if (width == 0 || width_of(p_.buffers[operand(reduce, 0)]) != width ||
        width_of(p_.buffers[operand(reduce, out)]) != width)
      return;
    found_.product[reduce] = static_cast<int32_t>(product);
    found_.place[product] = found_.place[reduce] = found_.pitch;
    for (const std::size_t send : found->sends) found_.place[send] = found_.pitch;
    found_.pitch += static_cast<int32_t>(width);
    widest_ = std::max(widest_, width);
  }

  // Counts messages of each channel; false: channels of an instance, or of a sum's sends, are not alike.
  bool settle() {
    std::map<int32_t, bool> next_is_left_out;  // by channel
    std::vector<bool> settles(all_.size());
    for (std::size_t i = all_.size(); i-- > 0;) {
      const std::vector<int32_t> channels = channels_of(p_, p_.phases[all_[i].phase]);
      for (const int32_t channel : channels) {
        if (found_.place[i] != 0 && next_is_left_out[channel] != next_is_left_out[channels[0]]) return false;
      }
      settles[i] = found_.place[i] != 0 && !channels.empty() && !next_is_left_out[channels[0]];
      for (const int32_t channel : channels) next_is_left_out[channel] = found_.place[i] != 0;
    }
    std::map<int32_t, int32_t> left_out;                  // by channel
    std::map<std::pair<int32_t, bool>, int32_t> of_sums;  // by place, and whether it is a send
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (found_.place[i] == 0 || is_product(code(i))) continue;
      std::vector<int32_t> counts;
      for (const int32_t channel : channels_of(p_, p_.phases[all_[i].phase])) {
        counts.push_back(++left_out[channel]);
        if (settles[i]) left_out[channel] = 0;
      }
      found_.settles[i] = settles[i] ? counts[0] : 0;
      const auto of_sum = of_sums.try_emplace({found_.place[i], is_send(code(i))}, found_.settles[i]).first;
      if (std::ranges::count(counts, counts[0]) != std::ssize(counts) || of_sum->second != found_.settles[i])
        return false;
    }
    return true;
  }

  const Program& p_;
  const ProductsOfSums products_;
  const std::vector<ark::Instance>& all_;
  const int32_t most_rows_;
  std::vector<SymbolValues> steps_;  // of one token, and more, up to kMostRows
  int64_t widest_ = 0;               // row of a sum
  RankParts found_{.place = {}, .settles = {}, .product = {}, .taker = {}, .pitch = kUnit};
};

}  // namespace

int32_t part_rows(int64_t ranks, int64_t widest, int64_t pitch, int32_t most) {
  for (int32_t rows = most;; rows = std::max(kFewRows, rows / 2)) {
    const bool is_small = 2 * 4 * ranks * rows * pitch <= kMostBytes,
               is_quick = 4 * rows * widest * (ranks - 1) * (ranks - 2) / ranks <= kMostLinkBytes;
    if (is_small && (is_quick || rows == kFewRows)) return rows;
    if (rows == kFewRows) return 0;
  }
}

uint64_t RankParts::bytes() const {
  return uint64_t{2} * static_cast<uint64_t>(rows) * static_cast<uint64_t>(pitch) * 4;
}

std::string RankParts::text() const {
  std::string text = pitch == 0 ? "" : std::to_string(rows) + " rows: ";
  for (std::size_t i = 0; i < place.size(); ++i) {
    if (product[i] != kNone) text += std::to_string(i) + ":" + std::to_string(place[i]) + " ";
  }
  return text;
}

void RankParts::leave_to_norms(const Program& program, std::span<const int32_t> takers) {
  const std::vector<ark::Instance> all = unroll(program);
  for (std::size_t i = 0; i < product.size(); ++i) {
    if (product[i] == kNone || takers[i] == kNone) continue;
    const Buffer& x = program.buffers[resolve(program, all[at(takers[i])], 0)];
    if (program.vals[x.dims.back()].max <= kLongestTakenUp) taker[i] = takers[i];
  }
}

RankParts plan_rank_parts(const Program& program, const Appended& appended, int32_t rows) {
  return PartsFinder(program, appended, rows).run();
}

}  // namespace ark::cuda
