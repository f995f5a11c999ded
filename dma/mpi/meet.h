// Ranks that mpirun or srun has started: MPI tells each its number and carries rank 0's address and a key to all, then
// ends. From there on they are ranks like others (EnvironmentBootstrap): one watch over deaths, one proof.
#pragma once

#include <string>
#include <vector>

#include "dma/bootstrap.h"

namespace ark::dma {

// Whether MPI's launcher has set the environment of one rank of several.
bool is_started_by_mpi();

// Collective over all that the launcher has started; once in a process. Loads libark_mpi.so: beside this executable,
// where the system looks, or as ARK_LIBMPI says. `key`: given by the user, else rank 0 makes one. Throws
// Error(kUnavailable).
Environment meet_by_mpi(const std::string& key);

// What makes another process of this machine that rank, for which MPI would not start a second time: variables, as
// "NAME=value", from which Environment::from_process makes the same. Good while this process lives. This one gives up
// rank 0's port. None where MPI has not started this process.
std::vector<std::string> hand_on(const Environment& environment);

}  // namespace ark::dma
