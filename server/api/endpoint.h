// What a route is made of: the handler, and what /openapi.json says about it.
#pragma once

#include <vector>

#include "server/api/fields.h"
#include "server/api/service.h"
#include "server/http/router.h"

namespace ark::api {

// A component of the document, which references name.
struct Schema {
  const char* name;
  Json (*make)(const Limits&);
};

struct Endpoint {
  const char *method, *path;  // as http::Route has them
  const char *id, *summary;   // the operation's
  http::Response (*handle)(Service&, http::Request&);
  // Of a 200's JSON body; none: plain text. More than one: it refers to the others.
  std::vector<Schema> answer = {};
  std::vector<Schema> request = {};  // of a POST's body, likewise
  std::vector<Field> query = {};     // of a GET's target
  bool streams = false;              // may answer with server-sent events
  bool is_public = false;            // needs no API key
  bool is_probe = false;  // asked every few seconds by machines: the log has it at level debug only
};

// Any JSON value as the whole answer.
http::Response json_response(const Json& json);

}  // namespace ark::api
