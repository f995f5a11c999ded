#include "server/text/tool_calls.h"

#include <algorithm>

namespace ark::text {
namespace {

std::size_t without_blanks(std::string_view text) {
  return text.find_last_not_of(kBlanks) + 1;
}  // npos + 1 is 0

// Bytes of `text` that are not the beginning of `mark`, nor blanks before one, whatever follows.
std::size_t certain(std::string_view text, std::string_view mark) {
  std::size_t begun = std::min(text.size(), mark.size() - std::min<std::size_t>(mark.size(), 1));
  while (!text.ends_with(mark.substr(0, begun))) --begun;
  return without_blanks(text.substr(0, text.size() - begun));
}

}  // namespace

// Of the next section in what is held; npos if none has begun.
std::size_t ToolCalls::find_begin() const {
  const std::string& mark = expected_->form.begin;
  if (!mark.empty()) return held_.find(mark);
  const std::size_t first = held_.find_first_not_of(kBlanks);  // the answer is a call, or has none
  return !has_begun_ && first != held_.npos && (held_[first] == '{' || held_[first] == '[') ? first
                                                                                            : held_.npos;
}

ToolCalls::Found ToolCalls::push(std::string_view more, bool ends) {
  const std::string &begin_mark = expected_->form.begin, &end_mark = expected_->form.end;
  Found found;
  // Where a call's end may begin that was not there before: long ones come in many pieces.
  std::size_t fresh = held_.size() - std::min(held_.size(), std::max<std::size_t>(end_mark.size(), 1) - 1);
  held_ += more;
  const auto tell = [&](std::size_t bytes, std::size_t drop) {
    found.text.append(held_, 0, bytes);
    held_.erase(0, drop);
    fresh = 0;
    has_begun_ = has_begun_ || drop > 0;
  };
  for (std::size_t begin; (begin = find_begin()) != held_.npos;) {
    const std::size_t inner = begin + begin_mark.size();
    const std::size_t end = end_mark.empty()
                                ? held_.size()
                                : std::min(held_.find(end_mark, std::max(inner, fresh)), held_.size());
    if (end == held_.size() && !ends) {
      const std::size_t before = without_blanks(std::string_view(held_).substr(0, begin));
      tell(before, before);
      return found;
    }
    const std::size_t after = std::min(end + end_mark.size(), held_.size());
    const bool is_call = read_section(std::string_view(held_).substr(inner, end - inner), found);
    // What only speaks of calls does not take along the one behind it, to which the end belongs.
    if (const std::size_t last = begin_mark.empty() ? begin : held_.rfind(begin_mark, end);
        !is_call && last > begin) {
      const std::size_t before = without_blanks(std::string_view(held_).substr(0, last));
      tell(before, before);
      continue;
    }
    tell(is_call ? without_blanks(std::string_view(held_).substr(0, begin)) : after, after);
  }
  const std::size_t done = ends && !any() ? held_.size() : certain(held_, begin_mark);
  tell(done, done);
  if (ends && without_blanks(held_) > 0) tell(held_.size(), held_.size());  // a call that was only begun
  return found;
}

bool ToolCalls::read_section(std::string_view section, Found& found) {
  std::vector<ToolCall> calls = read_calls(expected_->form, section, expected_->tools);
  // Where nothing marks calls, an object that an answer consists of is one only if it names a function; and where
  // nothing stands behind names, a word is one only if it is a name.
  const CallForm& form = expected_->form;
  const bool must_be_offered = expected_->only_tools || form.begin.empty() ||
                               (form.kind == CallForm::Kind::kParameters && form.after_name.empty());
  const auto is_offered = [&](const ToolCall& call) {
    return std::ranges::any_of(expected_->tools, [&](const Json& tool) {
      const auto function = tool.find("function");
      return function != tool.end() && function->is_object() && function->value("name", Json()) == call.name;
    });
  };
  if (calls.empty() || (must_be_offered && !std::ranges::all_of(calls, is_offered))) return false;
  for (ToolCall& call : calls) {
    if (count_ == expected_->most) break;
    found.calls.push_back(std::move(call));
    ++count_;
  }
  return true;
}

}  // namespace ark::text
