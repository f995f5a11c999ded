// OpenAI's error envelope: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <string>

#include "base/error.h"
#include "server/http/message.h"

namespace ark::http {

// The JSON text of the envelope, on one line.
std::string envelope(int status, const std::string& message, const std::string& param,
                     const std::string& code);

Response error_response(const HttpError& error);
// The status and code that an Error means to a client; 429 and 503 carry Retry-After.
HttpError as_http_error(const Error& error);
// What is being handled, as the client is told it: lack of memory is 503; what is our bug goes into the log, with this
// id, and not to the client. In a handler only.
HttpError failure_of_request(const std::string& id);

}  // namespace ark::http
