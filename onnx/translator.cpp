// Origins of tensors, sizes that depend on the batch, constants.
#include <halftone/onnx/translator.h>

#include <cstring>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone::onnx {

namespace {
constexpr std::string_view command = "save_onnx";

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

}  // namespace halftone::onnx
