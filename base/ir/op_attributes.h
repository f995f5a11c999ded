// Which attributes a canonical operator may have (what they mean: base/ir/ops.h). verify() refuses others.
#pragma once

#include <span>

#include "base/ir/attributes.h"
#include "base/ir/ops.h"

namespace ark {

struct AttributeType {
  template <typename T>
  AttributeType(Key<T> key) : name(key.name), type(AttributeValue(std::in_place_type<T>).index()) {}
  std::string_view name;
  std::size_t type;  // index into AttributeValue
};

std::span<const AttributeType> attributes_of(Op op);
// What is wrong with the attributes of a node of `op`, naming the first such; empty if nothing is.
std::string attribute_fault(Op op, const Attributes& attributes);

}  // namespace ark
