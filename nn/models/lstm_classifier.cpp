// The network, as a module with named parts.
#include <halftone/nn/models/lstm_classifier.h>

namespace halftone::nn::models {

LstmClassifier::LstmClassifier(int64_t vocabulary, LstmClassifierOptions o)
    : embedding(vocabulary, o.width),
      lstm(o.width, o.hidden,
           {.layers = o.layers,
            .batch_first = true,
            .bidirectional = o.bidirectional,
            .dropout = o.dropout}),
      fc(o.hidden * (o.bidirectional ? 2 : 1), o.classes) {}

Tensor LstmClassifier::forward(const Tensor& tokens) const {
  const Tensor h = lstm(embedding(tokens)).h;  // [layers * directions, n, hidden]
  Tensor last = select(h, 0, -1);
  if (lstm.options.bidirectional) last = cat({select(h, 0, -2), last}, 1);
  return fc(dropout(last, lstm.options.dropout, training));
}

void LstmClassifier::describe(Fields& field) {
  field("embedding", embedding), field("lstm", lstm), field("fc", fc);
}

}  // namespace halftone::nn::models
