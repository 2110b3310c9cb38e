// Field numbers are those of onnx.proto (IR versions 8 to 11).
#include <halftone/onnx/conversions.h>

#include <algorithm>
#include <limits>
#include <set>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone::onnx {

namespace {
constexpr int attribute_float = 1, attribute_int = 2, attribute_string = 3, attribute_ints = 7;

Message value_info(const std::string& name, DType dtype, const Sizes& shape) {
  Message dims;
  for (const Size& size : shape) {
    Message dim;
    if (size.per_row == 0) dim.number(1, size.fixed);
    else if (size == Size(0, 1)) dim.text(2, Graph::batch_name);
    dims.message(1, dim);  // empty: a size that has no name
  }
  Message tensor;
  tensor.number(1, data_type(dtype)).message(2, dims);
  Message type, info;
  type.message(1, tensor);
  info.text(1, name).message(2, type);
  return info;
}

Tensor on_host(const Tensor& x) { return views::contiguous(x.to(Device::cpu())); }

std::string_view bytes_of(const Tensor& x) {
  return {reinterpret_cast<const char*>(x.raw_data()), std::size_t(x.bytes())};
}

Message tensor_proto(const std::string& name, const Tensor& x) {
  const Tensor data = on_host(x);
  Message tensor;
  for (const int64_t size : x.shape()) tensor.number(1, size);
  tensor.number(2, data_type(x.dtype())).text(8, name).text(9, bytes_of(data));
  return tensor;
}
}  // namespace

int64_t data_type(DType dtype) {
  switch (dtype) {
    case f32: return 1;
    case u8: return 2;
    case i16: return 5;
    case i32: return 6;
    case i64: return 7;
    case boolean: return 9;
    case f16: return 10;
    case f64: return 11;
    case bf16: return 16;
    case f8_e4m3: return int64_t(ShortFormat::e4m3);
    case f8_e5m2: return int64_t(ShortFormat::e5m2);
  }
  return 0;
}

Message attribute(std::string_view name, int64_t value) {
  return Message().text(1, name).number(3, value).number(20, attribute_int);
}
Message attribute(std::string_view name, double value) {
  return Message().text(1, name).real(2, float(value)).number(20, attribute_float);
}
Message attribute(std::string_view name, const char* value) {
  return Message().text(1, name).text(4, value).number(20, attribute_string);
}
Message attribute(std::string_view name, const std::vector<int64_t>& values) {
  Message result;
  result.text(1, name);
  for (const int64_t value : values) result.number(8, value);
  return result.number(20, attribute_ints);
}

std::string Graph::new_name(std::string_view base) {
  std::string name(base);
  for (auto [place, is_new] = used_.try_emplace(name, 1); !is_new;
       std::tie(place, is_new) = used_.try_emplace(name, 1))
    name = std::string(base) + '_' + std::to_string(used_[std::string(base)]++);
  return name;
}

Value Graph::add(std::string_view type, const std::vector<Value>& inputs, DType dtype,
                 Attributes attributes) {
  return add(type, inputs, dtype, 1, std::move(attributes))[0];
}

std::vector<Value> Graph::add(std::string_view type, const std::vector<Value>& inputs, DType dtype,
                              std::size_t results, Attributes attributes) {
  Node node{.name = {},
            .type = std::string(type),
            .inputs = {},
            .outputs = {},
            .attributes = std::move(attributes)};
  node.name = new_name(place_.empty() ? node.type : place_ + '/' + node.type);
  for (const Value& x : inputs) node.inputs.push_back(x.name);
  while (!node.inputs.empty() && node.inputs.back().empty()) node.inputs.pop_back();
  std::vector<Value> values;
  for (std::size_t i = 0; i < results; ++i) {
    values.push_back({new_name(node.name + (i == 0 ? ":" : ":" + std::to_string(i))), dtype});
    node.outputs.push_back(values.back().name);
  }
  nodes_.push_back(std::move(node));
  return values;
}

void Graph::input(const std::string& name, DType dtype, const Sizes& shape) {
  inputs_.emplace_back(name, value_info(name, dtype, shape));
}

void Graph::rename(const std::string& from, const std::string& to) {
  for (Node& node : nodes_)
    for (auto* names : {&node.inputs, &node.outputs})
      for (std::string& name : *names)
        if (name == from) name = to;
}

void Graph::output(const std::string& name, const Value& value, const Sizes& shape) {
  const auto makes_it = [&](const Node& node) {
    return std::ranges::find(node.outputs, value.name) != node.outputs.end();
  };
  const bool is_result =
      std::ranges::any_of(outputs_, [&](const auto& other) { return other.first == value.name; });
  if (std::ranges::any_of(nodes_, makes_it) && !is_result) {
    rename(value.name, name);
  } else {
    nodes_.push_back({new_name("Identity"), "Identity", {value.name}, {name}, {}});
  }
  outputs_.emplace_back(name, value_info(name, value.dtype, shape));
}

Value Graph::weight(const std::string& name, const Tensor& x) {
  const auto has_it = [&](const auto& known) { return known.first == name; };
  if (std::ranges::none_of(weights_, has_it)) weights_.emplace_back(name, x);
  return {name, x.dtype()};
}

Value Graph::constant(const Tensor& x) {
  const Tensor data = on_host(x);
  std::string key(name(x.dtype()));
  for (const int64_t size : x.shape()) key += ' ' + std::to_string(size);
  (key += ':') += bytes_of(data);
  Value& known = constants_[key];
  if (!known.defined()) {
    known = {new_name("constant"), x.dtype()};
    weights_.emplace_back(known.name, data);
  }
  return known;
}
Value Graph::number(Number value, DType dtype) { return constant(full({}, value, dtype)); }
Value Graph::integers(const std::vector<int64_t>& values) {
  return constant(from_vector(values, {int64_t(values.size())}));
}

Value Graph::rows() {
  if (!rows_.defined()) {
    const Value shape = add("Shape", {{inputs_.at(0).first, i64}}, i64,
                            {attribute("start", int64_t(0)), attribute("end", int64_t(1))});
    rows_ = shape;
  }
  return rows_;
}

Value Graph::integers(const Sizes& sizes) {
  std::vector<int64_t> fixed;
  for (const Size& size : sizes) fixed.push_back(size.fixed);
  if (std::ranges::all_of(sizes, [](const Size& size) { return size.per_row == 0; }))
    return integers(fixed);
  std::vector<Value> parts;
  for (const Size& size : sizes) {
    if (size.per_row == 0) {
      parts.push_back(integers(std::vector<int64_t>{size.fixed}));
      continue;
    }
    Value part = rows();
    if (size.per_row != 1)
      part = add("Mul", {part, integers(std::vector<int64_t>{size.per_row})}, i64);
    if (size.fixed != 0) part = add("Add", {part, integers(std::vector<int64_t>{size.fixed})}, i64);
    parts.push_back(part);
  }
  return parts.size() == 1 ? parts[0] : add("Concat", parts, i64, {attribute("axis", int64_t(0))});
}

Value Graph::zero_point(ShortFormat format) {
  for (const auto& [name, known] : zero_points_)
    if (known == format) return {name, u8};
  zero_points_.emplace_back(new_name("zero_point"), format);
  return {zero_points_.back().first, u8};
}

int Graph::ir_version() const {
  if (opset_ >= 23) return 11;
  if (opset_ >= 21) return 10;
  return opset_ >= 19 ? 9 : 8;
}

void Graph::drop_unused() {
  std::set<std::string> wanted;
  for (const auto& [name, info] : outputs_) wanted.insert(name);
  std::vector<Node> kept;
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    const auto is_wanted = [&](const std::string& name) { return wanted.contains(name); };
    if (std::ranges::none_of(node->outputs, is_wanted)) continue;
    wanted.insert(node->inputs.begin(), node->inputs.end());
    kept.push_back(std::move(*node));
  }
  std::ranges::reverse(kept);
  nodes_ = std::move(kept);
  std::erase_if(weights_, [&](const auto& weight) { return !wanted.contains(weight.first); });
  std::erase_if(zero_points_, [&](const auto& zero) { return !wanted.contains(zero.first); });
}

std::string Graph::serialized() {
  drop_unused();
  weight_bytes_ = 0;
  for (const auto& [name, x] : weights_) weight_bytes_ += x.bytes();
  constexpr int64_t most = std::numeric_limits<int32_t>::max() - (int64_t(1) << 20);
  if (weight_bytes_ > most)
    fail<UnsupportedError>(
        "save_onnx", "the weights have ", weight_bytes_,
        " bytes, and a file of Protocol Buffers ends at 2 GiB. Convert the model "
        "to bf16 or f16 first: model.to(bf16).");
  Message graph;
  for (const Node& node : nodes_) {
    Message proto;
    for (const std::string& name : node.inputs) proto.text(1, name);
    for (const std::string& name : node.outputs) proto.text(2, name);
    proto.text(3, node.name).text(4, node.type);
    for (const Message& each : node.attributes) proto.message(5, each);
    graph.message(1, proto);
  }
  graph.text(2, "halftone");
  for (const auto& [name, x] : weights_) graph.message(5, tensor_proto(name, x));
  for (const auto& [name, format] : zero_points_)
    graph.message(5, Message().number(2, int64_t(format)).text(8, name).text(9, {"\0", 1}));
  for (const auto& [name, info] : inputs_) graph.message(11, info);
  for (const auto& [name, info] : outputs_) graph.message(12, info);
  Message model;
  model.number(1, ir_version()).text(2, "halftone").message(7, graph);
  model.message(8, Message().text(1, "").number(2, opset_));
  return model.bytes();
}

}  // namespace halftone::onnx
