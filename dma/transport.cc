#include "dma/transport.h"

#include "base/error.h"

namespace ark::dma {

Memory Transport::adopt_named(const std::string& region, const NamedMemory&) {
  throw Error(Code::kUnsupported, "region " + escaped(region) + ": transport " + std::string(name()) +
                                      " reaches no memory of devices");
}

}  // namespace ark::dma
