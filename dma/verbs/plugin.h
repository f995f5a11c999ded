// What libark_verbs.so gives to the executable that loads it. They share C++ classes, so both must be of one build.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "dma/transport.h"

namespace ark::dma {

struct VerbsPlugin {
  const char* build;
  std::string (*trouble)();
  // `log`: the executable's, whose level and format have been set.
  std::unique_ptr<Transport> (*make)(int rank, decltype(&log_line) log);
};

extern "C" const VerbsPlugin* ark_verbs_plugin();

}  // namespace ark::dma
