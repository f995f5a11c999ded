#include "importer/passes/passes.h"

#include "importer/import.h"

namespace ark {

const std::vector<Pass>& standard_passes() {
  static const auto* list = new std::vector<Pass>{
      {"dead_code", passes::remove_dead_code},
      {"fold_constants", passes::fold_constants},
      {"unify_symbols", passes::unify_symbols},
      {"fold_constants_again", passes::fold_constants},  // what was undecided before sizes had one name
      {"merge_duplicates", passes::merge_duplicates},
      {"cancel_movement", passes::cancel_movement},
      {"sink_widening", passes::sink_widening},
      {"absorb_transposes", passes::absorb_transposes},
      {"fuse_norms", passes::fuse_norms},
      {"fuse_gelu", passes::fuse_gelu},
      {"fuse_silu", passes::fuse_silu},
      {"merge_duplicates_again", passes::merge_duplicates},
      {"dead_code_again", passes::remove_dead_code},
  };
  return *list;
}

}  // namespace ark
