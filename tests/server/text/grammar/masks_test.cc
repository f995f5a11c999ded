// Masks and accepted tokens, against each token's bytes walked alone.
#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <thread>

#include "server/json.h"
#include "server/text/grammar/grammar_state.h"
#include "server/text/json_view.h"
#include "server/text/tokenizer.h"
#include "server/text/unicode.h"
#include "tests/fixtures.h"
#include "tests/server/text/grammar/texts.h"

namespace ark::text {
namespace {

using FirstSpace = TokenTrie::FirstSpace;
using test::byte_trie;
using test::error_of;

std::vector<Grammar::Ptr> some_grammars() {
  const std::vector<std::pair<std::string, Json>> functions = {
      {"f", ark::parse_json(R"({"type":"object"})")}};
  return {
      Grammar::of_regex("(?:[ab]{2,4}|é+b?)*c"),
      Grammar::of_regex(".*a.{3}"),
      Grammar::of_regex("[^a\\n]{1,3}( a)*"),
      Grammar::of_choices(std::vector<std::string>{"a", "ab", " ab", "éc", "cc\"", "\xF0\x9F\x98\x80"}),
      Grammar::of_json_object(),
      Grammar::of_json_schema(
          ark::parse_json(R"({"type":"array","items":{"type":["string","null"],"maxLength":3}})")),
      Grammar::of_gbnf("root ::= \"a\" root \"b\" | (\"c\" | \" \" root)*"),
      Grammar::of_regex("(?:[^c]{0,12}c){9}|[ab ]{3,20}(?:é{0,9}|b{10,12}){0,30}"),
      Grammar::of_json_schema(ark::parse_json(
          R"({"type":"array","items":{"type":"object","additionalProperties":{"type":"string","maxLength":15}},"maxItems":9})")),
      Grammar::of_calls("a", "b", functions, true)};
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<bool> special;
  std::shared_ptr<const TokenTrie> trie;
};

Vocabulary random_vocabulary(std::mt19937& random, FirstSpace first_space) {
  static const std::vector<std::string> pieces = {
      "a",  "b",  "c",    " ",    "\"", "{",        "}",        "[",    "]", ":",    ",",        "null",
      "\n", "\\", "\xC3", "\xA9", "é",  "\xF0\x9F", "\x98\x80", "\x80", "1", "name", "arguments"};
  Vocabulary out;
  for (int i = 0; i < 120; ++i) {
    std::string token;
    for (std::size_t n = random() % 4; n > 0; --n) token += pieces[random() % pieces.size()];
    out.tokens.push_back(i < static_cast<int>(pieces.size()) ? pieces[i] : token);
    out.special.push_back(random() % 10 == 0);
  }
  out.trie = std::make_shared<const TokenTrie>(out.tokens, out.special, first_space);
  return out;
}

std::vector<std::uint32_t> mask_of(GrammarState& state, std::size_t words) {
  std::vector<std::uint32_t> mask(words, 0xDEADBEEF);
  const bool any = state.allowed(mask);
  EXPECT_EQ(any, mask != std::vector<std::uint32_t>(words, 0));
  return mask;
}

bool is_set(const std::vector<std::uint32_t>& mask, std::size_t token) {
  return (mask[token / 32] >> token % 32 & 1) != 0;
}

// What a token shows; nothing where it may not come.
std::string shown(const Vocabulary& vocabulary, std::size_t token, bool is_first,
                  const std::vector<std::int32_t>& visible) {
  if (vocabulary.special[token] &&
      std::ranges::find(visible, static_cast<std::int32_t>(token)) == visible.end())
    return "";
  const std::string& text = vocabulary.tokens[token];
  if (!is_first || vocabulary.trie->first_space() == FirstSpace::kStays || !text.starts_with(' '))
    return text;
  return text.substr(1);
}

// The state behind a text, byte by byte.
std::optional<GrammarState> behind(const Grammar::Ptr& grammar, const std::string& text) {
  GrammarState state(grammar, byte_trie());
  for (const char byte : text)
    if (!state.accept(static_cast<unsigned char>(byte))) return std::nullopt;
  return state;
}

void check_walk(const Grammar::Ptr& grammar, const Vocabulary& vocabulary, std::mt19937& random) {
  const std::vector<std::int32_t> visible = {3, 30, 77};
  GrammarState state(grammar, vocabulary.trie, visible);
  std::string text;
  for (int step = 0; step < 12; ++step) {
    const std::vector<std::uint32_t> mask = mask_of(state, 5);
    std::vector<std::int32_t> allowed;
    for (std::size_t token = 0; token < vocabulary.tokens.size(); ++token) {
      const std::string more = shown(vocabulary, token, step == 0, visible);
      const bool expected = !more.empty() && behind(grammar, text + more);
      ASSERT_EQ(is_set(mask, token), expected) << token << " behind " << text;
      GrammarState copy = state;
      ASSERT_EQ(copy.accept(static_cast<std::int32_t>(token)), expected) << token << " behind " << text;
      if (expected) allowed.push_back(static_cast<std::int32_t>(token));
    }
    const auto bytes = behind(grammar, text);
    ASSERT_EQ(state.may_end(), bytes->may_end());
    ASSERT_EQ(state.must_end(), bytes->must_end());
    if (allowed.empty()) return;
    const std::int32_t chosen = allowed[random() % allowed.size()];
    text += shown(vocabulary, chosen, step == 0, visible);
    ASSERT_TRUE(state.accept(chosen));
  }
}

TEST(GrammarMasks, AreWhatEachTokensBytesSayAlone) {
  std::mt19937 random(11);
  const std::vector<Grammar::Ptr> grammars = some_grammars();
  for (int round = 0; round < test::rounds(16, 200); ++round) {
    const Vocabulary vocabulary =
        random_vocabulary(random, round % 2 ? FirstSpace::kStays : FirstSpace::kIsDropped);
    for (const Grammar::Ptr& grammar : grammars)
      ASSERT_NO_FATAL_FAILURE(check_walk(grammar, vocabulary, random));
  }
}

TEST(GrammarMasks, DoNotDependOnHowATextIsCut) {
  std::mt19937 random(12);
  const std::string text = R"({"a": [1, "é😀\n", {"b": null}], )";
  const Grammar::Ptr grammar = Grammar::of_json_object();
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> tokens;  // all bytes, and the parts of the text
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (std::size_t at = 0; at < text.size(); at += tokens.back().size())
      tokens.push_back(text.substr(at, 1 + random() % 6));
    GrammarState state(grammar, std::make_shared<const TokenTrie>(tokens, std::vector<bool>(tokens.size()),
                                                                  FirstSpace::kStays));
    for (std::size_t i = 256; i < tokens.size(); ++i) ASSERT_TRUE(state.accept(static_cast<std::int32_t>(i)));
    GrammarState expected = *behind(grammar, text);
    std::vector<std::uint32_t> mask = mask_of(state, 16);
    mask.resize(8);
    EXPECT_EQ(mask, mask_of(expected, 8));
  }
}

TEST(GrammarMasks, HaveRoomForMoreOrFewerTokens) {
  const auto trie = std::make_shared<const TokenTrie>(std::vector<std::string>(70, "a"),
                                                      std::vector<bool>(70), FirstSpace::kStays);
  GrammarState state(Grammar::of_regex("a*"), trie);
  EXPECT_EQ(mask_of(state, 2), (std::vector<std::uint32_t>{~0u, ~0u}));
  EXPECT_EQ(mask_of(state, 5), (std::vector<std::uint32_t>{~0u, ~0u, 63, 0, 0}));
  EXPECT_EQ(mask_of(state, 0), std::vector<std::uint32_t>{});
  EXPECT_FALSE(state.accept(70));
  EXPECT_FALSE(state.accept(-1));
}

TEST(GrammarMasks, TheFirstTokenLosesItsSpaces) {
  const std::vector<std::string> tokens = {" yes", "yes", "  yes", " ", " n o"};
  const auto allowed = [&](FirstSpace first_space, const char* regex) {
    GrammarState state(Grammar::of_regex(regex), std::make_shared<const TokenTrie>(
                                                     tokens, std::vector<bool>(tokens.size()), first_space));
    return mask_of(state, 1)[0];
  };
  EXPECT_EQ(allowed(FirstSpace::kStays, "yes"), 0b00010u);
  EXPECT_EQ(allowed(FirstSpace::kIsDropped, "yes"), 0b00011u);
  EXPECT_EQ(allowed(FirstSpace::kIsDropped, " yes|n o"), 0b10100u);
  EXPECT_EQ(allowed(FirstSpace::kAllAreDropped, " ?yes|n ?o"), 0b00011u);
}

TEST(TokenTrie, KnowsWhatTokenizersShow) {
  const Json file = parse_json_file(test::source_root() / "tests/server/text/tokenizer_cases.json");
  int dropping = 0;
  for (const Json& entry : file.at("tokenizers")) {
    const std::string name = entry.at("name").get<std::string>();
    SCOPED_TRACE(name);
    const Tokenizer tokenizer(entry.at("tokenizer"));
    const TokenTrie trie(tokenizer);
    ASSERT_EQ(trie.size(), tokenizer.vocab_size());
    dropping += trie.first_space() != FirstSpace::kStays;
    if (name == "bert" || name == "clip" || name == "word-level") continue;  // join words: no bytes of a text
    for (std::int32_t id = 0; id < trie.size(); ++id) {
      ASSERT_EQ(trie.bytes_of(id), tokenizer.token_bytes(id));
      const std::string_view first = trie.bytes_of_first(id);
      if (first.empty() || !is_valid_utf8(first) || tokenizer.is_special(id)) continue;
      EXPECT_EQ(tokenizer.decode({&id, 1}, false), first) << id;
    }
  }
  EXPECT_GE(dropping, 1);
}

// What an automaton keeps is taken to a new one several times, with all brackets that are open.
TEST(GrammarCaches, StayBoundedAndTextsGoOn) {
  const auto depth = static_cast<std::size_t>(test::rounds(60'000));
  const std::string text = "{\"a\":" + std::string(depth, '[') + "0" + std::string(depth, ']');
  const Grammar::Ptr grammar = Grammar::of_json_object();
  GrammarState state(grammar, byte_trie());
  std::size_t largest = 0, times_smaller = 0, last = 0;
  for (const char byte : text) {
    ASSERT_TRUE(state.accept(static_cast<unsigned char>(byte)));
    const std::size_t bytes = grammar->bytes();
    times_smaller += bytes < last;
    largest = std::max(largest, last = bytes);
  }
  EXPECT_LT(largest, std::size_t{40} << 20);
  EXPECT_TRUE(test::is_sanitized() || times_smaller >= 2) << largest;
  EXPECT_FALSE(state.accept(']'));
  EXPECT_TRUE(state.accept('}'));
  EXPECT_TRUE(state.must_end());
}

TEST(GrammarCaches, AreSharedByThreads) {
  const Grammar::Ptr grammar = Grammar::of_json_object();
  const std::string text = R"({"a": {"b": [[1, 2], {"c": "d"}]}})";
  std::vector<std::thread> threads;
  std::vector<int> done(4, 0);
  for (std::size_t t = 0; t < done.size(); ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) done[t] += test::holds(grammar, text);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, std::vector<int>(4, 20));
}

// The processor's time of this thread: others on the machine do not count.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Compiles, and writes a few times what it may; whichever error ends it.
std::string end_of(const std::function<Grammar::Ptr()>& compile, const std::string& text) {
  const double start = thread_seconds();
  const std::string error = error_of([&] {
    GrammarState state(compile(), byte_trie());
    std::vector<std::uint32_t> mask(8);
    for (const char byte : text) {
      state.allowed(mask);
      state.accept(static_cast<unsigned char>(byte));
    }
  });
  EXPECT_LT(thread_seconds() - start, 20) << "some 2 s where the compiler optimises";
  return error;
}

std::string nested(const std::string& open, int depth, const std::string& inside, const std::string& close) {
  std::string out;
  for (int i = 0; i < depth; ++i) out += open;
  out += inside;
  for (int i = 0; i < depth; ++i) out += close;
  return out;
}

TEST(HostileGrammar, RepetitionsOfRepetitionsEndSoon) {
  EXPECT_EQ(end_of([] { return Grammar::of_regex("((((a{1,999}){1,999}){1,999}){1,999}){1,999}b"); }, "aaaa"),
            "");
  EXPECT_EQ(end_of([] { return Grammar::of_regex("(((a*)*)*)*(x+x+)+y"); }, std::string(60, 'x')), "");
  if (test::is_sanitized())
    return;  // what follows uses up its budget, which takes a sanitizer twenty times as long
  EXPECT_NE(
      end_of(
          [] {
            return Grammar::of_regex(
                "(?:a{0,99999}b{0,99999}){2}(?:c{0,99999}d{0,99999}){2}(?:[a-z]{0,99999}){3}[0-9]{999999}");
          },
          "")
          .find("compiling it "),
      std::string::npos);
  end_of([] { return Grammar::of_regex("(?:a?){50000}a{50000}"); }, "aa");
}

TEST(HostileGrammar, DeepNestingIsRefusedAndNeverOverflows) {
  EXPECT_EQ(end_of([] { return Grammar::of_regex(nested("(", 256, "a", ")")); }, "a"), "");
  EXPECT_NE(end_of([] { return Grammar::of_regex(nested("(", 100'000, "a", ")")); }, ""), "");
  EXPECT_NE(end_of([] { return Grammar::of_gbnf("root ::= " + nested("(", 100'000, "\"a\"", ")")); }, ""),
            "");
  Json schema = ark::parse_json(R"({"type":"null"})"), constant = Json::object();
  Json& value = constant["const"];
  for (int i = 0; i < 1000; ++i) {
    Json outer = Json::object(), list = Json::array();
    outer["items"] = std::move(schema);
    schema = std::move(outer);
    list.push_back(std::move(value));
    value = std::move(list);
  }
  EXPECT_EQ(end_of([&] { return Grammar::of_json_schema(schema); }, "[[[["), "");
  EXPECT_EQ(end_of([&] { return Grammar::of_json_schema(constant); }, ""),
            "schema: #: a value of enum or const nests deeper than 256 levels");
}

TEST(HostileGrammar, TextsThatNestDeepAreFollowed) {
  EXPECT_EQ(
      end_of([] { return Grammar::of_json_object(); }, "{\"a\":" + std::string(test::rounds(8000), '[')), "");
}

TEST(HostileGrammar, AmbiguityEndsWithAnErrorThatSaysSo) {
  if (test::is_sanitized()) GTEST_SKIP() << "uses up its budget; under sanitizers the fuzzer looks for such";
  std::string rules = "root ::= s\ns ::= ";
  for (int i = 0; i < 40; ++i) rules += "\"a\" s s | \"a\" s \"b\"{" + std::to_string(i) + "} | ";
  const std::string error = end_of([&] { return Grammar::of_gbnf(rules + "\"a\""); }, std::string(400, 'a'));
  EXPECT_NE(error.find("too ambiguous"), std::string::npos) << error;
}

TEST(HostileGrammar, SchemasThatMultiplyEndSoon) {
  if (test::is_sanitized()) GTEST_SKIP() << "uses up its budget; under sanitizers the fuzzer looks for such";
  Json groups = Json::array();
  for (int i = 0; i < 24; ++i)
    groups.push_back(
        ark::parse_json(R"({"anyOf":[{"required":["a)" + std::to_string(i) + R"("]},{"required":["b"]}]})"));
  EXPECT_NE(end_of(
                [&] {
                  return Grammar::of_json_schema(Json{{"type", "object"}, {"allOf", groups}});
                },
                ""),
            "");
  Json wide = Json::object();
  for (int i = 0; i < test::rounds(3000); ++i)
    wide["property" + std::to_string(i)] = Json{{"type", "string"}};
  EXPECT_EQ(end_of(
                [&] {
                  return Grammar::of_json_schema(Json{{"type", "object"}, {"properties", wide}});
                },
                "{\"prop"),
            "");
  Json chain = Json::object();
  for (int i = 0; i < 2000; ++i)
    chain["d" + std::to_string(i)] = Json{{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
  EXPECT_NE(end_of(
                [&] {
                  return Grammar::of_json_schema(Json{{"$defs", chain}, {"$ref", "#/$defs/d0"}});
                },
                ""),
            "");
}

}  // namespace
}  // namespace ark::text
