#include "server/trace/slowest.h"

#include <algorithm>
#include <utility>

namespace ark::trace {
namespace {

int64_t minute_of(Slowest::Clock::time_point time) {
  return std::chrono::floor<std::chrono::minutes>(time.time_since_epoch()).count();
}

auto slower(By by) {
  return [by](const RecordPtr& a, const RecordPtr& b) { return slowness(*a, by) > slowness(*b, by); };
}

}  // namespace

int64_t slowness(const schedule::Record& record, By by) {
  return by == By::kTotal ? record.total_ns() : by == By::kPause ? record.pause_ns : record.first_ns();
}

const schedule::Shares& shares_of(const schedule::Record& record, By by) {
  return by == By::kTotal ? record.total : by == By::kPause ? record.pause : record.to_first;
}

void Slowest::add(const RecordPtr& record, Clock::time_point now) {
  const int64_t number = minute_of(now);
  std::vector<RecordPtr> gone;  // freed without the lock
  std::lock_guard lock(mutex_);
  Minute& minute = minutes_[static_cast<std::size_t>(number) % minutes_.size()];
  if (minute.number != number) {
    for (auto& records : minute.records) {
      gone.insert(gone.end(), records.begin(), records.end());
      records.clear();
    }
    minute.number = number;
  }
  for (const By by : {By::kTotal, By::kFirstToken, By::kPause}) {
    auto& records = minute.records[static_cast<std::size_t>(by)];
    const auto is_its = [&](const RecordPtr& other) { return other->origin.number == record->origin.number; };
    if (const auto other = std::ranges::find_if(records, is_its); other != records.end()) {
      if (slowness(*record, by) <= slowness(**other, by)) continue;
      gone.push_back(std::exchange(*other, record));
      std::ranges::make_heap(records, slower(by));
      continue;
    }
    if (records.size() == kEach) {
      if (slowness(*record, by) <= slowness(*records.front(), by)) continue;
      std::ranges::pop_heap(records, slower(by));
      gone.push_back(std::move(records.back()));
      records.pop_back();
    }
    records.push_back(record);
    std::ranges::push_heap(records, slower(by));
  }
}

std::vector<RecordPtr> Slowest::find(By by, int64_t minutes, std::size_t count, std::string_view id,
                                     Clock::time_point now) const {
  std::vector<RecordPtr> found;
  const Clock::time_point since = now - std::chrono::minutes(minutes);
  {
    std::lock_guard lock(mutex_);
    for (const Minute& minute : minutes_)
      for (const RecordPtr& record : minute.records[static_cast<std::size_t>(by)])
        if (record->last_byte >= since && record->origin.id.starts_with(id)) found.push_back(record);
  }
  std::ranges::stable_sort(found, slower(by));
  found.resize(std::min(found.size(), count));
  return found;
}

}  // namespace ark::trace
