// Log lines on standard error: text for people or one JSON object a line for machines. Never prompts or keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ark {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

using LogValue = std::variant<std::string, int64_t, double>;
using LogFields = std::vector<std::pair<std::string_view, LogValue>>;

// Both once, before other threads log. The default is text, from kInfo up.
void set_log_format(bool json);
bool is_json_log();
void set_log_level(LogLevel least);
// One line; control characters are escaped. Any thread; never waits (base/log_writer.h). Without memory it is dropped
// and counted.
void log_line(LogLevel level, std::string_view message, const LogFields& fields = {});

// The same line without its end, for what is not written to standard error.
std::string log_text(LogLevel level, std::string_view message, const LogFields& fields = {});

// "text" with the quotes and escapes of JSON; bytes that are not UTF-8 become U+FFFD.
std::string json_quoted(std::string_view text);

}  // namespace ark
