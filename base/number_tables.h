// The numbers that codes of four bits stand for, by code (base/dtype.h), where inner loops see them as constants.
#pragma once

namespace ark {

// What stands beside the largest of a block: quantiles of the normal distribution (QLoRA, arXiv:2305.14314, appendix
// E), and a float of 1, 2 and 1 bits.
inline constexpr float kNumbersOfNF4[] = {-1.F,          -0.696192801F, -0.525073051F,  -0.394917488F,
                                          -0.284441382F, -0.18477343F,  -0.0910500363F, 0.F,
                                          0.0795802996F, 0.160930201F,  0.246112302F,   0.337915242F,
                                          0.440709829F,  0.562617004F,  0.722956836F,   1.F};
inline constexpr float kThird = 1.F / 3;
inline constexpr float kNumbersOfFP4[] = {
    0, kThird / 64,  2 * kThird,  1,  kThird,  0.5F,  kThird / 2,  0.25F,
    0, -kThird / 64, -2 * kThird, -1, -kThird, -0.5F, -kThird / 2, -0.25F};

}  // namespace ark
