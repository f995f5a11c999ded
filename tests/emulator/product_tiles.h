// How a device lays out the matrix products of a step, for tests that drive one.
#pragma once

#include <vector>

#include "engine/cuda/cost/step_tables.h"
#include "engine/cuda/dealing.h"
#include "engine/program/opcodes.h"
#include "tests/engine/driving.h"

namespace ark::test {

// use(tables) of a step of so many tokens of one sequence, as rank 0 has it.
template <class Use>
auto with_step(const DecoderModel& model, const RunnerSetup& setup, int32_t rows, const Use& use) {
  const Compiled compiled = compile(model, setup);
  std::vector<RankSetup> ranks;
  for (std::size_t r = 0; r < compiled.programs.size(); ++r)
    ranks.push_back({&compiled.programs[r], &compiled.bindings[r], nullptr, nullptr});
  const cuda::DeviceOptions& device = setup.options.device;
  const auto machine = cuda::cost::machine_of(
      device.processors * setup.ranks, setup.options.gpu->info().shared_per_block, 1 << 20, setup.ranks);
  return use(cuda::cost::StepTables(ranks, ragged_options(model, setup), machine, device.numerics,
                                    device.groups, {{{rows, 0}}},
                                    {.part_rows = device.part_rows, .told_rows = device.told_rows}));
}

// Of all products.
inline std::vector<cuda::StreamTiles> product_tiles(const DecoderModel& model, const RunnerSetup& setup,
                                                    int32_t rows) {
  return with_step(model, setup, rows, [](const cuda::cost::StepTables& tables) {
    std::vector<cuda::StreamTiles> all;
    for (const cuda::Instance& i : tables.instances()) {
      const Program& p = tables.program();
      if (is_product(p.variants[p.phases[i.phase].variant].code))
        all.emplace_back(i.stream, tables.size(i.stream.m));
    }
    return all;
  });
}
// Whether instances tell others by what they store (engine/cuda/lamport.h).
inline bool tells(const DecoderModel& model, const RunnerSetup& setup, int32_t rows) {
  return with_step(model, setup, rows, [](const cuda::cost::StepTables& tables) { return tables.tells(); });
}

}  // namespace ark::test
