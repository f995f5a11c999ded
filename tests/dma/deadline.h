// What the tests of set-up share.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/error.h"
#include "dma/wait.h"

namespace ark::dma {

// How long a test waits for what should come at once: longer than any loaded machine takes.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

// What `body` throws, or "".
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace ark::dma
