#include "dma/mpi/loaded.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace ark::dma {

LoadedMpi::LoadedMpi() {
  // Its handlers of signals would print a stack in the middle of our last words.
  setenv("OMPI_MCA_opal_signal", "", 0);
  const char* given = std::getenv("ARK_LIBMPI");
  // Open MPI's own parts look for its symbols among the global ones.
  library_ = dlopen(given != nullptr ? given : "libark_mpi.so", RTLD_NOW | RTLD_GLOBAL);
  if (library_ == nullptr)
    throw Error(Code::kUnavailable, "mpirun or srun started this rank, but libark_mpi.so cannot be loaded: " +
                                        escaped(dlerror()) +
                                        "; build it by scripts/build.sh --with-cluster, or set ARK_RANK, "
                                        "ARK_WORLD_SIZE and ARK_BOOTSTRAP");
}

void* LoadedMpi::symbol(const char* name) const {
  void* found = dlsym(library_, name);
  if (found == nullptr) throw Error(Code::kUnavailable, std::string("libark_mpi.so has no ") + name);
  return found;
}

void LoadedMpi::check(const char* what, const char* why) {
  if (why != nullptr)
    throw Error(Code::kUnavailable, std::string("MPI cannot ") + what + ": " + escaped(why));
}

}  // namespace ark::dma
