#include "server/text/post_processor.h"

#include "base/error.h"
#include "server/text/vocabulary.h"

namespace ark::text {
namespace {

constexpr std::size_t kMaxAdded = 1024;  // tokens that a template may add

// BERT's and RoBERTa's: ["[SEP]", 102].
std::int32_t named_id(const JsonView& json) {
  if (json.array().size() != 2) json.fail("expected a token and its id");
  return Vocabulary::checked_id(json.at(1));
}

}  // namespace

PostProcessor::PostProcessor(const JsonView& json) { parse(json, 0); }

void PostProcessor::apply(std::vector<std::int32_t>& ids) const {
  ids.insert(ids.begin(), before_.begin(), before_.end());
  ids.insert(ids.end(), after_.begin(), after_.end());
}

void PostProcessor::parse(const JsonView& json, int depth) {
  if (json.is_null()) return;
  const std::string& type = json.at("type").string();
  if (type == "ByteLevel") return;  // changes offsets only
  if (type == "TemplateProcessing") return parse_template(json);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return wrap({named_id(json.at("cls"))}, {named_id(json.at("sep"))});
  if (type != "Sequence") json.unsupported("post-processor " + escaped(type, 60) + " is not supported");
  for (const JsonView& part : parts_of(json.at("processors"), depth)) parse(part, depth + 1);
}

void PostProcessor::parse_template(const JsonView& json) {
  const JsonView pieces = json.at("single").array();
  std::vector<std::int32_t> before, after;
  bool text_seen = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const JsonView piece = pieces.at(i);
    if (const JsonView sequence = piece.at("Sequence"); !sequence.is_null()) {
      if (text_seen || sequence.at("id").string() != "A")
        sequence.unsupported("a template must hold the text once");
      text_seen = true;
      continue;
    }
    const JsonView name = piece.at("SpecialToken").at("id");
    const JsonView ids = json.at("special_tokens").at(name.string()).at("ids").array();
    for (std::size_t k = 0; k < ids.size(); ++k)
      (text_seen ? after : before).push_back(Vocabulary::checked_id(ids.at(k)));
  }
  if (!text_seen) pieces.unsupported("a template must hold the text once");
  wrap(std::move(before), after);
  if (before_.size() + after_.size() > kMaxAdded)
    pieces.fail("the template adds more than " + std::to_string(kMaxAdded) + " tokens");
}

void PostProcessor::wrap(std::vector<std::int32_t> before, const std::vector<std::int32_t>& after) {
  before.insert(before.end(), before_.begin(), before_.end());
  before_ = std::move(before);
  after_.insert(after_.end(), after.begin(), after.end());
}

}  // namespace ark::text
