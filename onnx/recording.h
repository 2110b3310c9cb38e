// Records the operations of a forward pass, in their order. A caster in the slot of
// autograd/slots.h sees each operation after its casts, and a tap around it sees its inputs,
// its attributes and its result. Nothing outside of this folder knows of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <halftone/amp/autocast.h>
#include <halftone/autograd/slots.h>
#include <halftone/policy/rules.h>

namespace halftone::onnx {

/// One operation that ran.
struct Call {
  const OpInfo* info;
  std::shared_ptr<const void> op{};  // the operation's struct before it ran; null: not exported
  std::string place{};               // the path of its module
  std::vector<Tensor> inputs{};      // undefined: absent
  Tensor output{};
  uint64_t version = 0;  // of the output's storage
};

/// Returns `"linear" in "layer1.0"`.
std::string described(const Call& call);

struct Recording {
  std::vector<Tensor> inputs{}, outputs{};
  std::vector<Call> calls{};
};

using Forward = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Runs forward(inputs) without gradients, inside `region` if there is one, and records it.
Recording record(const policy::ModelNames& names, const Forward& forward,
                 const std::vector<Tensor>& inputs, const std::optional<amp::Region>& region);

}  // namespace halftone::onnx
