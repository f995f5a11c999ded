#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/texts.h"
#include "tests/fixtures.h"
#include "tests/importer/proto.h"

namespace ark {
namespace {

using test::error_of;
using test::Proto;
using testing::HasSubstr;

Proto with_initializer(const Proto& tensor) { return test::model(test::graph({.initializers = {tensor}})); }
onnx::TensorRef parsed(const Proto& tensor) {
  return test::parse(with_initializer(tensor)).graph.initializers.at(0);
}
std::vector<double> reals(const onnx::TensorRef& t) {
  const Tensor dense = materialise(*t.constant);
  std::vector<double> values;
  for (int64_t i = 0; i < dense.size(); ++i) values.push_back(dense.real(i));
  return values;
}
Proto head(const std::vector<int64_t>& dims, int type) {
  Proto t;
  for (int64_t d : dims) t.varint(1, d);
  return t.varint(2, type).text(8, "w");
}

TEST(Parse, ReadsEveryFixture) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::fixtures())) {
    const auto path = entry.path() / "model.onnx";
    if (!std::filesystem::exists(path)) continue;
    const onnx::Model m = onnx::parse_model(path);
    EXPECT_GT(m.graph.nodes.size(), 5u) << path;
    EXPECT_GT(m.graph.initializers.size(), 0u) << path;
    EXPECT_TRUE(m.opsets.contains("")) << path;
    for (const auto& t : m.graph.initializers)
      if (t.constant && t.constant->bytes > 1024) {
        EXPECT_TRUE(t.constant->file) << path << t.name << " was copied";
      }
    ++files;
  }
  EXPECT_GT(files, 40);
}

TEST(Parse, TypedFieldsPackedAndUnpacked) {
  Proto packed;
  for (float v : {1.5f, -2.0f}) packed.bytes.append(reinterpret_cast<const char*>(&v), 4);
  EXPECT_THAT(reals(parsed(head({2}, 1).text(4, packed.bytes))), testing::ElementsAre(1.5, -2));
  EXPECT_THAT(reals(parsed(head({2}, 1).real(4, 1.5f).real(4, -2.0f))), testing::ElementsAre(1.5, -2));
  EXPECT_THAT(reals(parsed(head({3}, 1).text(4, packed.bytes).real(4, 7))), testing::ElementsAre(1.5, -2, 7));
  EXPECT_THAT(reals(parsed(head({4}, 1).text(4, packed.bytes).text(4, packed.bytes))),
              testing::ElementsAre(1.5, -2, 1.5, -2));
  EXPECT_THAT(reals(parsed(head({2}, 7).varint(7, -5).varint(7, 300))), testing::ElementsAre(-5, 300));
  Proto varints;
  varints.raw_varint(static_cast<uint64_t>(-5)), varints.raw_varint(300);
  EXPECT_THAT(reals(parsed(head({2}, 7).text(7, varints.bytes))), testing::ElementsAre(-5, 300));
  EXPECT_THAT(reals(parsed(head({2}, 6).text(5, varints.bytes))), testing::ElementsAre(-5, 300));
  EXPECT_THAT(reals(parsed(head({2}, 3).varint(5, -5).varint(5, 7))), testing::ElementsAre(-5, 7));  // int8
  EXPECT_THAT(reals(parsed(head({2}, 9).varint(5, 1).varint(5, 0))), testing::ElementsAre(1, 0));    // bool
  EXPECT_THAT(reals(parsed(head({1}, 10).varint(5, 0x3C00))), testing::ElementsAre(1));              // f16
  EXPECT_THAT(reals(parsed(head({1}, 16).varint(5, 0x3F80))), testing::ElementsAre(1));              // bf16
  EXPECT_THAT(reals(parsed(head({3}, 22).varint(5, 0xF1).varint(5, 0x2))),
              testing::ElementsAre(1, -1, 2));                                                        // int4
  EXPECT_THAT(reals(parsed(head({2}, 12).varint(11, 9).varint(11, 8))), testing::ElementsAre(9, 8));  // u32
}

TEST(Parse, ElementTypeAfterTheData) {
  const Proto t = Proto().varint(1, 2).varint(5, -5).varint(5, 7).varint(2, 3).text(8, "w");
  EXPECT_THAT(reals(parsed(t)), testing::ElementsAre(-5, 7));
}

TEST(Parse, TensorsWhoseDataDisagreesWithTheirTypeAreRefused) {
  const auto refused = [](const Proto& t) { return error_of(Code::kBadModel, [&] { parsed(t); }); };
  EXPECT_THAT(refused(head({2}, 1).text(9, "abc")),
              HasSubstr("has 3 bytes of data, but dims and type ask for 8"));
  EXPECT_THAT(refused(head({2}, 1)), HasSubstr("ask for 8"));
  EXPECT_THAT(refused(head({2}, 1).varint(7, 1).varint(7, 1)), HasSubstr("another element type"));
  EXPECT_THAT(refused(head({1}, 1).real(4, 1).text(9, "abcd")), HasSubstr("two places"));
  EXPECT_THAT(refused(head({-1}, 1)), HasSubstr("negative dimension"));
  EXPECT_THAT(refused(head({1ll << 40, 1ll << 40}, 1)), HasSubstr("2^62"));
  EXPECT_THAT(refused(head(std::vector<int64_t>(9, 1), 1)), HasSubstr("max_rank"));
  EXPECT_THAT(refused(head({2}, 0)), HasSubstr("no element type"));
  EXPECT_THAT(error_of(Code::kUnsupported, [&] { parsed(head({1}, 18).text(9, "x")); }),
              HasSubstr("FLOAT8E4M3FNUZ"));
}

TEST(Parse, StringTensorsKeepTheirStrings) {
  const auto t = parsed(head({2}, 8).text(6, "a").text(6, "b"));
  ASSERT_EQ(t.constant->dtype, DType::kString);
  EXPECT_EQ(materialise(*t.constant), tensor_of_texts({2}, std::vector<std::string>{"a", "b"}));
}

TEST(Parse, UnknownFieldsAndGroupsAreSkipped) {
  Proto m = test::model(test::graph({}));
  m.text(999, "?").varint(998, 1).real(997, 1);
  m.raw_varint(50 << 3 | 3), m.raw_varint(51 << 3 | 3), m.varint(7, 1), m.raw_varint(51 << 3 | 4),
      m.raw_varint(50 << 3 | 4);
  EXPECT_EQ(test::parse(m).ir_version, 8);
  m.raw_varint(50 << 3 | 3);
  EXPECT_THAT(error_of(Code::kBadModel, [&] { test::parse(m); }), HasSubstr("group does not end"));
}

TEST(Parse, DeepGroupsAreRefusedByLimit) {
  Proto m;
  for (int i = 0; i < 100000; ++i) m.raw_varint(50 << 3 | 3);
  EXPECT_THAT(error_of(Code::kBadModel, [&] { test::parse(m); }), HasSubstr("max_nesting"));
}

TEST(Parse, NoModelAtAll) {
  EXPECT_THAT(error_of(Code::kBadModel, [] { test::parse(std::string("hello, this is text")); }),
              HasSubstr("byte"));
  EXPECT_THAT(error_of(Code::kBadModel, [] { test::parse(Proto().varint(1, 8)); }), HasSubstr("no graph"));
  EXPECT_THAT(error_of(Code::kUnsupported, [] { test::parse(test::model(test::graph({}), {}, 99)); }),
              HasSubstr("IR version 99"));
  const test::TemporaryDirectory dir;
  EXPECT_THAT(error_of(Code::kBadModel, [&] { onnx::parse_model(dir.write("e.onnx", "")); }),
              HasSubstr("is empty"));
  EXPECT_THAT(
      error_of(
          Code::kBadModel,
          [&] { onnx::parse_model(dir.write("l.onnx", "version https://git-lfs.github.com/spec/v1\n")); }),
      HasSubstr("git lfs pull"));
  EXPECT_THAT(error_of(Code::kNotFound, [&] { onnx::parse_model(dir.path / "none.onnx"); }),
              HasSubstr("none.onnx"));
  EXPECT_THAT(error_of(Code::kNotFound, [&] { onnx::parse_model(dir.path); }), HasSubstr("2 .onnx files"));
  ASSERT_EQ(::mkfifo((dir.path / "f.fifo").c_str(), 0600), 0);
  EXPECT_THAT(error_of(Code::kBadModel, [&] { onnx::parse_model(dir.path / "f.fifo"); }),
              HasSubstr("regular file"));
}

// -- external data

Proto external(const std::string& location, const std::string& offset = "", const std::string& length = "") {
  Proto t = head({2}, 1);
  const auto entry = [&](const char* key, const std::string& value) {
    if (!value.empty()) t.message(13, Proto().text(1, key).text(2, value));
  };
  entry("location", location), entry("offset", offset), entry("length", length);
  return t.varint(14, 1);
}

TEST(ExternalData, IsReadInPlace) {
  const test::TemporaryDirectory dir;
  dir.write("w.bin", "xxxx" + test::raw<float>({3, 4}));
  const auto file = dir.write("m.onnx", with_initializer(external("w.bin", "4", "8")).bytes);
  const onnx::Model m = onnx::parse_model(dir.path);  // the directory's one model
  EXPECT_THAT(reals(m.graph.initializers[0]), testing::ElementsAre(3, 4));
  EXPECT_TRUE(m.graph.initializers[0].constant->file);
}

TEST(ExternalData, MustStayInTheDirectoryAndInTheFile) {
  const test::TemporaryDirectory dir, elsewhere;
  dir.write("w.bin", std::string(12, 'x'));
  elsewhere.write("secret", std::string(12, 'x'));
  std::filesystem::create_symlink(elsewhere.path / "secret", dir.path / "link");
  const auto refused = [&](const Proto& tensor, Code code = Code::kBadModel) {
    const auto file = dir.write("m.onnx", with_initializer(tensor).bytes);
    return error_of(code, [&] { onnx::parse_model(file); });
  };
  EXPECT_THAT(refused(external("../" + elsewhere.path.filename().string() + "/secret")),
              HasSubstr("leaves the directory"));
  EXPECT_THAT(refused(external("a/../../x")), HasSubstr("leaves the directory"));
  EXPECT_THAT(refused(external((elsewhere.path / "secret").string())), HasSubstr("no path relative"));
  EXPECT_THAT(refused(external("link")), HasSubstr("link that leaves"));
  EXPECT_THAT(refused(external(".")), HasSubstr("leaves the directory"));
  EXPECT_THAT(refused(external(std::string("w.bin\0x", 7))), HasSubstr("no path relative"));
  EXPECT_THAT(refused(external("none.bin"), Code::kNotFound), HasSubstr("none.bin"));
  EXPECT_THAT(refused(external("w.bin", "5")), HasSubstr("8 bytes at offset 5 of w.bin, which has 12"));
  EXPECT_THAT(refused(external("w.bin", "9223372036854775807")), HasSubstr("which has 12"));
  EXPECT_THAT(refused(external("w.bin", "-1")), HasSubstr("no size"));
  EXPECT_THAT(refused(external("w.bin", "0", "4")), HasSubstr("ask for 8"));
}

}  // namespace
}  // namespace ark
