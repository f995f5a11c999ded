// The rules of engine/ops/, gathered by registry.cc.
#pragma once

#include "engine/ops/op_rule.h"

namespace ark {

OpRule all_gather_rule();
OpRule all_reduce_rule();
OpRule expand_rule();
OpRule gather_rule();
OpRule identity_rule();
OpRule layer_norm_rule();
OpRule matmul_rule();
OpRule paged_attention_rule();
OpRule reshape_rule();
OpRule rms_norm_rule();
OpRule rotary_rule();
OpRule select_rows_rule();
OpRule transpose_rule();

}  // namespace ark
