#include "engine/cuda/products_of_sums.h"

#include <algorithm>

#include "base/index.h"
#include "engine/program/opcodes.h"

namespace ark::cuda {

ProductsOfSums::ProductsOfSums(const Program& program, const Appended& appended)
    : program_(program), appended_(appended), all_(unroll(program)) {
  for (const ark::Instance& i : all_) accesses_.push_back(accesses(program, i));
}

bool ProductsOfSums::touches(std::size_t instance, BufferId buffer, bool writes) const {
  return std::ranges::any_of(accesses_[instance],
                             [&](const Access& a) { return a.buffer == buffer && a.writes == writes; });
}

std::optional<ProductOfSum> ProductsOfSums::of(std::size_t reduce) const {
  const auto operand = [&](std::size_t i, std::size_t n) { return resolve(program_, all_[i], n); };
  const BufferId parts = root(program_, operand(reduce, 0));
  ProductOfSum found{.product = reduce, .sends = {}};
  std::size_t& product = found.product;
  while (product-- > 0 && !touches(product, parts, true)) {
    if (!touches(product, parts, false)) continue;
    if (!is_send(code_of(program_, all_[product])) || root(program_, operand(product, 0)) != parts) return {};
    found.sends.push_back(product);
  }
  if (product >= reduce || std::ssize(found.sends) != program_.ranks - 1) return {};
  if (code_of(program_, all_[product]) != OpCode::kMatMul || appended_.of(all_[product].phase) != nullptr ||
      root(program_, operand(product, kProductOut)) != parts ||
      program_.buffers[parts].kind != BufferKind::kAct)
    return {};
  for (std::size_t i = reduce + 1; i < all_.size() && !touches(i, parts, true); ++i) {
    if (touches(i, parts, false)) return {};
  }
  return found;
}

}  // namespace ark::cuda
