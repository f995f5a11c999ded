#include "engine/cuda/sources.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/files.h"

namespace ark::cuda {

// Made by CMake from the headers themselves (device_headers.cc in the build folder).
struct CarriedHeader {
  std::string_view name, text;
};
extern const CarriedHeader kCarriedHeaders[];
extern const std::size_t kCarriedHeaderCount;

constexpr std::size_t kLargestHeader = 1 << 20;

KernelSource source_of(std::string text) {
  KernelSource source;
  source.text = std::move(text);
  const char* folder = std::getenv("ARK_DEVICE_SOURCES");
  for (std::size_t i = 0; i < kCarriedHeaderCount; ++i) {
    const std::string name(kCarriedHeaders[i].name);
    source.headers.push_back({name, folder ? read_file(std::filesystem::path(folder) / name, kLargestHeader)
                                           : std::string(kCarriedHeaders[i].text)});
  }
  return source;
}

}  // namespace ark::cuda
