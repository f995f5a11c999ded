#include "engine/cuda/rank_shares.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/index.h"
#include "engine/cuda/image.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"

namespace ark::cuda {
namespace {

constexpr int64_t kFour = 4;  // elements that a thread has at once
// What a link carries while sums are stored, told of, and taken from where they are (cost/rates.h: 376 GB/s, 5.5 us).
constexpr int64_t kBytesOfTrip = 2 << 20;

// Elements of a sum from which on its parts' share of the link takes that much less.
int64_t elements_from(int64_t ranks) {
  const int64_t saved = (ranks - 1) * (ranks - 2);  // of an element, of ranks * 4 bytes
  return saved == 0 ? INT64_MAX : (kBytesOfTrip / 4 * ranks + saved - 1) / saved;
}

class SharesFinder {
 public:
  SharesFinder(const Program& program, const MergedSends& sends, int64_t from)
      : p_(program), sends_(sends), all_(unroll(program)) {
    found_.number.assign(all_.size(), 0);
    found_.from = (from > 0 ? from : elements_from(p_.ranks)) / kSendElements * kSendElements;
  }

  RankShares run() {
    std::size_t last = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (code(i) != OpCode::kRecvReduce && code(i) != OpCode::kRecvRows) continue;
      const std::size_t send = send_of(i);
      // The sums before have been taken out of where these are stored by whoever has sent its parts of these.
      if (send == i || send < last || !fits(i)) continue;
      found_.number[send] = found_.number[i] = ++found_.count;
      found_.elements = std::max(found_.elements, elements_of(i));
      last = i;
    }
    return found_;
  }

 private:
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
  bool fits(std::size_t reduce) const {
    const std::size_t operands = p_.phases[all_[reduce].phase].operands.size();
    const bool has_ids = code(reduce) == OpCode::kRecvRows;
    if (std::cmp_not_equal(operands, p_.ranks + has_ids + 3)) return false;
    const std::vector<ValId>& dims = p_.buffers[operand(reduce, operands - 1)].dims;
    const int64_t width = dims.empty() ? 0 : p_.vals[dims.back()].e.constant().value_or(0);
    const int64_t elements = elements_of(reduce);
    return max_bytes(p_, operand(reduce, 0)) == elements * 4 && width > 0 && width % kFour == 0 &&
           elements > found_.from && elements <= INT32_MAX && found_.count < INT16_MAX;
  }
  // At most, of its output.
  int64_t elements_of(std::size_t reduce) const {
    return max_bytes(p_, operand(reduce, p_.phases[all_[reduce].phase].operands.size() - 1)) / 4;
  }

  const Program& p_;
  const MergedSends& sends_;
  const std::vector<ark::Instance> all_;
  RankShares found_;
};

}  // namespace

uint64_t RankShares::bytes() const {
  return elements == 0 ? 0 : kShareWordBytes + static_cast<uint64_t>(elements) * 4;
}

std::string RankShares::text() const {
  if (elements == 0) return "";
  std::string text = std::to_string(from) + "," + std::to_string(elements) + ":";
  for (std::size_t i = 0; i < number.size(); ++i) {
    if (number[i] != 0) text += " " + std::to_string(i);
  }
  return text;
}

RankShares plan_rank_shares(const Program& program, const MergedSends& sends, int64_t from) {
  return program.ranks > 1 ? SharesFinder(program, sends, from).run() : RankShares{};
}

}  // namespace ark::cuda
