// Stage cuda: the source of the loop kernel that a GPU would run. Needs neither a GPU nor a compiler.

#include "engine/cuda/codegen.h"
#include "server/json.h"
#include "server/tools/inspect_stages.h"

namespace ark {
namespace {

cuda::VariantSet variants_of(Inspection& inspection) {
  std::vector<const Program*> programs;
  for (const Program& program : inspection.compiled().programs) programs.push_back(&program);
  return cuda::VariantSet(programs, cuda::Numerics::kExact);
}

}  // namespace

std::string cuda_text(Inspection& inspection) { return cuda::make_source(variants_of(inspection)).text; }

Json cuda_json(Inspection& inspection) {
  const cuda::VariantSet variants = variants_of(inspection);
  Json cases = Json::array();
  for (const cuda::DeviceVariant& variant : variants.all()) cases.push_back(variant.type);
  return {{"cases", std::move(cases)}, {"source", cuda::make_source(variants).text}};
}

}  // namespace ark
