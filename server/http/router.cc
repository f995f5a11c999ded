#include "server/http/router.h"

#include <optional>

namespace ark::http {
namespace {

std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  const std::size_t hole = pattern.find('{');
  if (hole == std::string_view::npos) {
    if (pattern != path) return std::nullopt;
    return std::vector<std::string>{};
  }
  if (!path.starts_with(pattern.substr(0, hole)) || path.size() == hole) return std::nullopt;
  return std::vector{std::string(path.substr(hole))};
}

}  // namespace

Router::Match Router::find(std::string_view method, std::string_view path) const {
  Match found;
  for (const Route& route : routes_) {
    auto captures = match(route.path, path);
    if (!captures) continue;
    found.allowed +=
        (found.allowed.empty() ? "" : ", ") + route.method + (route.method == "GET" ? ", HEAD" : "");
    if (route.method != method && !(route.method == "GET" && method == "HEAD")) continue;
    found.route = &route;
    found.captures = std::move(*captures);
  }
  return found;
}

std::string Router::meant_by(std::string_view path) const {
  while (path.ends_with('/')) path.remove_suffix(1);
  std::string longest;
  for (const Route& route : routes_)
    if (path.ends_with(route.path.substr(route.path.starts_with("/v1/") ? 3 : 0)) &&
        route.path.size() > longest.size())
      longest = route.path;
  return longest;
}

}  // namespace ark::http
