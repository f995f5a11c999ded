// libFuzzer: any bytes as the JSON body of a request, and each member of it read as every type of field. Only HttpError
// with a client's status, which names the field, may come out.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/api/fields.h"
#include "server/json.h"

namespace {

template <typename Read>
void attempt(const std::string& name, Read read) {
  try {
    read();
  } catch (const ark::http::HttpError& error) {
    if (error.status != 400 || error.param.find(name) == std::string::npos) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  std::string body(reinterpret_cast<const char*>(data), size);
  try {
    const ark::Json json = ark::api::parse_body(body);
    const ark::api::Fields fields(json);
    for (const auto& item : json.items()) {
      const std::string name = item.key();
      attempt(name, [&] {
        if (const auto n = fields.integer(name, -5, 1 << 20); n && (*n < -5 || *n > 1 << 20)) std::abort();
      });
      attempt(name, [&] {
        if (const auto x = fields.number(name, 0, 2); x && !(*x >= 0 && *x <= 2)) std::abort();
      });
      attempt(name, [&] { fields.boolean(name); });
      attempt(name, [&] { fields.string(name); });
      attempt(name, [&] {
        if (const auto all = fields.strings(name, 4); all && all->size() > 4) std::abort();
      });
      attempt(name, [&] {
        if (const auto all = fields.ids(name, 64); all && all->size() > 64) std::abort();
      });
    }
  } catch (const ark::http::HttpError& error) {
    if (error.status != 400) std::abort();
  }
  return 0;
}
