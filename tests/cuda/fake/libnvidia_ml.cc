// NVML without a GPU: two whose energy is what FAKE_NVML_MILLIJOULES says, the second one's twice as much. Without the
// variable there are none; "silent": they do not tell.
#include <cstdlib>
#include <string>

namespace {

std::string told() {
  const char* text = std::getenv("FAKE_NVML_MILLIJOULES");
  return text ? text : "";
}
int devices[2] = {1, 2};

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = told().empty() ? 0 : 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  if (told() == "silent") return 3;  // NVML_ERROR_NOT_SUPPORTED
  *millijoules = static_cast<unsigned long long>(*static_cast<int*>(device)) * std::stoull(told());
  return 0;
}
}
