// What instances of a step wait for on a device: all that they conflict with, by some path; no more than conflicts.
#include "engine/cuda/dependencies.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/index.h"
#include "engine/compile.h"
#include "engine/program/unroll.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

// The same, said differently: whether both touch some byte of activations, or one buffer, and one of them writes it.
bool meet(const Program& p, const Binding& binding, const ark::Instance& a, const ark::Instance& b) {
  for (const Access& x : accesses(p, a)) {
    for (const Access& y : accesses(p, b)) {
      if (!x.writes && !y.writes) continue;
      if (x.buffer == y.buffer) return true;
      const Buffer &of_x = p.buffers[x.buffer], &of_y = p.buffers[y.buffer];
      if (of_x.kind != BufferKind::kAct || of_y.kind != BufferKind::kAct) continue;
      const int64_t from = std::max(binding.offsets[x.buffer], binding.offsets[y.buffer]);
      if (from < std::min(binding.offsets[x.buffer] + max_bytes(p, x.buffer),
                          binding.offsets[y.buffer] + max_bytes(p, y.buffer)))
        return true;
    }
  }
  return false;
}

TEST(Dependencies, EveryConflictIsOrderedAndProductsOfOneInputAreNot) {
  test::TokenGraphOptions o;
  o.layers = 3;
  o.kv_heads = 2;
  for (const int32_t ranks : {1, 2}) {
    CompileOptions options;
    options.ranks = ranks;
    const Compiled compiled = compile_decoder(test::llama_tokens(o), options);
    const Program& p = compiled.programs[0];
    const std::vector<ark::Instance> all = unroll(p);
    const auto needed = dependencies(p, compiled.bindings[0], {});
    std::vector<std::vector<bool>> before(all.size(), std::vector<bool>(all.size()));
    int free = 0;  // neighbours that may run side by side
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const int32_t j : needed[i]) {
        ASSERT_LT(at(j), i);
        EXPECT_FALSE(before[i][at(j)]) << i << " waits for " << j << " twice";
        before[i][at(j)] = true;
        for (std::size_t k = 0; k < at(j); ++k) before[i][k] = before[i][k] || before[at(j)][k];
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (!meet(p, compiled.bindings[0], all[j], all[i])) continue;
        EXPECT_TRUE(before[i][j]) << p.phases[all[i].phase].name << " does not wait for "
                                  << p.phases[all[j].phase].name;
      }
      free += i > 0 && !before[i][i - 1];
    }
    EXPECT_GE(free, 2 * 3) << "q, k and v of each layer";
  }
}

}  // namespace
}  // namespace ark::cuda
