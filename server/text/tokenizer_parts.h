// What a Tokenizer is made of; for tokenizer.cc and detokenizer.cc.
#pragma once

#include "server/text/added_tokens.h"
#include "server/text/decoder.h"
#include "server/text/normalizer.h"
#include "server/text/post_processor.h"
#include "server/text/pre_tokenizer.h"
#include "server/text/token_model.h"
#include "server/text/tokenizer.h"

namespace ark::text {

struct Tokenizer::Parts {
  Parts(const JsonView& json, Budget& budget)
      : normalizer(json.at("normalizer")),
        pre_tokenizer(json.at("pre_tokenizer")),
        model(TokenModel::parse(json.at("model"))),
        added(json.at("added_tokens"), normalizer, budget),
        post_processor(json.at("post_processor")),
        decoder(json.at("decoder")) {}

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const TokenModel> model;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;
};

}  // namespace ark::text
