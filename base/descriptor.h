// An open file that closes with its owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace ark {

struct Descriptor {
  Descriptor() = default;
  explicit Descriptor(int opened) : number(opened) {}
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
  Descriptor(Descriptor&& other) noexcept : number(std::exchange(other.number, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number, other.number);
    return *this;
  }
  explicit operator bool() const { return number >= 0; }

  int number = -1;
};

}  // namespace ark
