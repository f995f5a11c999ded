// What one piece of work on text from strangers may cost: rendering a template, tokenizing a text, decoding a
// token.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace ark::text {

class BudgetExceeded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Counts work done and bytes made, not statements run: a list that holds one list twice, which holds one
// list twice and so on is small, but walking it is not. Who walks over values or makes text charges for it
// before or while doing it. One unit is about what a step of the interpreter, or looking at 64 bytes, takes:
// some 100 ns.
class Budget {
 public:
  constexpr Budget(std::size_t work, std::size_t bytes)
      : work_(work), bytes_(bytes), work_left_(work), bytes_left_(bytes) {}

  void charge(std::size_t work = 1) {
    if (work > work_left_) throw BudgetExceeded("takes more than " + std::to_string(work_) + " steps");
    work_left_ -= work;
  }
  // For looking at a text once.
  void charge_reading(std::size_t bytes) { charge(1 + bytes / kBytesPerUnit); }
  // For making text and lists. What is freed again is not given back.
  void charge_bytes(std::size_t bytes) {
    if (bytes > bytes_left_)
      throw BudgetExceeded("makes more than " + std::to_string(bytes_ >> 20) + " MiB of text and lists");
    bytes_left_ -= bytes;
    charge(bytes / kBytesPerUnit);
  }

  std::size_t work_left() const { return work_left_; }

 private:
  static constexpr std::size_t kBytesPerUnit = 64;
  std::size_t work_, bytes_;  // as given, for messages
  std::size_t work_left_, bytes_left_;
};

}  // namespace ark::text
