// Field numbers are those of onnx.proto (IR versions 8 to 11).
#include <halftone/onnx/translator.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/onnx/conversions.h>
#include <halftone/onnx/save_onnx.h>
#include <halftone/amp/session.h>

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

// The caster wraps that of the region, so that casts and roundings of policies happen as in
// training. A rounding by a rule has no operation; it is recorded as one: `quantize`.

namespace {
constexpr std::string_view command = "save_onnx";

/// Notes the operands of the run whose result is used.
class NotingComputation final : public Computation {
 public:
  explicit NotingComputation(Computation& inner) : inner_(inner) {}
  Tensor run(std::span<const Tensor> inputs) override {
    if (!is_noted_) note(inputs);
    const Tensor y = inner_.run(inputs);
    if (!result.defined()) result = y;
    return y;
  }
  Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>* kept) override {
    if (!is_noted_) note(inputs);
    const Tensor y = inner_.aside(inputs, kept);
    if (!result.defined()) result = y;
    return y;
  }
  std::vector<Tensor> operands{};
  Tensor result{};

 private:
  void note(std::span<const Tensor> inputs) {
    operands.assign(inputs.begin(), inputs.end()), is_noted_ = true;
  }
  Computation& inner_;
  bool is_noted_ = false;
};

/// The rules of a policy at one site.
struct Rules {
  std::shared_ptr<const policy::Treatment> treatment{};
  std::vector<policy::Role> roles{};
  const Quantizer* of_input(std::size_t i) const {
    const policy::Role role = i < roles.size() ? roles[i] : policy::Role::input;
    return treatment ? treatment->quantizer(role, i) : nullptr;
  }
  const Quantizer* of_output() const {
    return treatment ? treatment->quantizer(policy::Role::output) : nullptr;
  }
};

class RecordingTap final : public OpTap {
 public:
  RecordingTap(Recording& recording, Call call, std::shared_ptr<OpTap> inner, Rules rules)
      : recording_(recording),
        call_(std::move(call)),
        inner_(std::move(inner)),
        rules_(std::move(rules)) {}

  Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
    if (const Conversion* conversion = conversion_of(*call_.info))
      call_.op = conversion->copy(operation);
    if (!inner_) return recorded(call_, inputs, operation.run(inputs));
    NotingComputation noting(operation);
    const Tensor handed_on = inner_->forward(inputs, noting);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].body() != noting.operands[i].body())
        rounded(rules_.of_input(i), inputs[i], noting.operands[i]);
    recorded(call_, noting.operands, noting.result);
    if (handed_on.body() != noting.result.body())
      rounded(rules_.of_output(), noting.result, handed_on);
    return handed_on;
  }
  std::vector<Tensor> backward(Node&, const Tensor&) override {
    fail<UsageError>(command, "a recorded pass has no backward. Call forward() alone.");
  }

 private:
  Tensor recorded(Call call, std::span<const Tensor> inputs, const Tensor& output) {
    call.inputs.assign(inputs.begin(), inputs.end());
    call.output = output, call.version = output.storage()->version();
    recording_.calls.push_back(std::move(call));
    return output;
  }
  void rounded(const Quantizer* quantizer, const Tensor& from, const Tensor& to) {
    if (!quantizer)
      fail<UnsupportedError>(command, "a tap changes values of ", described(call_),
                             ", and no rule says how. Export without it.");
    Call call{.info = &Quantize::info, .place = call_.place};
    call.op = std::make_shared<const Quantize>(Quantize{.quantizer = *quantizer});
    recorded(std::move(call), std::span(&from, 1), to);
  }

  Recording& recording_;
  Call call_;
  std::shared_ptr<OpTap> inner_;
  Rules rules_;
};

class RecordingCaster final : public InputCaster {
 public:
  RecordingCaster(const policy::ModelNames& names, Recording& recording,
                  std::shared_ptr<InputCaster> inner, std::shared_ptr<policy::Session> session)
      : names_(names),
        recording_(recording),
        inner_(std::move(inner)),
        session_(std::move(session)) {}

  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result) override {
    CastPlan plan = inner_ ? inner_->plan(op, inputs, has_f32_result) : CastPlan{};
    Call call{.info = &op, .place = names_.path_of(CallScope::innermost())};
    if (plan.accumulate)
      fail<UnsupportedError>(command, "a policy gives ", described(call),
                             " an emulated accumulator, which ONNX does not have. Export without "
                             "that rule.");
    Rules rules = plan.tap ? rules_at(call) : Rules{};
    plan.tap = std::make_shared<RecordingTap>(recording_, std::move(call), std::move(plan.tap),
                                              std::move(rules));
    return plan;
  }
  bool treats() const override { return inner_ && inner_->treats(); }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    if (inner_) inner_->cast_inputs(op, inputs);
  }

 private:
  /// Finds the site that the session met last under this name.
  Rules rules_at(const Call& call) const {
    if (!session_) return {};
    const CallScope* const scope = CallScope::innermost();
    const auto begun = scope ? std::ranges::count(scope->place().begun, call.info) : 0;
    for (const policy::ResolvedSite& each : session_->resolved())
      if (each.site.path == call.place && each.site.op == call.info->name &&
          each.site.ordinal == int(std::max<std::ptrdiff_t>(begun - 1, 0)))
        return {each.treatment, each.roles};
    return {};
  }

  const policy::ModelNames& names_;
  Recording& recording_;
  std::shared_ptr<InputCaster> inner_;
  std::shared_ptr<policy::Session> session_;
};

void refuse_written(const Recording& recording) {
  for (const Call& call : recording.calls)
    if (call.output.storage()->version() != call.version)
      fail<UnsupportedError>(command, "the result of ", described(call),
                             " was written in place later, and ONNX has no writes in place. "
                             "Compute a new tensor instead.");
}
}  // namespace

std::string described(const Call& call) {
  return '"' + std::string(call.info->name) + '"' +
         (call.place.empty() ? std::string() : " in \"" + call.place + '"');
}

Recording record(const policy::ModelNames& names, const Forward& forward,
                 const std::vector<Tensor>& inputs, const std::optional<amp::Region>& region) {
  Recording recording{.inputs = inputs};
  const NoGrad no_grad;
  std::optional<amp::Autocast> autocast;
  if (region) autocast.emplace(*region);
  const CasterScope scope(std::make_shared<RecordingCaster>(
      names, recording, shared_active_caster(), region ? region->session : nullptr));
  recording.outputs = forward(inputs);
  refuse_written(recording);
  return recording;
}

// Origins of tensors, sizes that depend on the batch, constants.

namespace {
bool equal_bytes(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = views::contiguous(a.to(Device::cpu())),
               y = views::contiguous(b.to(Device::cpu()));
  return std::memcmp(x.raw_data(), y.raw_data(), std::size_t(x.bytes())) == 0;
}
template <class Numbers> bool are_equal(const Numbers& numbers) {
  return std::ranges::all_of(numbers, [&](const auto& n) { return n == numbers[0]; });
}
std::string name_at(const std::vector<std::string>& names, std::size_t i, const std::string& base) {
  if (i < names.size()) return names[i];
  return i == 0 ? base : base + std::to_string(i + 1);
}
}  // namespace

Translator::Translator(const nn::Module& model, std::vector<Recording> passes,
                       std::vector<int64_t> rows)
    : passes_(std::move(passes)), rows_(std::move(rows)), weights_(model.named_parameters()) {
  for (auto& buffer : model.named_buffers()) weights_.push_back(std::move(buffer));
}

Translator::Key::Key(const Tensor& x)
    : storage(x.storage().get()),
      offset(x.offset()),
      dtype(x.dtype()),
      shape(x.shape().begin(), x.shape().end()),
      strides(x.strides().begin(), x.strides().end()) {}

void Translator::find_origins() {
  for (const Recording& pass : passes_) {
    Origins origins;
    for (std::size_t i = weights_.size(); i-- > 0;)  // the first name counts
      origins[Key(weights_[i].second)] = {Origin::Kind::weight, i};
    for (std::size_t i = 0; i < pass.inputs.size(); ++i)
      origins[Key(pass.inputs[i])] = {Origin::Kind::input, i};
    // An operation may hand on its input: then the tensor has its first origin.
    for (std::size_t i = 0; i < pass.calls.size(); ++i)
      origins.try_emplace(Key(pass.calls[i].output), Origin{Origin::Kind::call, i});
    origins_.push_back(std::move(origins));
  }
}

Translator::Origin Translator::origin_of(const Tensor& x, std::size_t pass) const {
  const auto found = origins_[pass].find(Key(x));
  return found == origins_[pass].end() ? Origin{} : found->second;
}

std::string Translator::described_call(std::size_t call) const {
  return described(passes_[0].calls[call]);
}

void Translator::require_same_calls() const {
  const auto fail_other = [&](const std::string& where) {
    fail<UnsupportedError>(command, "the model computes other operations for ", rows_[1],
                           " rows than for ", rows_[0], ", or for other values, ", where,
                           ". A graph has no branches that depend on them: export with "
                           "dynamic_batch = false, or without the branch.");
  };
  for (std::size_t pass = 1; pass < passes_.size(); ++pass) {
    const Recording &a = passes_[0], &b = passes_[pass];
    const std::size_t both = std::min(a.calls.size(), b.calls.size());
    for (std::size_t i = 0; i < both; ++i) {
      bool same = a.calls[i].info == b.calls[i].info &&
                  a.calls[i].inputs.size() == b.calls[i].inputs.size() &&
                  a.calls[i].output.rank() == b.calls[i].output.rank();
      for (std::size_t k = 0; same && k < a.calls[i].inputs.size(); ++k) {
        const Tensor &x = a.calls[i].inputs[k], &y = b.calls[i].inputs[k];
        same = x.defined() == y.defined() &&
               (!x.defined() || (x.rank() == y.rank() && origin_of(x, 0) == origin_of(y, pass)));
      }
      if (!same) fail_other("from " + described_call(i) + " on");
    }
    if (a.calls.size() != b.calls.size() || a.outputs.size() != b.outputs.size())
      fail_other("at the end");
  }
}

std::vector<bool> Translator::live_calls() const {
  const Recording& pass = passes_[0];
  std::vector<bool> live(pass.calls.size());
  const auto mark = [&](const Tensor& x) {
    if (!x.defined()) return;
    if (const Origin origin = origin_of(x, 0); origin.kind == Origin::Kind::call)
      live[origin.number] = true;
  };
  for (const Tensor& x : pass.outputs) mark(x);
  for (std::size_t i = pass.calls.size(); i-- > 0;)
    if (live[i])
      for (const Tensor& x : pass.calls[i].inputs) mark(x);
  return live;
}

std::vector<const Tensor*> Translator::in_all(
    const std::function<const Tensor&(const Recording&)>& of) const {
  std::vector<const Tensor*> all;
  for (const Recording& pass : passes_) all.push_back(&of(pass));
  return all;
}

Size Translator::size_of(const std::vector<int64_t>& values, const std::string& what) const {
  if (are_equal(values)) return values[0];
  const int64_t rows = rows_[1] - rows_[0];
  const int64_t per_row = rows == 0 ? 0 : (values[1] - values[0]) / rows;
  const Size size(values[0] - per_row * rows_[0], per_row);
  for (std::size_t pass = 0; pass < values.size(); ++pass)
    if (size.fixed + size.per_row * rows_[pass] != values[pass])
      fail<UnsupportedError>(command, "a size of ", what, " is ", values[0], ", ", values[1],
                             " and ", values.back(), " for ", rows_[0], ", ", rows_[1], " and ",
                             rows_.back(),
                             " rows, not a multiple of the rows plus a number. Export with "
                             "dynamic_batch = false.");
  return size;
}

Sizes Translator::sizes_of(const std::vector<const Tensor*>& x, const std::string& what) const {
  Sizes sizes;
  for (int d = 0; d < x[0]->rank(); ++d) {
    std::vector<int64_t> values;
    for (const Tensor* each : x) values.push_back(each->size(d));
    sizes.push_back(size_of(values, what));
  }
  return sizes;
}

/// A tensor that no recorded operation made. It must not depend on the values of the inputs. If its
/// shape depends on the batch, it must have the same elements for each row.
Value Translator::constant(const std::vector<const Tensor*>& x) {
  const auto fail_computed = [&] {
    fail<UnsupportedError>(
        command, "a tensor ", described(*x[0]),
        " depends on the inputs and was made outside of recorded operations (by "
        "clone(), item(), copy_into(), or within an autocast region of its own). "
        "Compute it with operations alone.");
  };
  const Sizes sizes = sizes_of(x, "a constant");
  bool varies = false;
  Shape one = x[0]->shape();
  for (int d = 0; d < one.rank(); ++d)
    if (sizes[std::size_t(d)].per_row != 0) one[d] = 1, varies = true;
  std::vector<Tensor> rows;
  for (const Tensor* each : x) {
    Tensor row = *each;
    for (int d = 0; d < one.rank(); ++d)
      if (one[d] != row.size(d)) row = views::slice(row, d, 0, 1);
    if (!equal_bytes(views::expand(row, each->shape()), *each)) fail_computed();
    rows.push_back(row);
  }
  for (const Tensor& row : rows)
    if (!equal_bytes(row, rows[0])) fail_computed();
  const Value value = graph_.constant(rows[0]);
  if (!varies) return value;
  return graph_.add("Expand", {value, graph_.integers(sizes)}, value.dtype);
}

Value Translator::value_of(const std::vector<const Tensor*>& x) {
  const Origin origin = origin_of(*x[0], 0);
  switch (origin.kind) {
    case Origin::Kind::call: return results_.at(origin.number);
    case Origin::Kind::input: return {input_names_[origin.number], x[0]->dtype()};
    case Origin::Kind::weight:
      return graph_.weight(weights_[origin.number].first, weights_[origin.number].second);
    case Origin::Kind::constant: break;
  }
  return constant(x);
}

void Translator::reserve_names(const Names& names) {
  for (const auto& [name, x] : weights_) graph_.reserve(name);
  const auto reserve = [&](std::size_t count, const auto& given, const std::string& base) {
    for (std::size_t i = 0; i < count; ++i)
      if (const std::string name = name_at(given, i, base); name.empty() || !graph_.reserve(name))
        fail<UsageError>(command, "\"", name,
                         "\" names two of the inputs, outputs and weights, or is "
                         "empty. Give other input_names and output_names.");
  };
  reserve(passes_[0].inputs.size(), names.inputs, "input");
  reserve(passes_[0].outputs.size(), names.outputs, "output");
}

void Translator::declare_inputs(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < passes_[0].inputs.size(); ++i) {
    const auto x = in_all([i](const Recording& pass) -> const Tensor& { return pass.inputs[i]; });
    input_names_.push_back(name_at(names, i, "input"));
    graph_.input(input_names_.back(), x[0]->dtype(), sizes_of(x, input_names_.back()));
  }
}

void Translator::write_calls() {
  const std::vector<bool> live = live_calls();
  for (std::size_t i = 0; i < live.size(); ++i) {
    const Call& call = passes_[0].calls[i];
    const Origin origin = origin_of(call.output, 0);
    if (!live[i] || origin != Origin{Origin::Kind::call, i}) continue;
    const Conversion* const conversion = conversion_of(*call.info);
    if (!conversion || !call.op)
      fail<UnsupportedError>(command, described_call(i),
                             " has no counterpart in ONNX. Leave it out of the exported pass, or "
                             "compute it after the model.");
    for (const Recording& pass : passes_)
      if (!conversion->same(call.op.get(), pass.calls[i].op.get()))
        fail<UnsupportedError>(command, "an attribute of ", described_call(i),
                               " depends on the batch or its values, and ONNX stores it as a "
                               "number. Export with dynamic_batch = false, or use a mean in place "
                               "of a sum over the batch.");
    graph_.set_place(call.place);
    conversion->write(Step(*this, i));
  }
  graph_.set_place({});
}

Graph Translator::graph(const Names& names) {
  find_origins();
  require_same_calls();
  reserve_names(names);
  declare_inputs(names.inputs);
  write_calls();
  for (std::size_t i = 0; i < passes_[0].outputs.size(); ++i) {
    const auto y = in_all([i](const Recording& pass) -> const Tensor& { return pass.outputs[i]; });
    const std::string name = name_at(names.outputs, i, "output");
    graph_.output(name, value_of(y), sizes_of(y, name));
  }
  return std::move(graph_);
}

// The view of one operation that conversions get.

Graph& Step::graph() const { return translator_.graph_; }
const OpInfo& Step::info() const { return *translator_.passes_[0].calls[call_].info; }
std::size_t Step::input_count() const { return translator_.passes_[0].calls[call_].inputs.size(); }
bool Step::has(std::size_t input) const { return input < input_count() && tensor(input).defined(); }
const Tensor& Step::tensor(std::size_t input, std::size_t pass) const {
  return translator_.passes_[pass].calls[call_].inputs.at(input);
}
const Tensor& Step::output(std::size_t pass) const {
  return translator_.passes_[pass].calls[call_].output;
}
const void* Step::struct_of(std::size_t pass) const {
  return translator_.passes_[pass].calls[call_].op.get();
}

Value Step::input(std::size_t i) const {
  return translator_.value_of(translator_.in_all(
      [&](const Recording& pass) -> const Tensor& { return pass.calls[call_].inputs.at(i); }));
}
Value Step::wide_input(std::size_t i) const {
  const Value x = input(i);
  return is_floating(x.dtype) && halftone::size_of(x.dtype) < halftone::size_of(f32) ? cast(x, f32)
                                                                                     : x;
}
Value Step::runnable_input(std::size_t i) const {
  const Value x = input(i);
  return x.dtype == bf16 ? cast(x, f32) : x;
}
Value Step::known(const Tensor& x) const {
  return translator_.value_of(std::vector<const Tensor*>(translator_.passes_.size(), &x));
}

Sizes Step::input_sizes(std::size_t i) const {
  return translator_.sizes_of(translator_.in_all([&](const Recording& pass) -> const Tensor& {
    return pass.calls[call_].inputs.at(i);
  }),
                              translator_.described_call(call_));
}
Sizes Step::output_sizes() const {
  return translator_.sizes_of(translator_.in_all([&](const Recording& pass) -> const Tensor& {
    return pass.calls[call_].output;
  }),
                              translator_.described_call(call_));
}
Size Step::size_of(const std::function<int64_t(std::size_t)>& value) const {
  std::vector<int64_t> values;
  for (std::size_t pass = 0; pass < translator_.passes_.size(); ++pass)
    values.push_back(value(pass));
  return translator_.size_of(values, translator_.described_call(call_));
}

bool Step::is_zero(std::size_t input) const {
  const Tensor& x = tensor(input);
  if (translator_.origin_of(x, 0).kind != Translator::Origin::Kind::constant) return false;
  const std::vector<double> values = x.to_vector<double>();
  return std::ranges::all_of(values, [](double value) { return value == 0; });
}

Value Step::cast(const Value& x, DType dtype) const {
  if (x.dtype == dtype || !x.defined()) return x;
  if (dtype == f8_e4m3 || dtype == f8_e5m2 || x.dtype == f8_e4m3 || x.dtype == f8_e5m2)
    graph().need_opset(19);
  Attributes attributes{attribute("to", data_type(dtype))};
  if (dtype == f8_e4m3 || dtype == f8_e5m2) attributes.push_back(attribute("saturate", int64_t(0)));
  return graph().add("Cast", {x}, dtype, std::move(attributes));
}
Value Step::reshape(const Value& x, const Sizes& sizes) const {
  const auto varies = [](const Size& size) { return size.per_row != 0; };
  // One size that depends on the batch follows from the others.
  Sizes target = sizes;
  if (std::ranges::count_if(sizes, varies) == 1 &&
      std::ranges::none_of(sizes, [](const Size& size) { return size == Size(0); }))
    *std::ranges::find_if(target, varies) = Size(-1);
  return node("Reshape", {x, graph().integers(target)});
}
Value Step::transpose(const Value& x, const std::vector<int64_t>& order) const {
  return node("Transpose", {x}, {attribute("perm", order)});
}

void Step::result(const Value& value) const {
  translator_.results_[call_] = cast(value, output().dtype());
}
void Step::refuse(const std::string& why) const {
  fail<UnsupportedError>(
      "save_onnx", translator_.described_call(call_), ' ', why,
      " has no counterpart in ONNX. Leave it out of the exported pass, or compute "
      "it after the model.");
}

std::optional<Step> Step::maker_of(std::size_t input) const {
  const Translator::Origin origin = translator_.origin_of(tensor(input), 0);
  if (origin.kind != Translator::Origin::Kind::call) return {};
  return Step(translator_, origin.number);
}

}  // namespace halftone::onnx

// Makes the batches of the recorded passes, and writes the file.

namespace halftone {

namespace {
constexpr std::string_view command = "save_onnx";

/// Evaluation mode for a scope, for each module as it was afterwards.
class Evaluating {
 public:
  explicit Evaluating(nn::Module& model) {
    for (const auto& [path, module] : model.named_modules())
      modules_.emplace_back(module, module->training);
    model.eval();
  }
  ~Evaluating() {
    for (const auto& [module, training] : modules_) module->training = training;
  }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  std::vector<std::pair<nn::Module*, bool>> modules_;
};

/// Returns `rows` rows of an example, from the first one again after the last.
Tensor with_rows(const Tensor& example, int64_t rows) {
  std::vector<Tensor> parts;
  for (int64_t done = 0; done < rows; done += example.size(0))
    parts.push_back(slice(example, 0, 0, std::min(rows - done, example.size(0))));
  return cat(parts, 0);
}
/// Returns other values of the same range: halves of floats, integers in reverse order.
Tensor with_other_values(const Tensor& x) {
  if (is_floating(x.dtype())) return cast(cast(x, f32) * 0.5, x.dtype());
  return x.rank() == 0 ? x : flip(x, {-1});
}

/// rows: 0 for those of the examples.
std::vector<Tensor> batch_of(const std::vector<Tensor>& examples, int64_t rows, bool other) {
  const NoGrad no_grad;
  std::vector<Tensor> batch;
  for (const Tensor& x : examples) {
    const Tensor sized = rows > 0 ? with_rows(x, rows) : x;
    batch.push_back((other ? with_other_values(sized) : sized).clone());
  }
  return batch;
}

void check_examples(const std::vector<Tensor>& examples, bool dynamic_batch) {
  if (examples.empty()) fail<UsageError>(command, "no example inputs. Give one batch.");
  for (const Tensor& x : examples) {
    if (!x.defined()) fail<UsageError>(command, "an example input is undefined. Give a tensor.");
    if (dynamic_batch && (x.rank() == 0 || x.size(0) == 0))
      fail<ShapeError>(command, "an example input is ", described(x),
                       ", without rows. Give at least one, or dynamic_batch = false.");
  }
}
}  // namespace

OnnxFile save_onnx(nn::Module& model, const OnnxForward& forward, const std::vector<Tensor>& inputs,
                   const std::filesystem::path& path, const OnnxOptions& options) {
  check_examples(inputs, options.dynamic_batch);
  files::require_replaceable(command, path);
  int64_t weight_bytes = 0;
  for (const auto& [name, x] : model.named_parameters()) weight_bytes += x.bytes();
  return or_no_memory(command, weight_bytes, [&] {
    const Evaluating evaluating(model);
    const policy::ModelNames names(model);
    std::vector<int64_t> rows{2, 3, 5};
    if (!options.dynamic_batch) rows = {1, 1, 1};
    std::vector<onnx::Recording> passes;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const int64_t size = options.dynamic_batch ? rows[i] : 0;
      passes.push_back(
          onnx::record(names, forward, batch_of(inputs, size, i == 2), options.region));
    }
    onnx::Translator translator(model, std::move(passes), rows);
    onnx::Graph graph = translator.graph({options.input_names, options.output_names});
    const std::string bytes = graph.serialized();
    files::replace(command, path, bytes);
    return OnnxFile{graph.opset(), graph.ir_version(), graph.node_count(), graph.weight_bytes()};
  });
}

OnnxFile save_onnx(nn::Layer& model, const std::vector<Tensor>& inputs,
                   const std::filesystem::path& path, const OnnxOptions& options) {
  if (inputs.size() != 1)
    fail<UsageError>(command, inputs.size(),
                     " example inputs for a layer, which has one. Give one, or a function for "
                     "models with several.");
  const auto forward = [&model](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{model(in[0])};
  };
  return save_onnx(model, forward, inputs, path, options);
}

}  // namespace halftone
