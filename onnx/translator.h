// Records the operations of a forward pass, in their order. A caster in the slot of
// autograd/slots.h sees each operation after its casts, and a tap around it sees its inputs,
// its attributes and its result. Nothing outside of this folder knows of it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <halftone/amp/autocast.h>
#include <halftone/autograd/slots.h>
#include <halftone/nn/module.h>
#include <halftone/onnx/conversions.h>
#include <halftone/amp/rules.h>

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

// Turns recordings of one model into a graph. The passes differ in the rows of the batch, and one
// in its values: so sizes that depend on the batch are found, and values that were computed outside
// of operations are errors instead of wrong constants.

struct Names {
  std::vector<std::string> inputs, outputs;
};

class Translator {
 public:
  /// rows[p]: the size of the batch in pass p; if all are equal, the graph's batch size is fixed.
  Translator(const nn::Module& model, std::vector<Recording> passes, std::vector<int64_t> rows);
  /// Returns the graph. Throws UnsupportedError for what ONNX cannot say, UsageError for bad names.
  Graph graph(const Names& names);

 private:
  friend class Step;
  /// The origin of a tensor: the call that computed it, an input, a weight, or a constant.
  struct Origin {
    enum class Kind : uint8_t { call, input, weight, constant } kind = Kind::constant;
    std::size_t number = 0;  // among the calls, inputs or weights
    bool operator==(const Origin&) const = default;
  };
  /// Identifies the elements of a tensor: two views of the same elements in the same order are one
  /// value, whatever their handles are. The recordings keep all storages alive.
  struct Key {
    const Storage* storage;
    int64_t offset;
    DType dtype;
    std::vector<int64_t> shape, strides;
    explicit Key(const Tensor& x);
    auto operator<=>(const Key&) const = default;
  };
  using Origins = std::map<Key, Origin>;

  void find_origins();
  void require_same_calls() const;
  std::vector<bool> live_calls() const;
  Origin origin_of(const Tensor& x, std::size_t pass) const;
  /// Returns the graph's value of a tensor; x[p] is the tensor in pass p.
  Value value_of(const std::vector<const Tensor*>& x);
  Value constant(const std::vector<const Tensor*>& x);
  Size size_of(const std::vector<int64_t>& values, const std::string& what) const;
  Sizes sizes_of(const std::vector<const Tensor*>& x, const std::string& what) const;
  std::vector<const Tensor*> in_all(const std::function<const Tensor&(const Recording&)>& of) const;
  std::string described_call(std::size_t call) const;
  void reserve_names(const Names& names);
  void declare_inputs(const std::vector<std::string>& names);
  void write_calls();

  std::vector<Recording> passes_;
  std::vector<int64_t> rows_;
  nn::Named<Tensor> weights_;
  std::vector<Origins> origins_;  // one map for each pass
  std::map<std::size_t, Value> results_;
  std::vector<std::string> input_names_;
  Graph graph_;
};

}  // namespace halftone::onnx
