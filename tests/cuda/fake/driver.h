// The real driver.cc over a fake libcuda, for tests: skipped where there is no NVRTC.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/error.h"
#include "engine/cuda/driver.h"
#include "engine/cuda/nvrtc.h"
#include "tests/cuda/environment.h"
#include "tests/cuda/fake/libcuda.h"
#include "tests/scratch_folder.h"

namespace ark::test {

// What `call` says, which must throw an Error of this code.
inline std::string refusal(const std::function<void()>& call, Code code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "nothing was thrown";
}

class FakeDriver : public ::testing::Test {
 public:
  static cuda::KernelSource source() {
    return {"extern \"C\" __global__ void ark_loop(int* p) { *p = 1; }", {}, {}, "ark_loop"};
  }

 protected:
  void SetUp() override {
    library_ = ::dlopen(ARK_FAKE_LIBCUDA, RTLD_NOW);
    ASSERT_NE(library_, nullptr) << ::dlerror();
    fake_ = reinterpret_cast<FakeCuda* (*)()>(::dlsym(library_, "fake_cuda"))();
    fake_->gpus = 1;
    fake_->major = 9;
    fake_->minor = 0;
    fake_->shared_per_block = 232448;
    fake_->blocks_each = 1;
    fake_->end_result = fake_->module_result = fake_->address_result = fake_->node_result = 0;
    fake_->hostile = {};
    fake_->sharing = {};
    fake_->nic = {};
    fake_->parameter_bytes = 8;
    static std::string why;
    static const auto stays_open = cuda::open_nvrtc(&why);  // loading it takes as long as all else
    if (!stays_open) GTEST_SKIP() << why;
  }
  void TearDown() override {
    if (library_) ::dlclose(library_);
  }

  const ScratchFolder folder_;
  const Environment cache_{"ARK_CACHE_DIR", folder_.path()};
  const Environment libcuda_{"ARK_LIBCUDA", ARK_FAKE_LIBCUDA};
  void* library_ = nullptr;
  FakeCuda* fake_ = nullptr;
};

}  // namespace ark::test
