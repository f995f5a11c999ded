#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <new>

#include "base/error.h"
#include "base/log_writer.h"
#include "base/utf8.h"

namespace ark {
namespace {

std::atomic<bool> json_lines{false};
std::atomic<LogLevel> least_level{LogLevel::kInfo};

std::string timestamp() {  // UTC, milliseconds
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char date[32], text[48];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(ms));
  return text;
}

const char* name_of(LogLevel level) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  return kNames[static_cast<std::size_t>(level)];
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string json_value(const LogValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return json_quoted(*text);
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  return number(std::get<double>(value));
}

std::string text_value(const LogValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (!text) return json_value(value);
  const std::string shown = escaped(*text);
  // A value looks like no further field.
  return shown != *text || shown.empty() || shown.find_first_of(" =") != shown.npos ? '"' + shown + '"'
                                                                                    : shown;
}

}  // namespace

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0) {
      out += "\\ufffd";
    } else if (const auto control = control_at(text); control && *control <= 0xFFFF) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", *control);
      out += code;
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += text.substr(0, length);
    }
    text.remove_prefix(length ? length : 1);
  }
  return out + '"';
}

void set_log_format(bool json) { json_lines.store(json, std::memory_order_relaxed); }
bool is_json_log() { return json_lines.load(std::memory_order_relaxed); }

void set_log_level(LogLevel least) { least_level.store(least, std::memory_order_relaxed); }

std::string log_text(LogLevel level, std::string_view message, const LogFields& fields) {
  std::string line;
  if (is_json_log()) {
    line = "{\"time\":\"" + timestamp() + "\",\"level\":\"" + name_of(level) +
           "\",\"message\":" + json_quoted(message);
    for (const auto& [name, value] : fields) line += "," + json_quoted(name) + ":" + json_value(value);
    line += '}';
  } else {
    line = timestamp() + " " + name_of(level) + " " + escaped(message, 4096);
    for (const auto& [name, value] : fields) line += " " + std::string(name) + "=" + text_value(value);
  }
  return line;
}

void log_line(LogLevel level, std::string_view message, const LogFields& fields) {
  if (level < least_level.load(std::memory_order_relaxed)) return;
  try {
    LogWriter::instance().put(log_text(level, message, fields));
  } catch (const std::bad_alloc&) {
    LogWriter::instance().drop();
  }
}

}  // namespace ark
