#include "engine/program/variant_facts.h"

#include "base/ir/keys.h"

namespace ark {

VariantFacts VariantFacts::of(const Variant& variant) {
  VariantFacts f;
  if (variant.code == OpCode::kGeneric) return f;
  const auto take = [&](auto key, auto& to) {
    if (variant.attributes.has(key))
      to = static_cast<std::decay_t<decltype(to)>>(variant.attributes.get(key));
  };
  take(key::kScale, f.scale);
  take(key::kSoftcap, f.softcap);
  take(key::kEpsilon, f.epsilon);
  take(key::kParameter, f.parameter);
  take(key::kWindow, f.window);
  take(key::kAxis, f.axis);
  take(key::kFirst, f.first);
  take(key::kRotaryDim, f.rotary_dim);
  take(key::kRms, f.rms);
  take(key::kInterleaved, f.interleaved);
  take(key::kHeadMap, f.head_map);
  take(key::kBorders, f.borders);
  return f;
}

}  // namespace ark
