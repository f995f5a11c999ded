// Sums over ranks in steps of many rows: each rank adds up its share of the elements, of which the others send it
// theirs alone, and stores the sums into all ranks' memory (a reduce-scatter, then an all-gather; Thakur, Rabenseifner,
// Gropp, "Optimization of Collective Communication Operations in MPICH", 2005). Of n ranks a link carries 2 / n of what
// it does where each sends all to all; sums are the same. A product whose outputs are the rank's part stores these
// where they are added up, while it goes on. Ranks must reach each other's memory, and plan alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/cuda/appended.h"
#include "engine/cuda/merged_sends.h"
#include "engine/program/program.h"

namespace ark::cuda {

struct RankShares {
  // By instance of a step: the number, from 1 on, of the sum that it sends or adds up a share of, or stores parts of;
  // 0: it does neither.
  std::vector<int32_t> number;
  // By instance, of a sum whose parts products store: where in a rank's memory those of its share lie, rank by rank, in
  // one of two rooms. 0: they go by message.
  std::vector<uint64_t> parts_at;
  int32_t count = 0;        // of a step's sums
  int64_t elements = 0;     // of the largest; 0: there are none
  uint64_t room_bytes = 0;  // of all ranks' parts of a rank's share; 0: no product stores any
  int64_t from = 0;         // sums of more elements are added up so: of so many whole tiles of sends

  // In each rank's memory: words that say which sums are there, then the sums, then both rooms of parts.
  uint64_t bytes() const;
  uint64_t parts_offset() const;
  // Of ranks that plan alike.
  std::string text() const;
};
// `from`: about RankShares::from; 0: chosen by cost.
RankShares plan_rank_shares(const Program& program, const MergedSends& sends, const Appended& appended,
                            int64_t from);

}  // namespace ark::cuda
