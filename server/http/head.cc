#include "server/http/head.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/percent.h"

namespace ark::http {
namespace {

// Fields that may stand in a head once: readers disagree about which of two counts.
constexpr std::string_view kOnce[] = {"host", "authorization", "content-type", "content-encoding", "origin"};

[[noreturn]] void refuse(const std::string& message, int status = 400) { throw HttpError(status, message); }

bool is_token_char(unsigned char c) {
  return std::isalnum(c) ||
         std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(c)) != std::string_view::npos;
}
bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return is_token_char(static_cast<unsigned char>(c)); });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

void parse_request_line(std::string_view line, const HeadLimits& limits, Head& head) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    refuse("the request line is not METHOD TARGET VERSION");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1),
                         version = line.substr(last + 1);
  if (!is_token(method)) refuse("the request's method is malformed");
  if (target.size() > limits.target)
    refuse("the request's target is longer than " + std::to_string(limits.target) + " bytes", 414);
  if (target.empty() ||
      !std::all_of(target.begin(), target.end(), [](char c) { return c > ' ' && c < 0x7F; }))
    refuse("the request's target holds characters that must be percent-encoded");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") refuse("the HTTP version is neither 1.1 nor 1.0");
  head.method = method;
  head.target = target;
  head.http_1_0 = version == "HTTP/1.0";
  head.keep_alive = !head.http_1_0;
  const std::string start = lower(target.substr(0, 8));
  if (start.starts_with("http://") || start == "https://") {  // absolute form, as proxies send it
    const std::size_t name = start.find("//") + 2,
                      rest = std::min(target.find_first_of("/?#", name), target.size());
    head.host = target.substr(name, rest - name);
    head.target = target.substr(rest);
    if (!head.target.starts_with('/')) head.target.insert(0, 1, '/');
  }
  if (head.target[0] != '/' && !(head.target == "*" && head.method == "OPTIONS"))
    refuse("the request's target does not begin with /");
}

void take_length(std::string_view value, Head& head) {
  if (value.empty() || value.size() > 18 ||
      !std::all_of(value.begin(), value.end(), [](unsigned char c) { return std::isdigit(c); }))
    refuse("Content-Length is not a number of bytes");
  const int64_t length = std::stoll(std::string(value));
  if (head.content_length >= 0 && head.content_length != length)
    refuse("Content-Length is given twice and differs");
  head.content_length = length;
}

void take_field(const std::string& name, std::string_view value, Head& head) {
  if (name == "content-length") return take_length(value, head);
  if (name == "transfer-encoding") {
    if (lower(value) != "chunked" || head.chunked || head.http_1_0)
      refuse("Transfer-Encoding is not chunked");
    head.chunked = true;
  } else if (name == "connection") {
    const std::string wish = lower(value);
    if (wish.find("close") != std::string::npos) head.keep_alive = false;
    if (head.http_1_0 && wish.find("keep-alive") != std::string::npos) head.keep_alive = true;
  } else if (name == "expect") {
    if (lower(value) != "100-continue") refuse("Expect is not 100-continue", 417);
    head.expects_continue = !head.http_1_0;
  } else if (name == "content-type") {
    head.content_type = lower(value);
  } else if (name == "content-encoding") {
    head.content_encoding = lower(value);
  } else if (name == "authorization") {
    head.authorization = value;
  } else if (name == "x-request-id") {
    head.request_id = value;
  } else if (name == "traceparent") {
    head.trace = parse_trace_parent(value);
  } else if (name == "host") {
    if (std::any_of(value.begin(), value.end(), [](char c) {
          return !is_token_char(static_cast<unsigned char>(c)) && !std::strchr("[]:", c);
        }))
      refuse("the header Host is no name and port");
    if (head.host.empty()) head.host = value;
  } else if (name == "origin") {
    head.origin = value;
  } else if (name == "access-control-request-method") {
    head.preflight_method = value;
  } else if (name == "access-control-request-headers") {
    head.preflight_headers = value;
  }
}

// Name in small letters, and value.
std::pair<std::string, std::string_view> split_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    refuse("a header line is malformed: " + escaped(line, 60));
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (has_control_characters(value))
    refuse("the header " + escaped(line.substr(0, colon), 60) + " holds control characters");
  return {lower(line.substr(0, colon)), value};
}

}  // namespace

Head parse_head(std::string_view text, const HeadLimits& limits) {
  Head head;
  std::vector<std::string> names;
  bool first = true;
  for (;;) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos || end == 0 || text[end - 1] != '\r')
      refuse("a header line does not end with CR LF");
    const std::string_view line = text.substr(0, end - 1);
    text.remove_prefix(end + 1);
    if (first) {
      parse_request_line(line, limits, head);
      first = false;
      continue;
    }
    if (line.empty()) break;
    if (names.size() == limits.fields)
      refuse("the request has more than " + std::to_string(limits.fields) + " headers", 431);
    auto [name, value] = split_field(line);
    take_field(name, value, head);
    names.push_back(std::move(name));
  }
  for (const std::string_view name : kOnce)
    if (std::count(names.begin(), names.end(), name) > 1)
      refuse("the header " + std::string(name) + " is given twice");
  if (!head.http_1_0 && std::count(names.begin(), names.end(), "host") == 0)
    refuse("the header Host is missing, which HTTP/1.1 requires");
  if (head.chunked && head.content_length >= 0) refuse("Content-Length and Transfer-Encoding are both given");
  return head;
}

std::string Head::path() const { return percent_decoded(target.substr(0, target.find_first_of("?#"))); }

std::string Head::query() const {
  const std::size_t begin = target.find_first_of("?#");
  if (begin == std::string::npos || target[begin] == '#') return "";
  return target.substr(begin + 1, target.find('#', begin) - begin - 1);
}

std::optional<TraceParent> parse_trace_parent(std::string_view text) {
  // VERSION-TRACE-PARENT-FLAGS: 2, 32, 16 and 2 digits; later versions may add to it.
  constexpr std::size_t kLength = 55;
  const auto digits = [&](std::size_t begin, std::size_t count) {
    const std::string_view part = text.substr(begin, count);
    return part.find_first_not_of("0123456789abcdef") == part.npos ? part : std::string_view();
  };
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  const std::string_view version = digits(0, 2), trace = digits(3, 32), parent = digits(36, 16),
                         flags = digits(53, 2);
  const bool is_whole =
      version == "00" ? text.size() == kLength : text.size() == kLength || text[kLength] == '-';
  const auto is_id = [](std::string_view id) { return id.find_first_not_of('0') != id.npos; };
  if (version.empty() || version == "ff" || !is_whole || !is_id(trace) || !is_id(parent) || flags.empty())
    return std::nullopt;
  const bool is_sampled = std::string_view("13579bdf").find(flags[1]) != std::string_view::npos;
  return TraceParent{std::string(trace), std::string(parent), is_sampled};
}

void check_field(std::string_view line) { split_field(line); }

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7F;
  });
}

bool is_sane_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("-_.:/+=").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

}  // namespace ark::http
