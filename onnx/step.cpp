// The view of one operation that conversions get.
#include <halftone/onnx/translator.h>

namespace halftone::onnx {

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
