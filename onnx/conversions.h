// An ONNX graph, and the Protocol Buffers that it is written as.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/autograd/apply.h>
#include <halftone/core/tensor.h>

namespace halftone::onnx {

// Writes messages in the wire format of Protocol Buffers. ONNX files need three kinds of fields:
// varints, 32-bit floats, and lengths followed by bytes. A reader is not needed.

/// A message, as bytes; `field` is the number of a field.
class Message {
 public:
  /// Appends a field of type int32, int64, enum or bool.
  Message& number(int field, int64_t value) {
    varint(uint64_t(field) << 3);
    varint(uint64_t(value));
    return *this;
  }
  /// Appends a field of type string or bytes.
  Message& text(int field, std::string_view bytes) {
    varint(uint64_t(field) << 3 | 2);
    varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  Message& message(int field, const Message& inner) { return text(field, inner.bytes_); }
  /// Appends a field of type float: little-endian, as Protocol Buffers demand.
  Message& real(int field, float value) {
    varint(uint64_t(field) << 3 | 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int i = 0; i < 4; ++i) bytes_ += char(bits >> (8 * i) & 0xff);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += char((value & 0x7f) | 0x80);
    bytes_ += char(value);
  }
  std::string bytes_;
};

// An ONNX graph under construction: nodes, weights and constants, as ONNX's onnx.proto names them.
// It knows no operation of halftone.

/// The name of a tensor in the graph, with its dtype. An empty name: an absent optional input.
struct Value {
  std::string name{};
  DType dtype = f32;
  bool defined() const { return !name.empty(); }
};

/// A size that may depend on the batch: fixed + per_row * (rows of the batch).
struct Size {
  int64_t fixed = 0, per_row = 0;
  Size() = default;
  Size(int64_t value) : fixed(value) {}
  Size(int64_t value, int64_t rows) : fixed(value), per_row(rows) {}
  bool operator==(const Size&) const = default;
};
using Sizes = std::vector<Size>;

/// Return an AttributeProto with this name and value.
Message attribute(std::string_view name, int64_t value);
Message attribute(std::string_view name, double value);
Message attribute(std::string_view name, const char* value);
Message attribute(std::string_view name, const std::vector<int64_t>& values);
using Attributes = std::vector<Message>;

/// The short formats that only quantizers use, by their numbers in TensorProto.DataType.
enum class ShortFormat : int { int8 = 3, e4m3 = 17, e5m2 = 19, e2m1 = 23 };

class Graph {
 public:
  /// The lowest opset that has every operator used here without conditions.
  static constexpr int lowest_opset = 18;
  static constexpr const char* batch_name = "batch";

  /// Adds a node of an ONNX operator (`type`), and returns its one result, of the given dtype.
  Value add(std::string_view type, const std::vector<Value>& inputs, DType dtype,
            Attributes attributes = {});
  /// The same for `results` results of one dtype.
  std::vector<Value> add(std::string_view type, const std::vector<Value>& inputs, DType dtype,
                         std::size_t results, Attributes attributes);
  /// Sets the prefix of the names of later nodes: the path of a module.
  void set_place(std::string place) { place_ = std::move(place); }

  /// Reserves a name for a weight, an input or an output. Returns false if it has been taken.
  bool reserve(const std::string& name) { return used_.try_emplace(name, 1).second; }
  void input(const std::string& name, DType dtype, const Sizes& shape);
  /// Declares an output of the graph. The node that computes `value` is made to write to this name.
  void output(const std::string& name, const Value& value, const Sizes& shape);
  /// Adds a weight to the file, once per name, and returns it.
  Value weight(const std::string& name, const Tensor& x);

  /// Return constants; equal ones are stored once.
  Value constant(const Tensor& x);
  Value number(Number value, DType dtype);
  Value integers(const std::vector<int64_t>& values);
  /// Returns an i64 vector; sizes that depend on the batch are computed from the first input.
  Value integers(const Sizes& sizes);
  /// Returns a zero of a short format: the zero point that tells Q/DQ nodes their format.
  Value zero_point(ShortFormat format);

  /// Raises the file's opset to `opset` at least, because an operator needs it.
  void need_opset(int opset) { opset_ = std::max(opset_, opset); }
  int opset() const { return opset_; }
  /// Returns the version of the file format that belongs to the opset.
  int ir_version() const;
  /// Drops nodes and weights that no output needs, and returns a ModelProto. Throws
  /// UnsupportedError for more than 2 GiB, which Protocol Buffers cannot hold.
  std::string serialized();
  int64_t node_count() const { return int64_t(nodes_.size()); }
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct Node {
    std::string name, type;
    std::vector<std::string> inputs, outputs;
    Attributes attributes;
  };
  void drop_unused();
  Value rows();
  std::string new_name(std::string_view base);
  void rename(const std::string& from, const std::string& to);

  std::vector<Node> nodes_;
  std::vector<std::pair<std::string, Tensor>> weights_;
  std::vector<std::pair<std::string, ShortFormat>> zero_points_;
  std::vector<std::pair<std::string, Message>> inputs_, outputs_;
  std::map<std::string, Value> constants_;  // by dtype, shape and bytes
  std::map<std::string, int64_t> used_;     // names, with the number of the next duplicate
  std::string place_;
  Value rows_;
  int opset_ = lowest_opset;
  int64_t weight_bytes_ = 0;
};

/// Returns the number of a dtype in TensorProto.DataType.
int64_t data_type(DType dtype);

// One function per operation writes its ONNX nodes. The functions are in convert_*.cpp, by kind;
// each file hands its list to the table in convert_formulas.cpp.

class Translator;

/// One recorded operation, as it ran in each recorded pass; passes differ in the rows of the batch.
class Step {
 public:
  Step(Translator& translator, std::size_t call) : translator_(translator), call_(call) {}

  Graph& graph() const;
  const OpInfo& info() const;
  std::size_t input_count() const;
  bool has(std::size_t input) const;
  /// input() returns an input's value in the graph; wide_input() casts f16 and bf16 to f32.
  Value input(std::size_t i) const;
  Value wide_input(std::size_t i) const;
  /// Returns an input, cast to f32 if it is bf16, which changes no product or choice: onnxruntime's
  /// CPU has few operations in bf16. result() rounds to bf16 once, as halftone does.
  Value runnable_input(std::size_t i) const;
  /// Returns the graph's value of a tensor that is not an input of the operation, such as a buffer.
  Value known(const Tensor& x) const;
  /// Return the tensor of an input, or of the result, in a pass.
  const Tensor& tensor(std::size_t input, std::size_t pass = 0) const;
  const Tensor& output(std::size_t pass = 0) const;
  int rank(std::size_t input) const { return tensor(input).rank(); }
  Sizes input_sizes(std::size_t i) const;
  Sizes output_sizes() const;
  /// Returns the Size with value(p) in each pass p; UnsupportedError if not linear in the rows.
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
  /// Throws UnsupportedError: ONNX has no such operation. The message is its name, then `why`.
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

/// How one operation is written as ONNX nodes.
struct Conversion {
  const OpInfo* info;
  /// Returns a copy of a computation's operation.
  std::shared_ptr<const void> (*copy)(const Computation& computation);
  /// Returns whether all attributes of two structs are equal.
  bool (*same)(const void* a, const void* b);
  void (*write)(const Step& step);
};

/// Returns how an operation is written; null for one that ONNX does not have.
const Conversion* conversion_of(const OpInfo& op);

namespace detail {
template <class M> bool same_attributes(const M& a, const M& b) {
  if constexpr (std::same_as<M, Tensor> || std::same_as<M, std::vector<Tensor>>) {
    return true;
  } else if constexpr (requires { a.use_count(); }) {
    return true;  // a result on its way to the next operation
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

/// Makes the Conversion of Op. `sizes_vary`: its attributes are sizes that may depend on the rows,
/// so Conversion::same does not compare them.
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
