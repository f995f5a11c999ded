#include "server/http/chunks.h"

#include <gtest/gtest.h>

#include "server/http/message.h"

namespace ark::http {
namespace {

constexpr std::size_t kMost = 100;

// The body, or "400"; fed in pieces of every size, which must make no difference.
std::string decoded(const std::string& text) {
  std::string first;
  for (std::size_t piece = text.size(); piece > 0; --piece) {
    ChunkDecoder decoder(kMost);
    std::string body;
    try {
      for (std::size_t at = 0; at < text.size() && !decoder.done();)
        at += decoder.feed(std::string_view(text).substr(at, piece), body);
      if (!decoder.done()) body = "more";
    } catch (const HttpError& e) {
      body = std::to_string(e.status);
    }
    if (piece == text.size()) first = body;
    EXPECT_EQ(body, first) << piece;
  }
  return first;
}

TEST(Chunks, BodiesWithExtensionsAndTrailers) {
  EXPECT_EQ(decoded("0\r\n\r\n"), "");
  EXPECT_EQ(decoded("4\r\nWiki\r\n00000000000000B;a=b;c=\"d \\\" e\"\r\npedia in\r\nc\r\n0;last\r\n\r\n"),
            "Wikipedia in\r\nc");
  EXPECT_EQ(decoded("1\r\na\r\n0\r\nContent-Length: 5\r\nX-Sum: 1\r\n\r\nGET / HTTP/1.1"), "a");
  EXPECT_EQ(decoded("5\r\nab"), "more");
}

TEST(Chunks, WhatReadersDisagreeAboutIsRefused) {
  for (const char* text : {"0x1\r\na\r\n0\r\n\r\n",
                           "+1\r\na\r\n0\r\n\r\n",
                           "-1\r\na",
                           " 1\r\na\r\n0\r\n\r\n",
                           "1 \r\na\r\n0\r\n\r\n",
                           "1g\r\na\r\n0\r\n\r\n",
                           "1\na\r\n0\r\n\r\n",
                           "1\r\na\n0\r\n\r\n",
                           "1\r\nab\r\n0\r\n\r\n",
                           "1\r\na0\r\n\r\n",
                           "\r\n",
                           "g\r\n",
                           ";a\r\n",
                           "1\ra\r\n",
                           "1\r\na\r\n0\r\nx\r\n\r\n",
                           "1\r\na\r\n0\r\na b: c\r\n\r\n",
                           "1\r\na\r\n0\r\n\n",
                           "1\r\na\r\n0\n\n",
                           "00000000000000001\r\na",
                           "1;\x01\r\na",
                           "1;a=\"\r\na\r\n0\r\n\r\n",
                           "1;a=\"b\\\"\r\na\r\n0\r\n\r\n"})
    EXPECT_EQ(decoded(text), "400") << text;
  EXPECT_EQ(decoded("ffffffffffffffff\r\n"), "413");
  EXPECT_EQ(decoded("65\r\n"), "413");
  EXPECT_EQ(decoded("64\r\n" + std::string(100, 'x') + "\r\n1\r\n"), "413");
}

TEST(Chunks, ExtensionsAndTrailersAreBounded) {
  const auto refused = [](const std::string& text) {
    ChunkDecoder decoder(kMost);
    std::string body;
    EXPECT_THROW(decoder.feed(text, body), HttpError);
  };
  refused("1;" + std::string(20'000, 'x'));
  std::string many = "0\r\n";
  for (int i = 0; i < 2000; ++i) many += "X-Trailer-Field: some value\r\n";
  refused(many);
}

}  // namespace
}  // namespace ark::http
