#include "server/load/model_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.h"
#include "tests/scratch_folder.h"

namespace ark {
namespace {

TEST(ModelFile, AFolderThatCannotBeReadIsNotCalledEmpty) {
  const test::ScratchFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  std::string what;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  try {
    find_model(folder.path(), "");
  } catch (const Error& error) {
    what = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(what.find("cannot be read: Too many open files"), what.npos) << what;
}

}  // namespace
}  // namespace ark
