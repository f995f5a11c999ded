#define ARK_SEEDED_BUGS
#include "engine/cuda/loop.h"
#include "tests/emulator/kernels/ring.h"

namespace ark::test {

using namespace ark::cuda;

extern "C" void post_requests(const RingParameters& p) {
  if (dev::thread_id() != 0) return;
  *reinterpret_cast<BlockWords*>(dev::shared() + shared_layout(p.loop.stages).words) = {};
  Instance instance{};
  Message message{};
  message.queue = p.queue;
  message.head = static_cast<u64>(dev::block_id()) << 1;  // the route
  message.first = p.tickets;
  message.slot_count = 1;
  for (int i = 0; i < p.count; i++) {
    message.source = static_cast<u64>(dev::block_id() * p.count + i) * 16;
    dev::st_global(at<u64>(p.source + message.source), message.source);
    if (!post_request(p.loop, 0, instance, message, 16)) return;
  }
}

}  // namespace ark::test
