// Transport `verbs` as the rest of ark sees it: a shared object of its own, libark_verbs.so, loaded when it is asked
// for, so that nothing else needs libibverbs. It lies beside the executable, or where its RUNPATH says.
#pragma once

#include <memory>
#include <string>

#include "dma/transport.h"

namespace ark::dma {

// Why no rank here can use it, in one line; "" if one can.
std::string verbs_trouble();

// Of rank `rank` of a group: where ARK_VERBS_DEVICE names several devices, ranks take them in turn. Throws
// Error(kUnavailable) where there is trouble.
std::unique_ptr<Transport> make_verbs_transport(int rank);

}  // namespace ark::dma
