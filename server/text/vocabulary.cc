#include "server/text/vocabulary.h"

namespace ark::text {

void Vocabulary::add(std::string_view token, std::int32_t id) {
  const auto entry = ids_.insert_or_assign(std::string(token), id).first;
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1, nullptr);
  tokens_[index] = &entry->first;
}

void Vocabulary::add_all(const JsonView& object) {
  object.object();
  reserve(object.size());
  object.each([&](const std::string& token, const JsonView& id) { add(token, checked_id(id)); });
}

}  // namespace ark::text
