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
  *call.sent = {from, to};
}

// Which rank has a token; -1: none.
int owner_of(const std::vector<int64_t>& borders, int64_t token) {
  const auto end = std::upper_bound(borders.begin(), borders.end(), token);
  return end == borders.begin() || end == borders.end() ? -1 : static_cast<int>(end - borders.begin()) - 1;
}

// A tile has the rows that begin in it.
void send_rows(const PhaseCall& call) {
  const TensorView &x = call.operands[0], &ids = call.operands[1];
  const int64_t row_bytes = bytes_of(x.dtype, last_dim(x));
  const auto first_row = [&](int64_t tile) {
    return std::min((tile * kSendTile + row_bytes - 1) / row_bytes, x.dims[0]);
  };
  const int64_t begin = first_row(call.first), end = first_row(call.last);
  int64_t place = 0, before = 0;
  for (int64_t t = 0; t < end; ++t) {
    if (t == begin) before = place;
    if (owner_of(call.facts->borders, index_at(ids, t)) != call.rank) continue;
    if (t >= begin)
      std::memcpy(call.outbox + place * row_bytes, x.data + t * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    ++place;
  }
  *call.sent = {(begin < end ? before : place) * row_bytes, place * row_bytes};
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
  const int count_of_parts = call.sum ? 1 : call.ranks;
  const auto** parts = call.scratch->take<const float*>(static_cast<int64_t>(count));
  int64_t i = std::min(call.first * kElementTile, size);
  const int64_t end = std::min(call.last * kElementTile, size);
  while (i < end) {
    // Up to the end of the row, since the bias runs along it.
    const int64_t column = i % width, n = std::min(width - column, end - i);
    for (int r = 0; r < count_of_parts; ++r)
      parts[r] =
          (call.sum ? reinterpret_cast<const float*>(call.sum) : part_of(call, r).as<const float>()) + i;
    const simd::Epilogue epilogue{call.variant->epilogue,
                                  bias.present() ? bias.as<const float>() + column : nullptr,
                                  residual.present() ? residual.as<const float>() + i : nullptr};
    call.simd->add_parts(parts, count_of_parts, epilogue, out.as<float>() + i, n);
    i += n;
  }
}

int64_t rows_scratch(const PhaseLimits& limits) {
  return reduce_scratch(limits) + scratch_of<int64_t>(std::ssize(limits.operands)) +
         scratch_of<float>(last_dim(limits.operands.back()));
}

// The sum that recv_reduce makes, of the same numbers: ranks without a row have zeros there.
void recv_rows(const PhaseCall& call) {
  if (call.first == call.last) return;
  const std::size_t count = call.operands.size();
  const TensorView &ids = call.operands[count - 4], &bias = call.operands[count - 3],
                   &residual = call.operands[count - 2], &out = call.operands[count - 1];
  const int64_t size = out.size(), width = last_dim(out);
  const auto** parts = call.scratch->take<const float*>(static_cast<int64_t>(count));
  auto* rows = call.scratch->take<int64_t>(call.ranks);  // of each rank, before row `t`
  auto* zeros = call.scratch->take<float>(width);
  std::fill_n(rows, call.ranks, 0);
  std::fill_n(zeros, width, 0.F);
  int64_t i = std::min(call.first * kElementTile, size), t = 0;
  const int64_t end = std::min(call.last * kElementTile, size);
  const auto owner = [&] { return owner_of(call.facts->borders, index_at(ids, t)); };
  while (i < end) {
    for (; t < i / width; ++t)
      if (const int r = owner(); r >= 0) ++rows[r];
    const int64_t column = i % width, n = std::min(width - column, end - i);
    std::fill_n(parts, call.ranks, zeros);
    if (const int r = owner(); r >= 0)
      parts[r] = part_of(call, r).as<const float>() + (r == call.rank ? t : rows[r]) * width + column;
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
          {OpCode::kRecvConcat, recv_concat},
          {OpCode::kSendRows, send_rows},
          {OpCode::kRecvRows, recv_rows, rows_scratch}};
}

}  // namespace ark
