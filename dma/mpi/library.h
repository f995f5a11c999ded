// What libark_mpi.so (library.cc, the only user of mpi.h) offers to meet.cc, which looks for it by name. Each returns
// null, or a text that says what went wrong and is good until the next call.
#pragma once

#include <cstddef>

extern "C" {
const char* ark_mpi_begin(int* rank, int* size);
// `all` has room for `bytes` of each rank.
const char* ark_mpi_all_gather(const void* own, void* all, std::size_t bytes);
const char* ark_mpi_end();
}
