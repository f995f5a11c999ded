#include "server/http/head.h"

#include <gtest/gtest.h>

#include <tuple>

#include "tests/server/http/status_thrown.h"

namespace ark::http {
namespace {

Head parse(const std::string& fields, const std::string& line = "GET /x HTTP/1.1") {
  return parse_head(line + "\r\nHost: x\r\n" + fields + "\r\n", HeadLimits{});
}

int status_of(const std::string& fields, const std::string& line = "GET /x HTTP/1.1") {
  return status_thrown([&] { parse(fields, line); });
}

TEST(Head, TakesWhatConcernsTheServer) {
  const Head head = parse(
      "content-LENGTH:  12 \r\nAuthorization: Bearer k\r\nContent-Type: Application/JSON\r\n"
      "X-Request-ID: a\r\nExpect: 100-Continue\r\n",
      "POST /a?b=c HTTP/1.1");
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.target, "/a?b=c");
  EXPECT_EQ(head.content_length, 12);
  EXPECT_EQ(head.authorization, "Bearer k");
  EXPECT_EQ(head.content_type, "application/json");
  EXPECT_EQ(head.request_id, "a");
  EXPECT_TRUE(head.expects_continue && head.keep_alive && head.has_body());
}

TEST(Head, ThereIsOneHostWhichTheTargetMayName) {
  EXPECT_EQ(parse("").host, "x");
  EXPECT_EQ(parse("", "GET http://y:80/a HTTP/1.1").host, "y:80");
  EXPECT_EQ(status_of("Host: x\r\n"), 400);
  for (const std::string target : {"HTTP://y?a=b", "https://y/?a=b", "hTTps://y/?a=b#/c"}) {
    const Head head = parse("", "GET " + target + " HTTP/1.1");
    EXPECT_EQ(std::tuple(head.host, head.path(), head.query()), std::tuple("y", "/", "a=b")) << target;
  }
  EXPECT_EQ(parse_head("GET / HTTP/1.0\r\n\r\n", HeadLimits{}).host, "");
  EXPECT_THROW(parse_head("GET / HTTP/1.1\r\n\r\n", HeadLimits{}), HttpError);
  for (const char* host : {"a b", "a/b", "a@b", "a,b", "\xff"})
    EXPECT_THROW(parse_head(std::string("GET / HTTP/1.1\r\nHost: ") + host + "\r\n\r\n", HeadLimits{}),
                 HttpError);
}

TEST(Head, WhatMayStandOnceStandsOnce) {
  for (const std::string name : {"Authorization", "Content-Type", "Content-Encoding", "Origin"}) {
    EXPECT_EQ(status_of(name + ": identity\r\n"), 200) << name;
    EXPECT_EQ(status_of(name + ": a\r\n" + name + ": a\r\n"), 400) << name;
    EXPECT_EQ(status_of(name + ":\r\n" + name + ": a\r\n"), 400) << name;
  }
}

TEST(Head, PathsAreDecodedWithoutTheirQuery) {
  EXPECT_EQ(parse("", "GET /a%20b%2Fc?d=%41#e HTTP/1.1").path(), "/a b/c");
  EXPECT_EQ(parse("", "GET /%zz%4 HTTP/1.1").path(), "/%zz%4");
  EXPECT_EQ(parse("", "GET /a?d=%41&e#f HTTP/1.1").query(), "d=%41&e");
  for (const char* line : {"GET /a HTTP/1.1", "GET /a? HTTP/1.1", "GET /a#b?c HTTP/1.1"})
    EXPECT_EQ(parse("", line).query(), "");
}

// W3C's Trace Context, 2021-11-23, "traceparent header".
TEST(Head, TraceParentsAreTakenWhereTheyAreWhole) {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", parent = "00f067aa0ba902b7";
  const auto of = [](const std::string& value) { return parse("traceparent: " + value + "\r\n").trace; };
  const auto whole = of("00-" + trace + "-" + parent + "-01");
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->trace_id, trace);
  EXPECT_EQ(whole->parent_id, parent);
  EXPECT_TRUE(whole->is_sampled);
  EXPECT_FALSE(of("00-" + trace + "-" + parent + "-02")->is_sampled);
  EXPECT_TRUE(of("cc-" + trace + "-" + parent + "-09-what-the-future-holds"));
  for (const std::string& wrong :
       {"00-" + trace + "-" + parent, "00-" + trace + "-" + parent + "-01-more",
        "ff-" + trace + "-" + parent + "-01", "cc-" + trace + "-" + parent + "-01more",
        "00-" + std::string(32, '0') + "-" + parent + "-01",
        "00-" + trace + "-" + std::string(16, '0') + "-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + parent + "-01", "00-" + trace + "-" + parent + "-0x",
        std::string("0")})
    EXPECT_FALSE(of(wrong)) << wrong;
  EXPECT_FALSE(parse("").trace);
}

TEST(Head, ConnectionsStayOpenAsTheVersionSays) {
  EXPECT_TRUE(parse("").keep_alive);
  EXPECT_FALSE(parse("Connection: Close\r\n").keep_alive);
  EXPECT_FALSE(parse("", "GET /x HTTP/1.0").keep_alive);
  EXPECT_TRUE(parse("Connection: Keep-Alive\r\n", "GET /x HTTP/1.0").keep_alive);
}

TEST(Head, LengthsAreNumbersThatAgree) {
  EXPECT_EQ(status_of("Content-Length: 5\r\nContent-Length: 5\r\n"), 200);
  for (const char* fields :
       {"Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: \r\n", "Content-Length: -1\r\n",
        "Content-Length: +1\r\n", "Content-Length: 0x5\r\n", "Content-Length: 1 2\r\n",
        "Content-Length: 9999999999999999999\r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"})
    EXPECT_EQ(status_of(fields), 400) << fields;
}

TEST(Head, LinesAndLimits) {
  for (const char* line : {"", "GET", "GET /x", "GET x HTTP/1.1", "G T /x HTTP/1.1", "GET /x HTTP/1.2",
                           " GET /x HTTP/1.1", "GET /\x7f HTTP/1.1", "G\xc3\xbcT /x HTTP/1.1"})
    EXPECT_EQ(status_of("", line), 400) << line;
  for (const char* fields : {"x\r\n", ": x\r\n", "a b: x\r\n", " a: x\r\n", "a: x\n", "a: \x01\r\n"})
    EXPECT_EQ(status_of(fields), 400) << fields;
  EXPECT_EQ(status_of("", "GET /" + std::string(5000, 'x') + " HTTP/1.1"), 414);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "a: b\r\n";
  EXPECT_EQ(status_of(many), 431);
  EXPECT_EQ(status_of("Expect: magic\r\n"), 417);
}

TEST(Head, RequestIdsThatMayBeRepeated) {
  for (const char* good : {"a", "req-1_2.3:4/5+6="}) EXPECT_TRUE(is_sane_id(good)) << good;
  for (const std::string& bad :
       {std::string(), std::string("a b"), std::string("a\nb"), std::string("\"x\""), std::string(129, 'a')})
    EXPECT_FALSE(is_sane_id(bad)) << bad;
}

}  // namespace
}  // namespace ark::http
