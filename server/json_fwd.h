// The one JSON type, for headers; server/json.h defines it.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace ark {

template <class Key, class T, class Ignored, class Allocator>
class OrderedMap;

// Members keep the order in which they came: answers are written in a fixed order, and templates print the tools
// of a chat as the client sent them.
using Json = nlohmann::basic_json<OrderedMap>;

}  // namespace ark
