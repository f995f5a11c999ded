#include "dma/mpi/library.h"

#include <mpi.h>

namespace {

char text[MPI_MAX_ERROR_STRING + 1];

const char* reason(int error) {
  if (error == MPI_SUCCESS) return nullptr;
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return "an MPI call failed";
  return text;
}

}  // namespace

const char* ark_mpi_begin(int* rank, int* size) {
  if (const char* why = reason(MPI_Init(nullptr, nullptr))) return why;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (const char* why = reason(MPI_Comm_rank(MPI_COMM_WORLD, rank))) return why;
  return reason(MPI_Comm_size(MPI_COMM_WORLD, size));
}

const char* ark_mpi_all_gather(const void* own, void* all, std::size_t bytes) {
  const int count = static_cast<int>(bytes);
  return reason(MPI_Allgather(own, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD));
}

const char* ark_mpi_all_reduce(const float* own, float* sum, std::size_t count) {
  return reason(MPI_Allreduce(own, sum, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
}

const char* ark_mpi_end() { return reason(MPI_Finalize()); }
