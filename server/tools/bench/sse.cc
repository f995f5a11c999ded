#include "server/tools/bench/sse.h"

namespace ark::bench {

void SseParser::add(std::string_view bytes) {
  for (const char c : bytes) {
    const bool second_of_pair = c == '\n' && after_cr_;
    after_cr_ = c == '\r';
    if (second_of_pair) continue;
    if (c == '\n' || c == '\r')
      take_line();
    else
      line_ += c;
  }
}

void SseParser::finish() {
  if (!line_.empty()) take_line();
  dispatch();
}

void SseParser::take_line() {
  std::string_view line = line_;
  if (at_start_ && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  at_start_ = false;
  if (line.empty()) {
    dispatch();
  } else if (line[0] != ':') {
    const std::size_t colon = line.find(':');
    const std::string_view field = line.substr(0, colon);
    std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (field == "event") kind_ = value;
    if (field == "data") {
      if (has_data_) data_ += '\n';
      data_ += value;
      has_data_ = true;
    }
  }
  line_.clear();
}

void SseParser::dispatch() {
  if (has_data_) on_event_(kind_.empty() ? "message" : std::string_view(kind_), data_);
  kind_.clear();
  data_.clear();
  has_data_ = false;
}

}  // namespace ark::bench
