// An ONNX graph, and the Protocol Buffers that it is written as.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone::onnx {

// Writes messages in the wire format of Protocol Buffers. ONNX files need three kinds of fields:
// varints, 32-bit floats, and lengths followed by bytes. A reader is not needed.

/// A message, as bytes. Each function appends a field of the given number.
class Message {
 public:
  /// For int32, int64, enum and bool.
  Message& number(int field, int64_t value) {
    varint(uint64_t(field) << 3);
    varint(uint64_t(value));
    return *this;
  }
  /// For string and bytes.
  Message& text(int field, std::string_view bytes) {
    varint(uint64_t(field) << 3 | 2);
    varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  Message& message(int field, const Message& inner) { return text(field, inner.bytes_); }
  /// For float: little-endian, as Protocol Buffers demand.
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

/// An AttributeProto.
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

  /// Adds a node with one result of the given dtype. `where`: the module, for the node's name.
  Value add(std::string_view type, const std::vector<Value>& inputs, DType dtype,
            Attributes attributes = {});
  /// The same with several results of one dtype.
  std::vector<Value> add(std::string_view type, const std::vector<Value>& inputs, DType dtype,
                         std::size_t results, Attributes attributes);
  /// Sets the prefix of the names of later nodes: the path of a module.
  void set_place(std::string place) { place_ = std::move(place); }

  /// Keeps a name for a weight, an input or an output. Returns false if it has been taken.
  bool reserve(const std::string& name) { return used_.try_emplace(name, 1).second; }
  void input(const std::string& name, DType dtype, const Sizes& shape);
  /// Declares a result. The node that computes it is made to write to that name.
  void output(const std::string& name, const Value& value, const Sizes& shape);
  /// Adds a tensor to the file, once per name.
  Value weight(const std::string& name, const Tensor& x);

  /// Return constants; equal ones are stored once.
  Value constant(const Tensor& x);
  Value number(Number value, DType dtype);
  Value integers(const std::vector<int64_t>& values);
  /// Returns an i64 vector, computed from the rows of the first input if a size needs them.
  Value integers(const Sizes& sizes);
  /// Returns a zero of a short format: the zero point that tells Q/DQ nodes their format.
  Value zero_point(ShortFormat format);

  /// Raises the file's opset: an operator needs it.
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

}  // namespace halftone::onnx
