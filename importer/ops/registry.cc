#include <map>

#include "base/error.h"
#include "importer/ops/table.h"

namespace ark {
namespace {

using DomainAndType = std::pair<std::string_view, std::string_view>;

const std::map<DomainAndType, OpImporter>& registry() {
  static const auto* map = [] {
    auto* m = new std::map<DomainAndType, OpImporter>;
    for (const auto& family : {ops::pointwise_table(),        ops::activation_table(),
                               ops::creation_table(),         ops::reshape_table(),
                               ops::slicing_table(),          ops::indexing_table(),
                               ops::reduction_table(),        ops::normalization_table(),
                               ops::product_table(),          ops::window_table(),
                               ops::quantized_table(),        ops::qlinear_table(),
                               ops::attention_table(),        ops::fused_attention_table(),
                               ops::grouped_query_table(),    ops::experts_table(),
                               ops::recurrent_table(),        ops::vision_table(),
                               ops::signal_table(),           ops::loss_table(),
                               ops::classic_table(),          ops::copies_table(),
                               ops::random_table(),           ops::gpu_fusions_table(),
                               ops::linear_attention_table(), ops::refused_table()})
      for (const auto& entry : family)
        ARK_CHECK(m->emplace(DomainAndType{entry.domain, entry.op_type}, entry.import).second,
                  "two importers of " + std::string(entry.op_type));
    return m;
  }();
  return *map;
}

}  // namespace

OpImporter find_op_importer(std::string_view domain, std::string_view op_type) {
  if (domain == "ai.onnx") domain = "";
  const auto it = registry().find({domain, op_type});
  return it == registry().end() ? nullptr : it->second;
}

std::vector<std::pair<std::string, std::string>> all_op_importers() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [key, import] : registry()) all.emplace_back(key.first, key.second);
  return all;
}

}  // namespace ark
