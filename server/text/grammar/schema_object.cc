#include "server/text/grammar/schema_object.h"

#include <algorithm>
#include <map>

namespace ark::text::grammar {
namespace {

// Two rules for each member and count so far: what may come where its name could begin, and behind it. They end with
// each other, so nothing is pushed.
class ObjectRules {
 public:
  ObjectRules(const ObjectForm& form, JsonText& json, Rules& rules, Budget& budget)
      : form_(form), json_(json), rules_(rules), budget_(budget) {
    std::vector<std::string> names;
    for (const ObjectForm::Member& member : form.members) names.push_back(member.name);
    if (form.additional)
      additional_ =
          json.member(names.empty() ? json.any_string() : json.string_other_than(names), form.additional);
    last_required_ = form.members.size();
    while (last_required_ > 0 && !form.members[last_required_ - 1].is_required) --last_required_;
    counted_ = form.max_count != kUnbounded ? form.max_count : form.min_count;
  }

  ExpressionPtr expression() {
    std::vector<ExpressionPtr> ways{name_at(0, 0)};
    if (may_close(0, 0)) ways.push_back(text("}"));
    while (!todo_.empty()) {
      const Place place = todo_.back();
      todo_.pop_back();
      write(place);
    }
    return sequence({text("{"), json_.blank(), choice(std::move(ways))});
  }

 private:
  struct Place {
    std::size_t member;
    std::uint32_t count;
    bool is_behind;  // a value, not where a name may begin
    auto operator<=>(const Place&) const = default;
  };

  bool may_close(std::size_t member, std::uint32_t count) const {
    return member >= last_required_ && count >= form_.min_count;
  }
  ExpressionPtr name_at(std::size_t member, std::uint32_t count) { return at({member, count, false}); }
  ExpressionPtr behind(std::size_t member, std::uint32_t count) {
    return at({member, std::min(count + 1, counted_), true});
  }
  ExpressionPtr at(const Place& place) {
    const auto [found, is_new] = known_.try_emplace(place, 0);
    if (is_new) {
      budget_.charge_bytes(sizeof(Expression));
      found->second = rules_.declare();
      todo_.push_back(place);
    }
    return reference(found->second);
  }

  void write(const Place& place) {
    rules_.define(known_.at(place), place.is_behind ? end_or_comma(place) : next_name(place));
  }

  ExpressionPtr end_or_comma(const Place& place) {
    std::vector<ExpressionPtr> ways;
    if (may_close(place.member, place.count)) ways.push_back(sequence({json_.blank(), text("}")}));
    if (form_.max_count == kUnbounded || place.count < form_.max_count)
      ways.push_back(sequence({json_.comma(), name_at(place.member, place.count)}));
    return choice(std::move(ways));
  }

  ExpressionPtr next_name(const Place& place) {
    const std::uint32_t count = place.count;
    if (form_.max_count != kUnbounded && count >= form_.max_count) return choice({});
    if (place.member == form_.members.size())
      return additional_ ? sequence({additional_, behind(place.member, count)}) : choice({});
    const ObjectForm::Member& member = form_.members[place.member];
    std::vector<ExpressionPtr> ways;
    if (member.value)
      ways.push_back(sequence(
          {json_.member(text(json_string(member.name)), member.value), behind(place.member + 1, count)}));
    if (!member.is_required) ways.push_back(name_at(place.member + 1, count));
    return choice(std::move(ways));
  }

  const ObjectForm& form_;
  JsonText& json_;
  Rules& rules_;
  Budget& budget_;
  ExpressionPtr additional_;
  std::size_t last_required_ = 0;  // one past it
  std::uint32_t counted_ = 0;      // further counts are one
  std::map<Place, RuleId> known_;
  std::vector<Place> todo_;
};

}  // namespace

ExpressionPtr object_of(const ObjectForm& form, JsonText& json, Rules& rules, Budget& budget) {
  return ObjectRules(form, json, rules, budget).expression();
}

}  // namespace ark::text::grammar
