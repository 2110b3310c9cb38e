// Makes a batch of a list of tensors: the inputs first, the targets last.
#include <halftone/data/dataset.h>

namespace halftone::data {

Batch Batch::of(std::vector<Tensor> tensors) {
  if (tensors.empty())
    fail<UsageError>("Batch.of", "there is no tensor. Pass inputs, and targets after them.");
  Batch batch{.inputs = tensors.front(), .targets = {}};
  if (tensors.size() > 1) batch.targets = tensors.back();
  if (tensors.size() > 2) batch.more.assign(tensors.begin() + 1, tensors.end() - 1);
  return batch;
}

}  // namespace halftone::data
