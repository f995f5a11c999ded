#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ark {
namespace {

void fill(void* bytes, std::size_t count) {
  if (::getrandom(bytes, count, 0) != static_cast<ssize_t>(count))
    throw Error(Code::kOs, std::string("getrandom: ") + std::strerror(errno));
}

}  // namespace

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  fill(bytes.data(), count);
  return bytes;
}

uint64_t random_word() {
  uint64_t word = 0;
  fill(&word, sizeof word);
  return word;
}

}  // namespace ark
