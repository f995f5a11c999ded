// Which sends are one instance (engine/cuda/merged_sends.h).
#include "engine/cuda/merged_sends.h"

#include <gtest/gtest.h>

#include "engine/compile.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

Program program_of(int32_t ranks) {
  CompileOptions options;
  options.ranks = ranks;
  test::TokenGraphOptions shape{.layers = 3, .heads = 8, .kv_heads = 8};
  shape.hidden = shape.heads * shape.head_dim;
  return compile_decoder(test::llama_tokens(shape), options).programs[0];
}

// The first of them sends to all: of each sum of two, four and eight ranks one instance is left.
TEST(MergedSends, AreThoseOfOneSum) {
  for (const int32_t ranks : {2, 4, 8}) {
    const Program program = program_of(ranks);
    const MergedSends sends(program);
    int sent = 0, received = 0;
    for (const ark::Instance& i : unroll(program)) {
      const OpCode code = program.variants[program.phases[i.phase].variant].code;
      received += is_receive(code);
      if (!is_send(code) || sends.sent_by(i.phase) != kNone) continue;
      ++sent;
      EXPECT_EQ(std::ssize(sends.also_of(i.phase)), ranks - 2);
    }
    EXPECT_GE(received, 6);
    EXPECT_EQ(sent, received);
  }
}

}  // namespace
}  // namespace ark::cuda
