// Who may use the server.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ark::http {

class ApiKeys {
 public:
  ApiKeys() = default;  // everybody
  // One key a line; blanks around it and empty lines do not count. Throws Error(kNotFound or kUsage).
  static ApiKeys load(const std::filesystem::path& file);

  // `authorization`: the header's value, "Bearer KEY". The time taken does not tell how much of a key was
  // right.
  bool allow(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace ark::http
