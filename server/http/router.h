// Which handler answers which method and path.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace ark::http {

struct Route {
  std::string method;  // "GET" (also answers HEAD) or "POST"
  // "/v1/models/{model}": {...} stands for one or more characters, also slashes, at the end
  std::string path;
  Handler handler;
  bool is_public = false;  // needs no API key
  bool is_probe = false;   // asked every few seconds by machines
};

class Router {
 public:
  void add(Route route) { routes_.push_back(std::move(route)); }

  struct Match {
    const Route* route = nullptr;  // null: nothing answers this method here
    std::vector<std::string> captures;
    std::string allowed;  // methods that this path answers, "GET, HEAD"; "" for an unknown path
  };
  Match find(std::string_view method, std::string_view path) const;

  // The path that an unknown one may mean, whose client has another base URL: /v1/models for /models, /v1/v1/models or
  // /v1/models/; "" where none is near.
  std::string meant_by(std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace ark::http
