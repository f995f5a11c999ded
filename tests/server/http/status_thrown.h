// The status with which something is refused.
#pragma once

#include "server/http/message.h"

namespace ark::http {

// Of the HttpError that `act` throws, a copy of which goes into `error`; 200 without one.
template <typename Act>
int status_thrown(const Act& act, HttpError* error = nullptr) {
  try {
    act();
  } catch (const HttpError& e) {
    if (error) *error = e;
    return e.status;
  }
  return 200;
}

}  // namespace ark::http
