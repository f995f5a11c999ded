// Attributes in the text form of programs: `{axis=i:1, epsilon=f:1e-05, perm=I:[1, 0], shape=E:[tokens; 4]}`.
#pragma once

#include <string>

#include "base/ir/attributes.h"
#include "engine/program/text_cursor.h"

namespace ark {

// One letter says the type: i, f, s and their lists I, F, S; E: expressions; T: tensor (dtype, dims, bytes in hex).
std::string attributes_text(const Attributes& attributes);
Attributes read_attributes(TextCursor& cursor);
std::string real_text(double value);  // reads back to the same bits
std::string real_text(float value);

}  // namespace ark
