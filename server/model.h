// A model that is loaded: what the load path hands to whoever serves or runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ark {

class StepRunner;
namespace schedule {
class PageSource;
struct PageTraffic;
}  // namespace schedule
namespace text {
struct ModelText;
}

struct ServedModel {
  std::string name;                                     // what requests call it, and what answers say
  std::vector<std::string> aliases;                     // further names that requests may use
  std::shared_ptr<StepRunner> runner;                   // never null
  std::shared_ptr<StepRunner> draft_runner;             // of a smaller model that guesses for it; may be null
  std::shared_ptr<schedule::PageTraffic> page_traffic;  // never null where the model is served
  std::shared_ptr<schedule::PageSource> neighbours;     // that have pages of it (--kv-peers); may be null
  std::string page_identity;                    // of what changes a page's bytes; "" without neighbours
  std::shared_ptr<const text::ModelText> text;  // never null; without a tokenizer: token ids only
  std::vector<int32_t> end_ids;                 // tokens that end a text, unless ignore_eos
  std::string fingerprint;                      // of the files and ark's version: equal ones answer alike
  double load_seconds = 0;
};

}  // namespace ark
