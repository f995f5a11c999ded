// Sums over ranks in steps of up to 32 rows: a product whose outputs all ranks add up stores these into every rank's
// memory, by words that say themselves that they are there (engine/cuda/lamport.h); who adds up waits for the words: in
// steps that tell other rows so, too, often the norm behind. So there is no send between them, and no counter. Ranks
// must reach each other's memory, and plan alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda/appended.h"
#include "engine/cuda/image.h"
#include "engine/program/program.h"

namespace ark::cuda {

struct RankParts {
  // By instance of a step: where in a row of a rank's parts those lie that a product stores, that sends would carry
  // (they are left out then), or that are added up; in floats. 0: there are none.
  std::vector<int32_t> place;
  // By such an instance: messages of each of its channels that have been left out, this one the last, where the next
  // one is not; else 0. Peers count messages, and are told of these by then.
  std::vector<int32_t> settles;
  // By instance: the product whose parts it adds up, or kNone; of these, the norm that does so in its place in steps
  // that tell other rows, too, or kNone: leave_to_norms().
  std::vector<int32_t> product, taker;
  int32_t pitch = 0;        // floats of a row; 0: there are no parts
  int32_t rows = kFewRows;  // of the steps whose sums are exchanged so, at most

  // Of a rank's parts, in each rank's memory: [2 halves][rows][pitch].
  uint64_t bytes() const;
  // Of ranks that plan alike; who adds up is each rank's own affair.
  std::string text() const;
  // `takers`: takers() (engine/cuda/taken_up.h).
  void leave_to_norms(const Program& program, std::span<const int32_t> takers);
};
// RankParts::rows, where `most` are wanted, at most, kFewRows at least: as many as leave all ranks' parts room, and
// go by their links no longer than shares of sums would (rank_shares.h), but few rows all the same. 0: these have no
// room. `widest`: elements of a row of the largest sum.
int32_t part_rows(int64_t ranks, int64_t widest, int64_t pitch, int32_t most);
// `rows`: RankParts::rows, at most, from kFewRows on; 0: chosen by cost.
RankParts plan_rank_parts(const Program& program, const Appended& appended, int32_t rows = 0);

}  // namespace ark::cuda
