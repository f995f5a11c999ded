// The texts of string tensors. An element of type kString is its text's number, of eight bytes: equal texts have one
// number, so that who copies, compares or looks up elements needs to know nothing of texts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/tensor.h"

namespace ark {

// The number of a text; that of "" is 0. Texts stay until the program ends, and numbers mean nothing to another one.
// From any thread. Throws Error(kExhausted) where all texts together would take more than 1 GiB.
uint64_t number_of_text(std::string_view text);
// Throws Error(kInternal) for a number that stands for no text.
const std::string& text_numbered(uint64_t number);
// A kString tensor of as many texts as `dims` ask for.
Tensor tensor_of_texts(Dims dims, std::span<const std::string> texts);

}  // namespace ark
