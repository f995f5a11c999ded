// Values of two neighbouring rows of a weight.
#pragma once

namespace ark::simd {
namespace {

template <class T>  // vector type
struct Pair {
  typename T::V even, odd;
};

}  // namespace
}  // namespace ark::simd
