// Logits of two ways to compute them, against each other.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/driving.h"

namespace ark::test {

// Each within `bound` of the row's largest magnitude, or of 1. Behind a near tie, of no more than two bounds, both have
// read different tokens: what follows is not compared.
inline void expect_near_until_a_tie(const Rows& expected, const Rows& got, float bound) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    float scale = 1;
    for (const float v : expected[i]) scale = std::max(scale, std::fabs(v));
    for (std::size_t j = 0; j < expected[i].size(); ++j)
      ASSERT_TRUE(std::fabs(expected[i][j] - got[i][j]) <= bound * scale)
          << "row " << i << " logit " << j << ": " << expected[i][j] << " and " << got[i][j];
    if (best(expected[i]) != best(got[i])) return;
  }
}

}  // namespace ark::test
