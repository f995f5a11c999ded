// GPT-2's byte alphabet: each byte is written as one printable character, so that a BPE vocabulary over
// bytes can be stored as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ark::text {

// Each byte as its character.
std::string bytes_to_chars(std::string_view bytes);
// The bytes of a token of the alphabet, or nothing if a character is not of it.
std::optional<std::string> chars_to_bytes(std::string_view token);

}  // namespace ark::text
