#include "server/session/model.h"

#include <algorithm>
#include <ctime>

namespace ark::session {

Model::Model(ServedModel given, schedule::SchedulerOptions scheduling)
    : served(std::move(given)),
      created(std::time(nullptr)),
      options(scheduling),
      scheduler(
          std::make_unique<schedule::Scheduler>(*served.runner, scheduling, served.draft_runner.get())) {}

bool Model::is_called(const std::string& name) const {
  return name == served.name || std::ranges::find(served.aliases, name) != served.aliases.end();
}

const text::Tokenizer* Model::tokenizer() const {
  return served.text->tokenizer ? &*served.text->tokenizer : nullptr;
}

}  // namespace ark::session
