#include "engine/cuda/direct_links.h"

#include <algorithm>

#include "base/error.h"

namespace ark::cuda {

void connect(std::span<const RankImage* const> images, std::span<RankPlaces> places) {
  for (std::size_t r = 0; r < images.size(); ++r)
    places[r].channels.resize(images[r]->program().channels.size());
  for (std::size_t r = 0; r < images.size(); ++r) {
    places[r].parts = places[r].arena + images[r]->parts_offset();
    for (std::size_t peer = 0; peer < images.size(); ++peer) {
      places[r].parts_to.push_back(places[peer].arena + images[peer]->parts_offset() +
                                   r * images[r]->rank_parts().bytes());
      places[r].shares.push_back(places[peer].arena + images[peer]->shares_offset());
    }
    const Program& p = images[r]->program();
    for (std::size_t c = 0; c < p.channels.size(); ++c) {
      const Channel& out = p.channels[c];
      if (!out.outgoing) continue;
      const auto peer = static_cast<std::size_t>(out.peer);
      ARK_CHECK(peer < images.size() && images[peer]->program().rank == out.peer,
                "ranks of a device in rank order");
      const std::vector<Channel>& theirs = images[peer]->program().channels;
      const auto in = std::find_if(theirs.begin(), theirs.end(), [&](const Channel& channel) {
        return !channel.outgoing && channel.peer == p.rank && channel.name == out.name;
      });
      ARK_CHECK(in != theirs.end(), "a channel without an end at its peer");
      const auto number = static_cast<int32_t>(in - theirs.begin());
      const auto bytes = static_cast<uint64_t>(inbox_half(*in));
      ChannelPlace& sender = places[r].channels[c];
      ChannelPlace& receiver = places[peer].channels[number];
      const uint64_t inbox = places[peer].arena + images[peer]->inbox_offset(number);
      const uint64_t credits = places[r].arena + images[r]->counter_offset(static_cast<int32_t>(c));
      const uint64_t arrivals = places[peer].arena + images[peer]->counter_offset(number);
      sender = {.slots = inbox, .slot_bytes = bytes, .slot_count = 2, .raised = arrivals, .awaited = credits};
      receiver = {
          .slots = inbox, .slot_bytes = bytes, .slot_count = 2, .raised = credits, .awaited = arrivals};
    }
  }
}

}  // namespace ark::cuda
