#include "server/api/tool_calls.h"

#include <algorithm>

#include "server/api/fields.h"
#include "server/http/message.h"

namespace ark::api {
namespace {

constexpr const char* kBlanks = " \t\r\n";

std::size_t without_blanks(std::string_view text) {
  return text.find_last_not_of(kBlanks) + 1;
}  // npos + 1 is 0

// Bytes of `text` that are no call's beginning, nor blanks before one, whatever follows.
std::size_t certain(std::string_view text) {
  std::size_t begun = std::min(text.size(), ToolCalls::kBegin.size() - 1);
  while (!text.ends_with(ToolCalls::kBegin.substr(0, begun))) --begun;
  return without_blanks(text.substr(0, text.size() - begun));
}

}  // namespace

bool ToolCalls::are_asked_for(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != chat_template.npos; };
  return has(kBegin) && (has(R"("arguments":)") || has(R"(\"arguments\":)"));
}

ToolCalls::Found ToolCalls::push(std::string_view more, bool ends) {
  Found found;
  // Where a call's end may begin that was not there before: long ones come in many pieces.
  std::size_t fresh = held_.size() - std::min(held_.size(), kEnd.size() - 1);
  held_ += more;
  const auto tell = [&](std::size_t bytes, std::size_t drop) {
    found.text.append(held_, 0, bytes);
    held_.erase(0, drop);
    fresh = 0;
  };
  for (std::size_t begin; (begin = held_.find(kBegin)) != held_.npos;) {
    const std::size_t inner = begin + kBegin.size();
    const std::size_t end = std::min(held_.find(kEnd, std::max(inner, fresh)), held_.size());
    if (end == held_.size() && !ends) {
      const std::size_t before = without_blanks(std::string_view(held_).substr(0, begin));
      tell(before, before);
      return found;
    }
    const std::size_t after = std::min(end + kEnd.size(), held_.size());
    const bool is_call = read_call(held_.substr(inner, end - inner), found);
    // What only speaks of calls does not take along the one behind it, to which the end belongs.
    if (const std::size_t last = held_.rfind(kBegin, end); !is_call && last > begin) {
      const std::size_t before = without_blanks(std::string_view(held_).substr(0, last));
      tell(before, before);
      continue;
    }
    tell(is_call ? without_blanks(std::string_view(held_).substr(0, begin)) : after, after);
  }
  const std::size_t done = ends && !any() ? held_.size() : certain(held_);
  tell(done, done);
  if (ends && without_blanks(held_) > 0) tell(held_.size(), held_.size());  // a call that was only begun
  return found;
}

bool ToolCalls::read_call(const std::string& text, Found& found) {
  Json call;
  try {
    call = parse_json(text, "a call");
  } catch (const http::HttpError&) {
    return false;
  }
  if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return false;
  const Json arguments = call.contains("arguments") ? call["arguments"] : Json::object();
  if (!arguments.is_object()) return false;
  found.calls.push_back({{"index", count_},
                         {"id", id_ + std::to_string(count_)},
                         {"type", "function"},
                         {"function", {{"name", call["name"]}, {"arguments", to_text(arguments)}}}});
  ++count_;
  return true;
}

}  // namespace ark::api
