// Decoders of tokenizer.json: tokens -> text, one token at a time.
//
// A decoder is a chain of stages, each turning a stream of tokens into another. Text that a later token may
// still change stays in the stage's state until that token, or the end, has come. Decoding a whole list and
// decoding as tokens arrive are therefore the same computation and give the same bytes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/budget.h"
#include "server/text/json_view.h"

namespace ark::text {

// The state of one stage in one stream.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  // Appends to `out` what is certain after this token. Returns how many of these were held back for it: the first ones,
  // of earlier tokens alone.
  virtual std::size_t push(std::string_view token, std::vector<std::string>& out, Budget& budget) = 0;
  virtual void flush(std::vector<std::string>& out, Budget& budget) { (void)out, (void)budget; }
};

class Decoder {
 public:
  Decoder() = default;  // joins tokens with spaces
  explicit Decoder(const JsonView& json);

  // One running decoding. It refers to the decoder, which must outlive it.
  class Stream {
   public:
    explicit Stream(const Decoder& decoder);
    // Text that is certain after this token: whole characters. kInvalidArgument where the stages make too
    // much of it.
    std::string push(std::string_view token);
    std::string flush();
    // Where the token's own text begins in what push() returned last: before it is what waited for the token.
    std::size_t own_begin() const { return own_begin_; }

   private:
    std::string drain(std::vector<std::string> tokens, std::size_t stage, Budget& budget);
    std::vector<std::unique_ptr<DecodeStage>> stages_;
    std::size_t made_ = 0;  // bytes of all text
    std::size_t own_begin_ = 0;
  };

  // The bytes that a token stands for by itself, before any character is put together.
  std::string token_bytes(std::string_view token) const;

  using Step = std::function<std::unique_ptr<DecodeStage>()>;  // starts a stage; it outlives what it starts

 private:
  void add(const JsonView& json, int depth);

  std::vector<Step> steps_;
  bool joins_with_spaces_ = true;  // no decoder at all: unlike a Sequence of none
  bool fused_ = false;             // while adding: everything so far comes as one token, in fragments
  bool byte_level_ = false, byte_fallback_ = false;
};

}  // namespace ark::text
