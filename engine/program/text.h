// Programs as text: what ark-inspect prints, golden tests compare and `--plan FILE` reads back.
//
// Line by line, one record a line, `#` starts a comment; names are quoted and escaped. Sections in this order:
//   program rank=0 ranks=2 token_ids=%0 positions=%1 logits=%40 act_bytes=4096 inbox_bytes=0
//   val $3 max=512 = 4*tokens
//   buffer %7 act f32 [$1, $3] @1024 "h.0.ln_1"            kinds and fields as in program.h; @ = Binding offset
//   weight ^2 constant=5 panels=64 transposed f16 [0:25136, 0:768]
//   channel ~0 out peer=1 direct bytes=16384 "0->1"
//   variant !4 MatMul slabs=[0, 32, 64] epilogue=bias|residual
//   repeat *0 first=3 count=16 trips=11                     then one line `trip [%4, %5]` a trip: the operand table
//   phase 12 !4 (%7, .2, -, %9) grid=$8 channel=~0 wait [11, 4@-1, arrived ~1, credit ~0] "h.0.c_proj"
// An operand is a buffer %7, a column of the operand table .2, or absent -.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "engine/program/program.h"

namespace ark {

std::string program_text(const Program& program, const Binding& binding);
// Throws Error(kInvalidArgument) naming the line. parse(program_text(p, b)) equals (p, b).
std::pair<Program, Binding> parse_program(std::string_view text);

std::string_view name_of(Precision precision);  // "int8"
// One line; equal for equal variants only.
std::string variant_text(const Variant& variant);
std::string_view name_of(BufferKind kind);  // "act"
// Names of EpilogueBits joined by "|"; "" for none.
std::string epilogue_text(uint32_t epilogue);

}  // namespace ark
