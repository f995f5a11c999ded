#include "server/trace/spans.h"

#include <cstdio>
#include <string>
#include <string_view>

#include "server/json.h"
#include "server/version.h"

namespace ark::trace {
namespace {

using schedule::Cause, schedule::Phase, schedule::Record, schedule::Span;

constexpr int kInternal = 1, kServer = 2;  // SpanKind
constexpr int kOk = 1, kError = 2;         // Status.StatusCode

using Random = std::function<uint64_t()>;

std::string hexadecimal(uint64_t bits) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(bits));
  return text;
}

// An id of zeros is none.
std::string new_id(const Random& random) { return hexadecimal(random() | 1); }

Json attribute(std::string_view key, std::string_view text) {
  return {{"key", key}, {"value", {{"stringValue", text}}}};
}
Json attribute(std::string_view key, int64_t number) {  // 64 bits: as a string, by protobuf's JSON
  return {{"key", key}, {"value", {{"intValue", std::to_string(number)}}}};
}
Json attribute(std::string_view key, double number) {
  return {{"key", key}, {"value", {{"doubleValue", number}}}};
}

Json attributes_of(const Record& record) {
  Json all = Json::array({attribute("gen_ai.operation.name", std::string_view("text_completion")),
                          attribute("gen_ai.request.model", record.origin.model),
                          attribute("gen_ai.usage.input_tokens", int64_t{record.prompt_tokens}),
                          attribute("gen_ai.usage.output_tokens", int64_t{record.generated}),
                          attribute("ark.request.id", record.origin.id),
                          attribute("ark.outcome", std::string_view(record.outcome)),
                          attribute("ark.cached_tokens", int64_t{record.cached_tokens}),
                          attribute("ark.preemptions", int64_t{record.preemptions}),
                          attribute("ark.cause", std::string_view(text_of(named(record.total)).name))});
  if (record.generated > 0)
    all.push_back(
        attribute("gen_ai.server.time_to_first_token", static_cast<double>(record.first_ns()) / 1e9));
  for (std::size_t i = 0; i < schedule::kCauses; ++i)
    if (record.total.ns[i] > 0)
      all.push_back(attribute(std::string("ark.ms.") + text_of(static_cast<Cause>(i)).name,
                              static_cast<double>(record.total.ns[i]) / 1e6));
  return all;
}

class Spans {
 public:
  Spans(const Record& record, int64_t unix_ns, const Random& random)
      : record_(record),
        begin_ns_(unix_ns + std::chrono::nanoseconds(record.queued.time_since_epoch()).count()),
        random_(random),
        trace_(record.origin.trace_id.empty() ? new_id(random) + new_id(random) : record.origin.trace_id),
        root_(new_id(random)) {}

  void add_to(Json& spans) const {
    Json root = span(root_, "generate", kServer, 0, record_.total_ns());
    if (!record_.origin.parent_id.empty()) root["parentSpanId"] = record_.origin.parent_id;
    root["attributes"] = attributes_of(record_);
    const bool failed = std::string_view(record_.outcome) == "failed";
    root["status"] = {{"code", failed ? kError : kOk}};
    spans.push_back(std::move(root));
    // Neighbours of one phase are one span.
    const Span* first = nullptr;
    const Span* last = nullptr;
    for (const Span& s : record_.spans) {
      if (first && first->phase != s.phase) add_phase(spans, *first, *std::exchange(last, nullptr));
      if (!last) first = &s;
      last = &s;
    }
    if (last) add_phase(spans, *first, *last);
  }

 private:
  void add_phase(Json& spans, const Span& first, const Span& last) const {
    Json phase = span(new_id(random_), name_of(first.phase), kInternal, first.begin_ns, last.end_ns);
    phase["parentSpanId"] = root_;
    spans.push_back(std::move(phase));
  }
  Json span(const std::string& id, const char* name, int kind, int64_t begin_ns, int64_t end_ns) const {
    return {{"traceId", trace_},
            {"spanId", id},
            {"name", name},
            {"kind", kind},
            {"startTimeUnixNano", std::to_string(begin_ns_ + begin_ns)},
            {"endTimeUnixNano", std::to_string(begin_ns_ + end_ns)}};
  }

  const Record& record_;
  const int64_t begin_ns_;  // Unix time
  const Random& random_;
  const std::string trace_, root_;
};

}  // namespace

Json spans_of(const std::vector<RecordPtr>& records, int64_t unix_ns, const Random& random) {
  Json spans = Json::array();
  for (const RecordPtr& record : records) Spans(*record, unix_ns, random).add_to(spans);
  Json resource = {{"attributes", Json::array({attribute("service.name", std::string_view("ark")),
                                               attribute("service.version", std::string_view(kVersion))})}};
  Json scope = {{"scope", {{"name", "ark"}, {"version", kVersion}}}, {"spans", std::move(spans)}};
  return {{"resourceSpans", Json::array({Json{{"resource", std::move(resource)},
                                              {"scopeSpans", Json::array({std::move(scope)})}}})}};
}

}  // namespace ark::trace
