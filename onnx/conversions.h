// One function per operation writes its ONNX nodes. The functions are in convert_*.cpp, by kind;
// each file hands its list to the table in convert_formulas.cpp.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/autograd/apply.h>
#include <halftone/onnx/graph.h>

namespace halftone::onnx {

class Translator;

/// An operation at work in each recorded pass, which differ in the rows of the batch.
class Step {
 public:
  Step(Translator& translator, std::size_t call) : translator_(translator), call_(call) {}

  Graph& graph() const;
  const OpInfo& info() const;
  std::size_t input_count() const;
  bool has(std::size_t input) const;
  /// Returns an input in the graph; as it is, or in the dtype that short floats are computed in.
  Value input(std::size_t i) const;
  Value wide_input(std::size_t i) const;
  /// Returns an input, but a bf16 one in f32, which changes no product or choice: onnxruntime's CPU
  /// has few operations in bf16. result() rounds to bf16 once, as here.
  Value runnable_input(std::size_t i) const;
  /// Returns the value of a tensor that is not an input: a buffer.
  Value known(const Tensor& x) const;
  /// Returns an input's tensor, or the result, in a pass.
  const Tensor& tensor(std::size_t input, std::size_t pass = 0) const;
  const Tensor& output(std::size_t pass = 0) const;
  int rank(std::size_t input) const { return tensor(input).rank(); }
  Sizes input_sizes(std::size_t i) const;
  Sizes output_sizes() const;
  /// Returns a size from its values in all passes. Throws if it is not linear in the rows.
  Size size_of(const std::function<int64_t(std::size_t pass)>& value) const;
  /// Returns the operation's struct in a pass.
  template <class Op> const Op& op(std::size_t pass = 0) const {
    return *static_cast<const Op*>(struct_of(pass));
  }

  /// Adds a node whose result has the dtype of its first input.
  Value node(std::string_view type, const std::vector<Value>& inputs,
             Attributes attributes = {}) const {
    return graph().add(type, inputs, inputs.at(0).dtype, std::move(attributes));
  }
  Value cast(const Value& x, DType dtype) const;
  Value reshape(const Value& x, const Sizes& sizes) const;
  Value transpose(const Value& x, const std::vector<int64_t>& order) const;
  Value number(Number value, DType dtype) const { return graph().number(value, dtype); }

  /// Sets the value of the operation's result, cast to its dtype.
  void result(const Value& value) const;
  /// Throws UnsupportedError: the operation has no counterpart. `why` follows its name.
  [[noreturn]] void refuse(const std::string& why) const;
  /// Returns whether an input is a constant of zeros.
  bool is_zero(std::size_t input) const;
  /// Returns the step that computed an input of this one, or null.
  std::optional<Step> maker_of(std::size_t input) const;

 private:
  const void* struct_of(std::size_t pass) const;
  Translator& translator_;
  std::size_t call_;
};

/// How one operation is written.
struct Conversion {
  const OpInfo* info;
  /// Returns a copy of a computation's operation.
  std::shared_ptr<const void> (*copy)(const Computation& computation);
  /// Returns whether all attributes of two structs are equal.
  bool (*same)(const void* a, const void* b);
  void (*write)(const Step& step);
};

/// Returns null for an operation without a counterpart.
const Conversion* conversion_of(const OpInfo& op);

namespace detail {
template <class M> bool same_attributes(const M& a, const M& b) {
  if constexpr (std::same_as<M, Tensor> || std::same_as<M, std::vector<Tensor>>) {
    return true;
  } else if constexpr (std::same_as<M, Number>) {
    return a.value == b.value && a.integer == b.integer;
  } else if constexpr (std::equality_comparable<M>) {
    return a == b;
  } else if constexpr (std::is_empty_v<M>) {
    return true;
  } else if constexpr (requires { a.array(); }) {
    return a.array() == b.array();
  } else if constexpr (requires { a.has_value(), *a; }) {
    return a.has_value() == b.has_value() && (!a.has_value() || same_attributes(*a, *b));
  } else if constexpr (std::is_aggregate_v<M>) {
    std::vector<bool> equal;
    std::vector<const void*> seconds;
    halftone::detail::for_each_member(b, [&](const auto& y) { seconds.push_back(&y); });
    std::size_t i = 0;
    halftone::detail::for_each_member(a, [&](const auto& x) {
      using Member = std::remove_cvref_t<decltype(x)>;
      equal.push_back(same_attributes(x, *static_cast<const Member*>(seconds[i++])));
    });
    return std::ranges::find(equal, false) == equal.end();
  } else {
    return true;  // a mask, a key
  }
}
}  // namespace detail

/// `sizes_vary`: its attributes are sizes, which may depend on the rows of the batch.
template <class Op> Conversion conversion(void (*write)(const Step&), bool sizes_vary = false) {
  const auto copy = [](const Computation& computation) -> std::shared_ptr<const void> {
    const auto* const ours = dynamic_cast<const ComputationOf<Op>*>(&computation);
    return ours ? std::make_shared<const Op>(ours->operation()) : nullptr;
  };
  const auto same = [](const void* a, const void* b) {
    return detail::same_attributes(*static_cast<const Op*>(a), *static_cast<const Op*>(b));
  };
  const auto anything = [](const void*, const void*) { return true; };
  if (sizes_vary) return {&Op::info, copy, anything, write};
  return {&Op::info, copy, same, write};
}

std::vector<Conversion> formula_conversions();
std::vector<Conversion> shape_conversions();
std::vector<Conversion> reduction_conversions();
std::vector<Conversion> product_conversions();
std::vector<Conversion> image_conversions();
std::vector<Conversion> recurrent_conversions();
std::vector<Conversion> quantizer_conversions();

}  // namespace halftone::onnx
