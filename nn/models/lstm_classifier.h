// Classifies sequences of tokens: an embedding, an LSTM, and a linear layer on the state after the
// last token (Hochreiter & Schmidhuber 1997).
#pragma once

#include <halftone/nn/embedding.h>
#include <halftone/nn/linear.h>
#include <halftone/nn/rnn.h>

namespace halftone::nn::models {

struct LstmClassifierOptions {
  int64_t classes = 2;
  int64_t width = 128;   // of the embedding
  int64_t hidden = 128;  // of each direction
  int64_t layers = 1;
  bool bidirectional = false;  // the last states of both directions are joined
  double dropout = 0;          // between layers, and before the linear layer
};

struct LstmClassifier final : Layer {
  Embedding embedding;
  Lstm lstm;
  Linear fc;
  explicit LstmClassifier(int64_t vocabulary, LstmClassifierOptions options = {});
  /// tokens: i64 [n, time]; the result: logits [n, classes].
  Tensor forward(const Tensor& tokens) const override;
  void describe(Fields& field) override;
};

}  // namespace halftone::nn::models
