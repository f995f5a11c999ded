// GET /debug/slow: the slowest requests of the last minutes, and who took their time.
#include <algorithm>

#include "server/api/endpoints.h"
#include "server/api/schema.h"
#include "server/trace/report.h"

namespace ark::api {
namespace {

using trace::By, trace::RecordPtr, trace::Slowest;

constexpr int64_t kMost = 100;

Json by_schema(const Limits&) {
  Json schema = one_of({"total", "first_token", "pause"});
  schema["description"] =
      "What of a request is slow: all of it, its first token, or its longest pause between two.";
  schema["default"] = "total";
  return schema;
}
constexpr OtherField kBy{"by", by_schema};
constexpr IntegerField kCount{"n", 1, kMost, "Requests, the slowest first."};
constexpr IntegerField kSince{"minutes", 1, Slowest::kMinutes, "Of those that ended in so many minutes."};
constexpr TextField kId{"id", "What their ids (x-request-id) begin with.", false};

std::vector<Field> query_fields() { return {kBy, kCount, kSince, kId}; }

By order_of(const Fields& fields) {
  const std::string name = fields.string(kBy.name).value_or("total");
  if (name == "total") return By::kTotal;
  if (name == "first_token") return By::kFirstToken;
  if (name == "pause") return By::kPause;
  fields.fail(kBy.name, "must be total, first_token or pause");
}

http::Response slow(Service& service, http::Request& request) {
  if (!service.may_debug)
    throw http::HttpError(
        403, "/debug tells of all requests: it answers on a loopback address, or with --api-key-file", "",
        "debug_is_off");
  const Json query = parse_query(request.query, query_fields());
  const Fields fields(query);
  const By by = order_of(fields);
  const auto count = static_cast<std::size_t>(fields.get(kCount).value_or(10));
  const int64_t minutes = fields.get(kSince).value_or(5);
  const std::string id = fields.get(kId).value_or("");
  std::vector<RecordPtr> found;
  for (const auto& model : service.models()) {
    const auto own = model->slowest->find(by, minutes, count, id);
    found.insert(found.end(), own.begin(), own.end());
  }
  std::ranges::stable_sort(found, std::greater(),
                           [by](const RecordPtr& r) { return trace::slowness(*r, by); });
  found.resize(std::min(found.size(), count));
  Json requests = Json::array();
  for (const RecordPtr& record : found) requests.push_back(trace::report_of(*record));
  return json_response({{"requests", std::move(requests)}});
}

Json blame_schema(const Limits&) {
  Json causes = type("object");
  causes["description"] = "Milliseconds by cause; they sum up to ms.";
  causes["additionalProperties"] = type("number");
  return object(
      {{"ms", type("number")},
       {"cause", text("Who took it, of others; the request's own work where no other took a tenth.")},
       {"cause_ms", type("number")},
       {"about", text("What that cause means.")},
       {"rank", type("integer")},
       {"begin_ms", type("number")},
       {"causes", std::move(causes)}},
      {"ms", "causes"});
}

Json phase_schema(const Limits&) {
  return object({{"phase", one_of({"queue", "prompt", "stream", "send"})},
                 {"begin_ms", type("number")},
                 {"ms", type("number")},
                 {"steps", type("integer")},
                 {"tokens", type("integer")},
                 {"prompt_tokens_beside", type("integer")},
                 {"drafts", type("integer")},
                 {"most_streams", type("integer")},
                 {"causes", type("object")}},
                {"phase", "begin_ms", "ms", "causes"});
}

Json request_schema(const Limits&) {
  return object({{"id", type("string")},
                 {"model", type("string")},
                 {"outcome", one_of({"stop", "length", "cancelled", "failed"})},
                 {"trace_id", type("string")},
                 {"prompt_tokens", type("integer")},
                 {"cached_tokens", type("integer")},
                 {"generated_tokens", type("integer")},
                 {"preemptions", type("integer")},
                 {"unsent_ms", type("number")},
                 {"total", reference("Blame")},
                 {"first_token", reference("Blame")},
                 {"longest_pause", reference("Blame")},
                 {"timeline", list(reference("RequestPhase"))}},
                {"id", "model", "outcome", "total", "timeline"});
}

Json slow_schema(const Limits&) {
  return object({{"requests", list(reference("SlowRequest"))}}, {"requests"});
}

}  // namespace

std::vector<Endpoint> debug() {
  return {{.method = "GET",
           .path = "/debug/slow",
           .id = "slowRequests",
           .summary = "The slowest requests of the last minutes, and what took their time.",
           .handle = slow,
           .answer = {{"SlowRequests", slow_schema},
                      {"SlowRequest", request_schema},
                      {"RequestPhase", phase_schema},
                      {"Blame", blame_schema}},
           .query = query_fields()}};
}

}  // namespace ark::api
