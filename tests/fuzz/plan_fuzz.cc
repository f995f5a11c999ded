// libFuzzer: any bytes as the text of a program, as --plan reads it. It is refused by its line, or printing it again
// gives a text that reads the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "engine/program/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  try {
    const auto [program, binding] = ark::parse_program({reinterpret_cast<const char*>(data), size});
    const std::string text = ark::program_text(program, binding);
    const auto [again, bound] = ark::parse_program(text);
    if (ark::program_text(again, bound) != text) std::abort();
  } catch (const ark::Error& error) {
    if (error.code() == ark::Code::kInvalidArgument) return 0;
    std::cerr << "an input may not cause: " << error.what() << '\n';
    std::abort();
  }
  return 0;
}
