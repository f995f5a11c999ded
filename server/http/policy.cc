#include "server/http/policy.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace ark::http {
namespace {

// Of "Name:port" or "[::1]:port", in small letters.
std::string name_of(std::string_view host) {
  const std::size_t end = host.starts_with('[') ? host.find(']') + 1 : host.find(':');
  std::string name(host.substr(0, end));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

bool is_ours(const Policy& policy, std::string_view host) {
  const std::string name = name_of(host);
  const std::string_view port = host.substr(name.size());
  if (!port.empty() && (port[0] != ':' || port.size() > 6 ||
                        port.find_first_not_of("0123456789", 1) != std::string_view::npos))
    return false;
  return name == "localhost" || name == "127.0.0.1" || name == "[::1]" ||
         std::any_of(policy.hosts.begin(), policy.hosts.end(),
                     [&](const std::string& given) { return name_of(given) == name; });
}

bool may_read(const Policy& policy, const std::string& origin) {
  return !origin.empty() && (contains(policy.origins, origin) || contains(policy.origins, "*"));
}

}  // namespace

void check_names(const Policy& policy, const Head& head) {
  if (!policy.check_names) return;
  if (!is_ours(policy, head.host) && !(head.host.empty() && head.http_1_0))
    throw HttpError(
        403,
        "the host " + escaped(head.host, 100) +
            " is none of this server's names: localhost, 127.0.0.1, [::1], and what --allowed-hosts adds",
        "", "host_not_allowed");
  const std::size_t scheme = head.origin.find("://");
  if (head.origin.empty() || may_read(policy, head.origin) ||
      (scheme != std::string::npos && is_ours(policy, std::string_view(head.origin).substr(scheme + 3))))
    return;
  throw HttpError(403,
                  "the page " + escaped(head.origin, 100) +
                      " may not use this server; --cors-origins names those that may",
                  "", "origin_not_allowed");
}

bool is_preflight(const Head& head) {
  return head.method == "OPTIONS" && !head.origin.empty() && !head.preflight_method.empty();
}

bool is_origin(std::string_view text) {
  const std::size_t colon = std::min(text.find("://"), text.size());
  const std::string_view scheme = text.substr(0, colon), host = text.substr(std::min(colon + 3, text.size()));
  const auto is_of_scheme = [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '+' || c == '-' || c == '.';
  };
  const auto is_of_none = [](unsigned char c) {
    return c <= ' ' || c >= 0x7F || std::isupper(c) ||
           std::string_view("/?#@*\\").find(c) != std::string_view::npos;
  };
  const bool has_usual_port =
      (scheme == "http" && host.ends_with(":80")) || (scheme == "https" && host.ends_with(":443"));
  return !scheme.empty() && std::ranges::all_of(scheme, is_of_scheme) && !host.empty() &&
         std::ranges::none_of(host, is_of_none) && !has_usual_port;
}

HeaderList cors_headers(const Policy& policy, const Head& head) {
  if (!may_read(policy, head.origin)) return {};
  HeaderList headers = {{"Access-Control-Allow-Origin", head.origin},
                        {"Access-Control-Expose-Headers", "x-request-id, Retry-After"},
                        {"Vary", "Origin"}};
  if (!is_preflight(head)) return headers;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  headers.emplace_back("Access-Control-Allow-Headers", head.preflight_headers.empty()
                                                           ? "Authorization, Content-Type"
                                                           : head.preflight_headers);
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

}  // namespace ark::http
