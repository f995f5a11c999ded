#include "base/error.h"

#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "base/utf8.h"

namespace ark {

int Error::exit_code() const {
  switch (code_) {
    case Code::kUsage:
    case Code::kInvalidArgument:
      return 64;
    case Code::kBadModel:
    case Code::kUnsupported:
      return 65;
    case Code::kNotFound:
      return 66;
    case Code::kExhausted:
    case Code::kUnavailable:
      return 69;
    case Code::kInternal:
      return 70;
    case Code::kOs:
      return 71;
  }
  return 70;
}

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {Code::kExhausted, "out of memory"};
  } catch (const std::system_error& error) {  // of files, streams and threads
    // Which says no more itself.
    const bool is_thread = error.code() == std::errc::resource_unavailable_try_again;
    return {Code::kOs, (is_thread ? "cannot start a thread: " : "") + escaped(error.what(), 400)};
  } catch (const std::exception& error) {
    return {Code::kInternal, std::string("internal: ") + error.what()};
  }
}

void check_failed(const char* file, int line, const std::string& message) {
  const char* slash = std::strrchr(file, '/');
  throw Error(Code::kInternal,
              std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) + ": " + message);
}

std::string escaped(std::string_view text, std::size_t limit) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= limit) return out + "...";
    const unsigned char c = static_cast<unsigned char>(text[0]);
    const std::size_t n = utf8_length(text);
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '"' || c == '\\')
      out += {'\\', static_cast<char>(c)};
    else if (n == 0 || control_at(text)) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02x", c);
      out += buffer;
    } else {
      out += text.substr(0, n);
      text.remove_prefix(n);
      continue;
    }
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace ark
