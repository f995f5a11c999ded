#include "server/trace/report.h"

#include <cmath>

#include "server/json.h"

namespace ark::trace {
namespace {

using schedule::Cause, schedule::Record, schedule::Shares, schedule::Span;

double milliseconds(int64_t ns) { return std::round(static_cast<double>(ns) / 1e3) / 1e3; }

Json causes_of(const Shares& shares) {
  Json causes = Json::object();
  for (std::size_t i = 0; i < schedule::kCauses; ++i)
    if (shares.ns[i] >= 1000) causes[text_of(static_cast<Cause>(i)).name] = milliseconds(shares.ns[i]);
  return causes;
}

// The rank that the cause is about.
void add_rank(Json& json, const Record& record, const Shares& shares) {
  const Cause cause = named(shares);
  const int32_t rank = cause == Cause::kLostCore   ? record.lost_rank
                       : cause == Cause::kLateRank ? record.late_rank
                                                   : -1;
  if (rank >= 0) json["rank"] = rank;
}

Json phase_of(const Span& span) {
  Json json = {{"phase", name_of(span.phase)},
               {"begin_ms", milliseconds(span.begin_ns)},
               {"ms", milliseconds(span.end_ns - span.begin_ns)}};
  if (span.steps > 0) {
    json.update({{"steps", span.steps},
                 {"tokens", span.tokens},
                 {"prompt_tokens_beside", span.prompts_beside},
                 {"drafts", span.drafts},
                 {"most_streams", span.most_streams}});
  }
  json["causes"] = causes_of(span.shares);
  return json;
}

}  // namespace

Json report_of(const Shares& shares) {
  Json json = {{"ms", milliseconds(shares.sum())}};
  if (shares.sum() > 0) {
    const Cause cause = named(shares);
    json.update({{"cause", text_of(cause).name},
                 {"cause_ms", milliseconds(shares[cause])},
                 {"about", text_of(cause).about}});
  }
  json["causes"] = causes_of(shares);
  return json;
}

Json report_of(const Record& record) {
  Json json = {{"id", record.origin.id}, {"model", record.origin.model}, {"outcome", record.outcome}};
  if (!record.origin.trace_id.empty()) json["trace_id"] = record.origin.trace_id;
  json.update({{"prompt_tokens", record.prompt_tokens},
               {"cached_tokens", record.cached_tokens},
               {"generated_tokens", record.generated},
               {"preemptions", record.preemptions},
               {"unsent_ms", milliseconds(record.blocked_ns)},
               {"total", report_of(record.total)}});
  add_rank(json["total"], record, record.total);
  if (record.generated > 0) {
    json["first_token"] = report_of(record.to_first);
    add_rank(json["first_token"], record, record.to_first);
  }
  if (record.pause_ns > 0) {
    json["longest_pause"] = report_of(record.pause);
    json["longest_pause"]["begin_ms"] = milliseconds(record.pause_at_ns);
    add_rank(json["longest_pause"], record, record.pause);
  }
  json["timeline"] = Json::array();
  for (const Span& span : record.spans) json["timeline"].push_back(phase_of(span));
  return json;
}

}  // namespace ark::trace
