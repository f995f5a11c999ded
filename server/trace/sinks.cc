#include "server/trace/sinks.h"

#include "server/trace/collector.h"
#include "server/trace/files.h"

namespace ark::trace {
namespace {

constexpr std::chrono::milliseconds kLinger{200};

}  // namespace

Sinks::Sinks(const SinkOptions& options) {
  if (!options.folder.empty()) {
    const auto files = std::make_shared<TraceFiles>(options.folder, options.slower_than);
    outboxes_.push_back(std::make_unique<Outbox>(
        [files](const auto& records, const auto&) { return files->write(records); }, kLinger));
  }
  if (!options.collector.empty()) {
    const auto collector = std::make_shared<Collector>(options.collector);
    outboxes_.push_back(std::make_unique<Outbox>(
        [collector](const auto& records, const auto& stop) { return collector->send(records, stop); },
        kLinger));
  }
}

void Sinks::put(const RecordPtr& record) const {
  for (const auto& outbox : outboxes_) outbox->put(record);
}

int64_t Sinks::dropped() const {
  int64_t sum = 0;
  for (const auto& outbox : outboxes_) sum += outbox->dropped();
  return sum;
}

}  // namespace ark::trace
