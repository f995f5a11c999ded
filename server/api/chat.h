// A conversation answered: what /v1/chat/completions and /v1/responses share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/job.h"
#include "server/text/tool_calls.h"

namespace ark::api {

class ChatJob : public Job {
 public:
  // `kind`: what answers' ids begin with. Throws HttpError 400.
  ChatJob(Model& m, Parameters p, const Fields& fields, const std::string& request_id,
          const char* kind = "chatcmpl-");
  void begin();
  int64_t prompt_tokens() const override { return static_cast<int64_t>(prompt_.size()); }

 protected:
  Json head(bool is_chunk) const override;
  std::vector<Json> news(std::size_t index, session::Piece piece) override;
  void add(std::size_t index, session::Piece piece) override;
  Json choices() override;

 private:
  struct Answer {
    session::Piece all;
    bool begun = false;  // the stream has said the role
    text::ToolCalls calls;
    std::string id;  // calls' begin so
    int32_t told = 0;
  };
  void read_logprobs(const Fields& fields);
  void read_length(const Fields& fields);
  void expect_calls(const Fields& fields);
  const text::CallForm& own_form(const Fields& fields) const;
  // As streams have them; of whole answers without the index.
  static Json told(Answer& by, const std::vector<text::ToolCall>& calls, bool streams);
  Json choice_of(std::size_t index, const char* what, Json content, const session::Piece& piece);

  std::vector<int32_t> prompt_;
  int64_t max_tokens_ = 0;
  int32_t top_ = -1;  // -1: no log-probabilities
  bool reads_calls_ = false;
  text::ToolCalls::Expected calls_;
  std::vector<Answer> answers_;  // a sequence each
};

}  // namespace ark::api
