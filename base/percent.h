// Percent-encoding: RFC 3986, section 2.1.
#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace ark {

// %XX becomes its byte; what is no such stays.
inline std::string percent_decoded(std::string_view coded) {
  std::string text;
  for (std::size_t i = 0; i < coded.size(); ++i) {
    const auto is_hex = [&](std::size_t at) {
      return at < coded.size() && std::isxdigit(static_cast<unsigned char>(coded[at]));
    };
    if (coded[i] == '%' && is_hex(i + 1) && is_hex(i + 2)) {
      text += static_cast<char>(std::stoi(std::string(coded.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      text += coded[i];
    }
  }
  return text;
}

}  // namespace ark
