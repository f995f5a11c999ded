// What libark_mpi.so (library.cc, the only user of mpi.h) offers to those who look for it by name (loaded.h). Each
// returns null, or a text that says what went wrong and is good until the next call.
#pragma once

#include <cstddef>

extern "C" {
const char* ark_mpi_begin(int* rank, int* size);
// `all` has room for `bytes` of each rank.
const char* ark_mpi_all_gather(const void* own, void* all, std::size_t bytes);
// The sum of all ranks' `count` numbers to each.
const char* ark_mpi_all_reduce(const float* own, float* sum, std::size_t count);
const char* ark_mpi_end();
}
