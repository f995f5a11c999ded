#include "server/session/model.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace ark::session {

Model::Model(ServedModel given, schedule::SchedulerOptions scheduling, schedule::RecordSink also)
    : served(std::move(given)),
      created(std::time(nullptr)),
      options(scheduling),
      grammars(std::make_unique<Grammars>(tokenizer())),
      scheduler(std::make_unique<schedule::Scheduler>(
          *served.runner, scheduling,
          [slowest = slowest, also = std::move(also)](trace::RecordPtr record) {
            slowest->add(record);
            if (also) also(std::move(record));
          },
          served.draft_runner.get(), served.neighbours.get())) {
  if (!served.page_traffic) served.page_traffic = std::make_shared<schedule::PageTraffic>();
}

bool Model::is_called(const std::string& name) const {
  return name == served.name || std::ranges::find(served.aliases, name) != served.aliases.end();
}

const text::Tokenizer* Model::tokenizer() const {
  return served.text->tokenizer ? &*served.text->tokenizer : nullptr;
}

}  // namespace ark::session
