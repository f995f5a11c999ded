#include "engine/cuda/rank_shares.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/index.h"
#include "engine/cuda/dealing.h"
#include "engine/cuda/image.h"
#include "engine/cuda/products_of_sums.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"

namespace ark::cuda {
namespace {

constexpr int64_t kFour = 4;       // elements that a thread has at once
constexpr std::size_t kRooms = 2;  // of parts that products store, in turns
// What a link carries while sums are stored, told of, and taken from where they are (cost/rates.h: 376 GB/s, 5.5 us).
constexpr int64_t kBytesOfTrip = 2 << 20;

// Elements of a sum from which on what is waited for takes the link that much less time. Of an element, by ranks'
// parts of 4 bytes: n - 1 of n where each sends all; twice (n - 1) / n by shares, once where a product stores parts
// meanwhile.
int64_t elements_from(int64_t ranks, bool is_stored) {
  const int64_t saved = (ranks - 1) * (ranks - (is_stored ? 1 : 2));  // of an element, of ranks * 4 bytes
  return saved == 0 ? INT64_MAX : (kBytesOfTrip / 4 * ranks + saved - 1) / saved;
}
int64_t whole_tiles(int64_t elements) { return elements / kSendElements * kSendElements; }

class SharesFinder {
 public:
  SharesFinder(const Program& program, const MergedSends& sends, const Appended& appended, int64_t from)
      : p_(program), sends_(sends), products_(program, appended), all_(products_.instances()), from_(from) {
    found_.number.assign(all_.size(), 0);
    found_.parts_at.assign(all_.size(), 0);
    found_.from = INT64_MAX;
  }

  RankShares run() {
    std::size_t last = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (code(i) != OpCode::kRecvReduce && code(i) != OpCode::kRecvRows) continue;
      const std::size_t send = send_of(i);
      // The sums before have been taken out of where these are stored by whoever has sent its parts of these.
      if (send == i || send < last) continue;
      const std::optional<std::size_t> product = storing_product(i);
      const int64_t from = whole_tiles(from_ > 0 ? from_ : elements_from(p_.ranks, product.has_value()));
      if (!fits(i, from)) continue;
      found_.number[send] = found_.number[i] = ++found_.count;
      found_.elements = std::max(found_.elements, elements_of(i));
      found_.from = std::min(found_.from, from);
      last = i;
      if (!product) continue;
      found_.number[*product] = found_.count;
      stored_.push_back(
          {.product = *product, .send = send, .sum = i, .elements = elements_in_a_step(operand(i, 0))});
      const int64_t share = share_fours(static_cast<i32>(elements_of(i) / kFour), p_.ranks);
      found_.room_bytes = std::max(found_.room_bytes, static_cast<uint64_t>(p_.ranks * share * kFour * 4));
    }
    for (std::size_t n = 0; n < stored_.size(); ++n) {
      for (const std::size_t i : {stored_[n].product, stored_[n].send, stored_[n].sum})
        found_.parts_at[i] = found_.parts_offset() + n % kRooms * found_.room_bytes;
    }
    return found_;
  }

 private:
  // A sum whose parts a product stores.
  struct Stored {
    std::size_t product, send, sum;  // instances
    int64_t elements;
  };

  OpCode code(std::size_t i) const { return code_of(p_, all_[i]); }
  BufferId operand(std::size_t i, std::size_t n) const { return resolve(p_, all_[i], n); }

  // The instance that sends this rank's part of a sum to all others; `reduce`: there is none.
  std::size_t send_of(std::size_t reduce) const {
    const BufferId part = operand(reduce, 0);
    for (std::size_t i = reduce; i-- > 0;) {
      const PhaseId phase = all_[i].phase;
      if (!is_send(code(i)) || operand(i, 0) != part || sends_.sent_by(phase) != kNone) continue;
      return goes_round(phase) ? i : reduce;
    }
    return reduce;
  }
  // Whose outputs are this rank's part, if they lie there by whole fours. It comes behind the sum before, which has as
  // many elements at least, so that it is shared wherever this one is: there each processor has waited for all ranks'
  // parts, which these send behind the sum before that. So they have taken out of the room what was in it.
  std::optional<std::size_t> storing_product(std::size_t reduce) const {
    if (code(reduce) != OpCode::kRecvReduce) return {};
    const std::optional<ProductOfSum> found = products_.of(reduce);
    if (!found) return {};
    if (!stored_.empty() && (found->product < stored_.back().sum ||
                             elements_in_a_step(operand(reduce, 0)) > stored_.back().elements))
      return {};
    const BufferId out = operand(found->product, kProductOut);
    const bool is_whole = elements_in_a_step(out) == elements_in_a_step(operand(reduce, 0)) &&
                          width_of(out) > 0 && width_of(out) % kFour == 0;
    return is_whole ? std::optional(found->product) : std::nullopt;
  }
  int64_t width_of(BufferId buffer) const {  // 0: not known
    const std::vector<ValId>& dims = p_.buffers[buffer].dims;
    return dims.empty() ? 0 : p_.vals[dims.back()].e.constant().value_or(0);
  }
  // In a step of different primes, so that what has as many is of the same sizes.
  int64_t elements_in_a_step(BufferId buffer) const {
    const SymbolValues step = {{"items", 13}, {"pages", 11}, {"rows", 5}, {"tokens", 7}};
    int64_t elements = 1;
    for (const ValId dim : p_.buffers[buffer].dims) elements *= p_.vals[dim].e.evaluate(step);
    return elements;
  }
  // To the right neighbour, then to the next one, and so on, as bodies/shares.h does.
  bool goes_round(PhaseId send) const {
    std::vector<PhaseId> all = {send};
    std::ranges::copy(sends_.also_of(send), std::back_inserter(all));
    if (std::ssize(all) != p_.ranks - 1) return false;
    for (std::size_t n = 0; n < all.size(); ++n) {
      const int32_t peer = p_.channels[at(p_.phases[all[n]].channel)].peer;
      if (peer != (p_.rank + static_cast<int32_t>(n) + 1) % p_.ranks) return false;
    }
    return true;
  }

  // All ranks' parts, by fours of elements, in some steps enough of them.
  bool fits(std::size_t reduce, int64_t from) const {
    const std::size_t operands = p_.phases[all_[reduce].phase].operands.size();
    const bool has_ids = code(reduce) == OpCode::kRecvRows;
    if (std::cmp_not_equal(operands, p_.ranks + has_ids + 3)) return false;
    const int64_t width = width_of(operand(reduce, operands - 1)), elements = elements_of(reduce);
    return max_bytes(p_, operand(reduce, 0)) == elements * 4 && width > 0 && width % kFour == 0 &&
           elements > from && elements <= INT32_MAX && found_.count < INT16_MAX;
  }
  // At most, of its output.
  int64_t elements_of(std::size_t reduce) const {
    return max_bytes(p_, operand(reduce, p_.phases[all_[reduce].phase].operands.size() - 1)) / 4;
  }

  const Program& p_;
  const MergedSends& sends_;
  const ProductsOfSums products_;
  const std::vector<ark::Instance>& all_;
  const int64_t from_;
  std::vector<Stored> stored_;
  RankShares found_;
};

}  // namespace

uint64_t RankShares::bytes() const { return elements == 0 ? 0 : parts_offset() + kRooms * room_bytes; }
uint64_t RankShares::parts_offset() const { return kShareWordBytes + static_cast<uint64_t>(elements) * 4; }

std::string RankShares::text() const {
  if (elements == 0) return "";
  std::string text = std::to_string(from) + "," + std::to_string(elements) + ":";
  for (std::size_t i = 0; i < number.size(); ++i) {
    if (number[i] != 0) text += " " + std::to_string(i);
  }
  return text;
}

RankShares plan_rank_shares(const Program& program, const MergedSends& sends, const Appended& appended,
                            int64_t from) {
  return program.ranks > 1 ? SharesFinder(program, sends, appended, from).run() : RankShares{};
}

}  // namespace ark::cuda
