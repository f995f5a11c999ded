// Both ends of a message: copy into the peer's inbox; sum or concatenate what the peers sent. Signals,
// credits and their waits are the rank's business (engine/cpu/rank.cc).
#include <algorithm>
#include <cstring>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

void send(const PhaseCall& call) {
  const TensorView& x = call.operands[0];
  const int64_t bytes = bytes_of(x.dtype, x.size());
  const int64_t from = std::min(call.first * kSendTile, bytes), to = std::min(call.last * kSendTile, bytes);
  if (to > from) std::memcpy(call.outbox + from, x.data + from, static_cast<std::size_t>(to - from));
}

// Part of rank `r`: operand 0 is the own part, then the peers' in rank order.
const TensorView& part_of(const PhaseCall& call, int r) {
  if (r == call.rank) return call.operands[0];
  return call.operands[r < call.rank ? r + 1 : r];
}

int64_t reduce_scratch(const PhaseLimits& limits) {
  return scratch_of<const float*>(static_cast<int64_t>(limits.operands.size()));
}

void recv_reduce(const PhaseCall& call) {
  if (call.first == call.last) return;
  const std::size_t count = call.operands.size();
  const TensorView &bias = call.operands[count - 3], &residual = call.operands[count - 2],
                   &out = call.operands[count - 1];
  const int64_t size = out.size(), width = last_dim(out);
  const auto** parts = call.scratch->take<const float*>(static_cast<int64_t>(count));
  int64_t i = std::min(call.first * kElementTile, size);
  const int64_t end = std::min(call.last * kElementTile, size);
  while (i < end) {
    // Up to the end of the row, since the bias runs along it.
    const int64_t column = i % width, n = std::min(width - column, end - i);
    for (int r = 0; r < call.ranks; ++r) parts[r] = part_of(call, r).as<const float>() + i;
    const simd::Epilogue epilogue{call.variant->epilogue,
                                  bias.present() ? bias.as<const float>() + column : nullptr,
                                  residual.present() ? residual.as<const float>() + i : nullptr};
    call.simd->add_parts(parts, call.ranks, epilogue, out.as<float>() + i, n);
    i += n;
  }
}

void recv_concat(const PhaseCall& call) {
  const TensorView& out = call.operands.back();
  const int axis = static_cast<int>(call.facts->axis);
  const auto out_bytes = static_cast<std::size_t>(bytes_of(out.dtype, inner_size(out, axis)));
  for (int64_t t = call.first; t < call.last; ++t) {
    std::byte* to = out.data + static_cast<std::size_t>(t) * out_bytes;
    for (int r = 0; r < call.ranks; ++r) {
      const TensorView& part = part_of(call, r);
      const auto bytes = static_cast<std::size_t>(bytes_of(part.dtype, inner_size(part, axis)));
      if (bytes) std::memcpy(to, part.data + static_cast<std::size_t>(t) * bytes, bytes);
      to += bytes;
    }
  }
}

}  // namespace

std::vector<StepKernel> exchange_step_kernels() {
  return {{OpCode::kSend, send},
          {OpCode::kRecvReduce, recv_reduce, reduce_scratch},
          {OpCode::kRecvConcat, recv_concat}};
}

}  // namespace ark
