#include "server/http/api_keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/sha256.h"
#include "server/http/message.h"

namespace ark::http {
namespace {

constexpr std::size_t kMostKeys = 10'000, kLongestLine = 4096, kMostBytes = std::size_t{4} << 20;

// Of "rpm=60": where it belongs. Null: `word` names no limit.
int64_t* limit_named(const std::string& word, KeyLimits& limits) {
  return word.starts_with("rpm=")           ? &limits.requests
         : word.starts_with("tpm=")         ? &limits.tokens
         : word.starts_with("concurrency=") ? &limits.concurrency
                                            : nullptr;
}

bool take_limit(const std::string& word, KeyLimits& limits) {
  int64_t* into = limit_named(word, limits);
  if (!into) return false;
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data() + word.find('=') + 1, end, *into);
  return error == std::errc() && stop == end && *into > 0;
}

// Messages name the line, never what stands in it.
ApiKey key_of(const std::string& line, const std::string& where) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  ApiKey key;
  std::size_t given = 1;  // words before the limits
  if (const std::size_t colon = words[0].find(':'); colon != std::string::npos) {
    key.name = words[0].substr(0, colon);
    key.secret = words[0].substr(colon + 1);
  } else if (KeyLimits none; words.size() > 1 && !limit_named(words[1], none)) {
    key.name = words[0];
    key.secret = words[given++];
  } else {
    key.secret = words[0];
  }
  for (; given < words.size(); ++given)
    if (!take_limit(words[given], key.limits))
      throw Error(Code::kUsage,
                  where + ": want KEY, NAME:KEY or NAME KEY, then rpm=N, tpm=N or concurrency=N");
  if (key.secret.empty()) throw Error(Code::kUsage, where + ": the key is empty");
  key.digest = sha256_hex("ark: key " + key.secret);
  return key;
}

}  // namespace

void KeyUsage::begin(const std::string& key, const KeyLimits& limits, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  const double minutes = std::chrono::duration<double>(now - last_).count() / 60;
  last_ = now;
  requests_ = std::max(0.0, requests_ - minutes * static_cast<double>(limits.requests));
  tokens_ = std::max(0.0, tokens_ - minutes * static_cast<double>(limits.tokens));
  const auto refuse = [&](int64_t limit, const char* of, double seconds) {
    throw HttpError(429, "the key " + escaped(key) + " has used its " + std::to_string(limit) + " " + of, "",
                    "rate_limit_exceeded")
        .with("Retry-After", std::to_string(std::max(1L, std::lround(std::ceil(seconds)))));
  };
  const auto excess = [](double used, int64_t limit) {  // seconds until one more fits
    return (used + 1 - static_cast<double>(limit)) * 60 / static_cast<double>(limit);
  };
  if (limits.concurrency && running_ >= limits.concurrency) refuse(limits.concurrency, "requests at once", 1);
  if (limits.requests && excess(requests_, limits.requests) > 0)
    refuse(limits.requests, "requests a minute", excess(requests_, limits.requests));
  if (limits.tokens && excess(tokens_, limits.tokens) > 0)
    refuse(limits.tokens, "tokens a minute", excess(tokens_, limits.tokens));
  requests_ += 1;
  ++running_;
}

void KeyUsage::end(int64_t tokens) {
  std::lock_guard lock(mutex_);
  tokens_ += static_cast<double>(tokens);
  --running_;
}

ApiKeys ApiKeys::load(const std::filesystem::path& file) {
  const std::string name = "--api-key-file " + escaped(file.string());
  std::string text = read_file_of("--api-key-file", file, kMostBytes);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // some editors' mark of UTF-8, no part of a key
  std::istringstream in(std::move(text));
  ApiKeys keys;
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string where = name + ", line " + std::to_string(++number);
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    if (line.size() > kLongestLine || keys.keys_.size() == kMostKeys)
      throw Error(Code::kUsage, where + ": more than " + std::to_string(kMostKeys) +
                                    " keys, or a line longer than " + std::to_string(kLongestLine) +
                                    " bytes");
    keys.keys_.push_back(key_of(line, where));
    if (keys.keys_.back().name.empty()) keys.keys_.back().name = "line-" + std::to_string(number);
  }
  if (keys.keys_.empty()) throw Error(Code::kUsage, name + ": holds no key; write one a line");
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & (S_IRGRP | S_IROTH)))
    log_line(LogLevel::kWarning, "the key file can be read by others than its owner; chmod 600 it",
             {{"file", file.string()}});
  return keys;
}

const ApiKey* ApiKeys::find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return nullptr;
  for (std::size_t i = 0; i < kScheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kScheme[i]) return nullptr;
  const std::string_view rest = authorization.substr(kScheme.size()),
                         offered = rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_)
    if (is_same_secret(key.secret, offered)) found = &key;
  return found;
}

void ApiKeys::take_usage_from(const ApiKeys& before) {
  for (ApiKey& key : keys_)
    for (const ApiKey& old : before.keys_)
      if (key.secret == old.secret) key.usage = old.usage;
}

}  // namespace ark::http
