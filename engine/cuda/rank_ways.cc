#include "engine/cuda/rank_ways.h"

#include <algorithm>
#include <string>

namespace ark::cuda {

RankWays agree_on_ways(const RankImages& images, PeerLinks* peers, int32_t processors, RankWays wanted) {
  const auto agree = [&](const auto& text_of) {
    const std::string text = text_of(*images[0]);
    if (peers) return peers->agree(text);
    return !text.empty() &&
           std::ranges::all_of(images, [&](const auto& image) { return text_of(*image) == text; });
  };
  wanted.tells = agree([](const RankImage& image) { return image.rank_parts().text(); });
  // Shares are exchanged processor by processor.
  wanted.shares = agree([&](const RankImage& image) {
    const std::string text = image.rank_shares().text();
    return text.empty() ? text : text + " " + std::to_string(processors);
  });
  return wanted;
}

uint64_t exchanged_bytes(const Program& program) {
  const Appended appended(program);
  return static_cast<uint64_t>(program.ranks) * plan_rank_parts(program, appended).bytes() +
         plan_rank_shares(program, MergedSends(program), appended, 0).bytes();
}

bool takes_more(const RankImages& images, const RankWays& ways) {
  return std::ranges::any_of(images, [&](const auto& image) {
    return (image->rank_parts().pitch > 0 && !ways.tells) ||
           (image->rank_shares().elements > 0 && !ways.shares);
  });
}

}  // namespace ark::cuda
