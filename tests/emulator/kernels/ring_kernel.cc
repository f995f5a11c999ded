#define ARK_SEEDED_BUGS
#include "engine/cuda/loop.h"
#include "tests/emulator/kernels/ring.h"

namespace ark::test {

using namespace ark::cuda;

extern "C" void post_requests(const RingParameters& p) {
  if (dev::thread_id() != 0) return;
  *reinterpret_cast<BlockWords*>(dev::shared() + shared_layout(p.loop.stages).words) = {};
  Block b = open_block(p.loop, 0, 0, {});
  Instance instance{};
  Message message{};
  message.queue = p.queue;
  message.head = static_cast<u64>(dev::block_id()) << 1;  // the route
  message.slot_count = 1;
  const Call call{b, instance, &message};
  for (int i = 0; i < p.count; i++) {
    if (!post_request(b, call, message, static_cast<u64>(i) * 4, 16)) return;
  }
}

}  // namespace ark::test
