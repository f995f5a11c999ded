#include "engine/cuda/sources.h"

#include <string_view>
#include <utility>

namespace ark::cuda {

// Made by CMake from the headers themselves (device_headers.cc in the build folder).
struct CarriedHeader {
  std::string_view name, text;
};
extern const CarriedHeader kCarriedHeaders[];
extern const std::size_t kCarriedHeaderCount;

KernelSource source_of(std::string text) {
  KernelSource source;
  source.text = std::move(text);
  for (std::size_t i = 0; i < kCarriedHeaderCount; ++i)
    source.headers.push_back({std::string(kCarriedHeaders[i].name), std::string(kCarriedHeaders[i].text)});
  return source;
}

}  // namespace ark::cuda
