#include "server/http/api_keys.h"

#include <cctype>
#include <fstream>

#include "base/error.h"

namespace ark::http {
namespace {

constexpr std::size_t kMostKeys = 10'000, kLongestKey = 4096;

// Looks at every byte of `offered` whatever `key` is; its length is the client's own knowledge.
bool same(std::string_view key, std::string_view offered) {
  unsigned difference = key.size() != offered.size();
  for (std::size_t i = 0; i < offered.size(); ++i)
    difference |= static_cast<unsigned char>(offered[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  return difference == 0;
}

}  // namespace

ApiKeys ApiKeys::load(const std::filesystem::path& file) {
  const std::string name = escaped(file.string());
  std::ifstream in(file);
  if (!in || std::filesystem::is_directory(file))
    throw Error(Code::kNotFound, "--api-key-file " + name + ": cannot be read");
  ApiKeys keys;
  for (std::string line; std::getline(in, line);) {
    const std::size_t begin = line.find_first_not_of(" \t\r"), end = line.find_last_not_of(" \t\r");
    if (begin == std::string::npos) continue;
    keys.keys_.push_back(line.substr(begin, end - begin + 1));
    if (keys.keys_.back().size() > kLongestKey || keys.keys_.size() > kMostKeys)
      throw Error(Code::kUsage, "--api-key-file " + name + ": more than " + std::to_string(kMostKeys) +
                                    " keys, or one longer than " + std::to_string(kLongestKey) + " bytes");
  }
  if (keys.keys_.empty())
    throw Error(Code::kUsage, "--api-key-file " + name + ": holds no key; write one a line");
  return keys;
}

bool ApiKeys::allow(std::string_view authorization) const {
  if (keys_.empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return false;
  for (std::size_t i = 0; i < kScheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kScheme[i]) return false;
  const std::string_view offered = authorization.substr(kScheme.size());
  bool found = false;
  for (const std::string& key : keys_) found |= same(key, offered);
  return found;
}

}  // namespace ark::http
