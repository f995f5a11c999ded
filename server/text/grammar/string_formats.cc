#include "server/text/grammar/string_formats.h"

#include <array>
#include <utility>

namespace ark::text::grammar {
namespace {

#define ARK_YEAR "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define ARK_LEAP_YEAR "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define ARK_DATE                                                                                            \
  "(?:" ARK_YEAR                                                                                            \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[" \
  "0-9]|2[0-8]))"                                                                                           \
  "|" ARK_LEAP_YEAR "-02-29)"
#define ARK_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define ARK_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define ARK_HOST ARK_LABEL "(?:\\." ARK_LABEL "){0,6}"
#define ARK_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define ARK_GROUP "[0-9A-Fa-f]{1,4}"
#define ARK_DURATION_TIME \
  "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)"

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kFormats = {{
    {"date", ARK_DATE},
    {"time", ARK_TIME},
    {"date-time", ARK_DATE "T" ARK_TIME},
    {"duration",
     "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
     "(?:" ARK_DURATION_TIME ")?|" ARK_DURATION_TIME ")"},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,15}){0,2}@" ARK_LABEL "(?:\\." ARK_LABEL "){1,6}"},
    {"hostname", ARK_HOST},
    {"ipv4", ARK_BYTE "(?:\\." ARK_BYTE "){3}"},
    {"ipv6", "(?:(?:" ARK_GROUP ":){7}" ARK_GROUP "|::(?:(?:" ARK_GROUP ":){0,6}" ARK_GROUP ")?"
             "|" ARK_GROUP "::(?:(?:" ARK_GROUP ":){0,5}" ARK_GROUP ")?"
             "|(?:" ARK_GROUP ":){1}" ARK_GROUP "::(?:(?:" ARK_GROUP ":){0,4}" ARK_GROUP ")?"
             "|(?:" ARK_GROUP ":){2}" ARK_GROUP "::(?:(?:" ARK_GROUP ":){0,3}" ARK_GROUP ")?"
             "|(?:" ARK_GROUP ":){3}" ARK_GROUP "::(?:(?:" ARK_GROUP ":){0,2}" ARK_GROUP ")?"
             "|(?:" ARK_GROUP ":){4}" ARK_GROUP "::(?:(?:" ARK_GROUP ":){0,1}" ARK_GROUP ")?"
             "|(?:" ARK_GROUP ":){5}" ARK_GROUP "::(?:" ARK_GROUP ")?"
             "|(?:" ARK_GROUP ":){6}" ARK_GROUP "::)"},
    // No longer than 2083 characters, which pydantic asks of every URL.
    {"uri", "[A-Za-z][A-Za-z0-9+.-]{0,15}://" ARK_HOST
            "(?::[0-9]{1,5})?(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}){0,50}){0,8}"
            "(?:\\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2}){0,150})?"
            "(?:#(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2}){0,50})?"},
}};

}  // namespace

std::optional<std::string_view> pattern_of_format(std::string_view format) {
  for (const auto& [name, pattern] : kFormats)
    if (name == format) return pattern;
  return std::nullopt;
}

}  // namespace ark::text::grammar
