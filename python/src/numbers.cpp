#include <algorithm>
#include <cmath>
#include <optional>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/matmul.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/amp/policy.h>

#include "arrays.h"

namespace halftone::python {

namespace {

DType dtype_of_array(const Array& array, const std::string& named) {
  if (named == "bf16" && array.dtype() == nb::dtype<uint16_t>()) return bf16;
  const nb::dlpack::dtype dtype = array.dtype();
  if (dtype.lanes == 1) {
    if (dtype.code == uint8_t(nb::dlpack::dtype_code::Bfloat) && dtype.bits == 16) return bf16;
    if (dtype == nb::dtype<double>()) return f64;
    if (dtype == nb::dtype<float>()) return f32;
    if (dtype.code == uint8_t(nb::dlpack::dtype_code::Float) && dtype.bits == 16) return f16;
    if (dtype == nb::dtype<int64_t>()) return i64;
    if (dtype == nb::dtype<int32_t>()) return i32;
    if (dtype == nb::dtype<int16_t>()) return i16;
    if (dtype == nb::dtype<uint8_t>()) return u8;
    if (dtype == nb::dtype<bool>()) return boolean;
  }
  fail<DTypeError>("array", "there is no dtype for numbers of ", int(dtype.bits),
                   " bits of this kind. Use float64, float32, float16, bfloat16, int64, int32, "
                   "int16, uint8 or bool.");
}

constexpr nb::dlpack::dtype bfloat16{uint8_t(nb::dlpack::dtype_code::Bfloat), 16, 1};

nb::dlpack::dtype dtype_of_tensor(DType dtype) {
  switch (dtype) {
    case f64: return nb::dtype<double>();
    case f32: return nb::dtype<float>();
    case f16: return {uint8_t(nb::dlpack::dtype_code::Float), 16, 1};
    case bf16: return nb::dtype<uint16_t>();
    case i64: return nb::dtype<int64_t>();
    case i32: return nb::dtype<int32_t>();
    case i16: return nb::dtype<int16_t>();
    case boolean: return nb::dtype<bool>();
    case f8_e4m3:
    case f8_e5m2:
    case u8: break;
  }
  return nb::dtype<uint8_t>();
}

}  // namespace

Tensor borrowed(const Array& array, const std::string& named) {
  const DType dtype = dtype_of_array(array, named);
  const bool on_gpu = array.device_type() == nb::device::cuda::value;
  const Device device = on_gpu ? Device::cuda(array.device_id()) : Device::cpu();
  if (!on_gpu && array.device_type() != nb::device::cpu::value)
    fail<DeviceError>("array", "the memory is on a device of DLPack's type ", array.device_type(),
                      ". Copy it to the CPU.");
  Shape shape;
  Strides strides;
  int64_t last = 0;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    const auto size = int64_t(array.shape(i)), stride = int64_t(array.stride(i));
    if (stride < 0)
      fail<ShapeError>("array", "dimension ", i, " has the stride ", stride,
                       ". Copy the array: numpy.ascontiguousarray(x).");
    shape.push_back(size), strides.push_back(stride);
    last += (size - 1) * stride;
  }
  if (numel_of(shape) == 0) return empty(shape, dtype, device);
  auto* const data = static_cast<std::byte*>(const_cast<void*>(array.data()));
  auto storage = std::make_shared<Storage>(data, (last + 1) * size_of(dtype),
                                           std::make_shared<Array>(array), device);
  return Tensor(std::make_shared<TensorBody>(TensorBody{
      .storage = std::move(storage), .shape = shape, .strides = strides, .dtype = dtype}));
}

nb::object given(const Tensor& x) {
  std::vector<std::size_t> shape(x.shape().begin(), x.shape().end());
  const std::vector<int64_t> strides(x.strides().begin(), x.strides().end());
  auto owner = std::make_unique<Tensor>(x.detach());
  const nb::capsule keeps(owner.release(),
                          [](void* tensor) noexcept { delete static_cast<Tensor*>(tensor); });
  if (x.device().kind == DeviceKind::cuda)
    return nb::cast(nb::ndarray<>(x.raw_data(), shape.size(), shape.data(), keeps, strides.data(),
                                  x.dtype() == bf16 ? bfloat16 : dtype_of_tensor(x.dtype()),
                                  nb::device::cuda::value, x.device().index));
  return nb::cast(nb::ndarray<nb::numpy>(x.raw_data(), shape.size(), shape.data(), keeps,
                                         strides.data(), dtype_of_tensor(x.dtype())));
}

// Formats, quantizers and rounding.

namespace {

NumberFormat format_named(const std::string& name) {
  if (const auto format = number_format_named(name)) return *format;
  std::vector<std::string_view> known;
  for (const NamedFormat& named : named_formats()) known.push_back(named.name);
  fail_unknown_name("Format", "number format", name, known);
}

Rounding rounding_by(const std::string& name) {
  if (const auto rounding = named<Rounding>(name)) return *rounding;
  std::vector<std::string_view> known;
  for (int i = 0; i < rounding_count; ++i) known.push_back(halftone::name(Rounding(i)));
  fail_unknown_name("quantize", "rounding", name, known);
}

Quantizer quantizer_by(const std::string& name) {
  if (const auto known = quantizer_named(name)) return *known;
  std::vector<std::string_view> names;
  for (const NamedFormat& format : named_formats()) names.push_back(format.name);
  for (const std::string_view ready : ready_made_quantizers()) names.push_back(ready);
  fail_unknown_name("quantize", "number format or quantizer", name, names);
}

/// Returns the quantizer of a policy with one rule, which has one role.
Quantizer quantizer_of(const amp::Policy& file, const std::string& name) {
  for (const policy::Rule& rule : file.rules.rules)
    for (const auto& [role, said] : rule.roles)
      if (said.kind == policy::RoleRule::Kind::grid) return said.quantizer;
  fail<UsageError>("quantizer", name, " names no grid. Give an object with \"format\".");
}

/// Reads a quantizer as an entry of a policy file's rule.
Quantizer quantizer_in(const std::string& json) {
  const std::string text =
      R"({"halftone_policy": 1, "name": "quantizer", "rules": [{"input": )" + json + "}]}";
  return quantizer_of(policy::read_text(text, "quantizer"), json);
}

/// Lets other Python threads run for a scope. Not while a GPU gets work: it is issued soon, and
/// another thread could choose another stream meanwhile.
class OthersRun {
 public:
  explicit OthersRun(const Tensor& x) {
    if (x.device() == Device::cpu()) released_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> released_{};
};

/// Lends the default generator of this thread another state for a scope.
class Seeded {
 public:
  explicit Seeded(std::optional<uint64_t> seed) : before_(default_generator().state()), own_(seed) {
    if (own_) default_generator().set_state({*own_, 0});
  }
  ~Seeded() {
    if (own_) default_generator().set_state(before_);
  }
  Seeded(const Seeded&) = delete;
  Seeded& operator=(const Seeded&) = delete;

 private:
  RandomKey before_;
  std::optional<uint64_t> own_;
};

nb::object rounded(const Array& array, const std::string& dtype, int64_t axis, Quantizer quantizer,
                   const std::optional<std::string>& rounding, std::optional<uint64_t> seed) {
  if (rounding) quantizer.rounding = rounding_by(*rounding);
  const Tensor x = borrowed(array, dtype);
  Tensor y;
  {
    const OthersRun others(x);
    const NoGrad not_recorded;
    const Seeded seeded(seed);
    const int last = x.rank() - 1, dim = x.rank() == 0 ? normalize_dim("quantize", axis, 1) + last
                                                       : normalize_dim("quantize", axis, x.rank());
    if (dim == last) y = quantize(x, quantizer);
    else y = views::transpose(quantize(views::transpose(x, dim, last), quantizer), dim, last);
  }
  return given(y);
}

/// A quantizer by a name, or by an object as text.
struct Ready {
  std::string name;
  Quantizer quantizer;
  amp::Policy policy{};  // of one rule that defines it; without rules: the name does
};

Ready ready(const std::string& name) {
  return {name, name.starts_with('{') ? quantizer_in(name) : quantizer_by(name)};
}

/// Reads an accumulator as an entry of a policy file's rule.
Accumulator accumulator_in(const std::string& json) {
  const std::string text =
      R"({"halftone_policy": 1, "name": "accumulator", "rules": [{"accumulate": )" + json + "}]}";
  return *policy::read_text(text, "accumulator").rules.rules.at(0).accumulate;
}

/// Returns a matrix with its scales as the accumulator reads them: rows along the sum. Throws
/// UsageError for numbers and scales that no such machine has.
Tensor with_scales(std::string_view which, const Tensor& numbers, const Tensor& scales,
                   const Accumulator& accumulator) {
  const int64_t block = accumulator.scaled;
  const Shape wanted{numbers.size(0), (numbers.size(1) + block - 1) / block};
  const auto as_given = [&](const Shape& s) { return which == "a" ? s : Shape{s[1], s[0]}; };
  if (scales.shape() != wanted)
    fail<ShapeError>("matmul", "the scales of ", which, " are ", as_given(scales.shape()),
                     ". Give ", as_given(wanted), ", one for ", block, " numbers along the sum.");
  const auto require = [&](const Tensor& x, const std::vector<NumberFormat>& formats, bool negative,
                           const char* what, const char* names) {
    const std::vector<float> values = x.to_vector<float>();
    for (const NumberFormat& format : formats)
      if (std::ranges::all_of(values, [&](float v) {
            return std::isnan(v) || (round_to(format, v) == v && (negative || v >= 0));
          }))
        return;
    fail<UsageError>("matmul", what, " of ", which, " are not all on the grid of ", names, ".");
  };
  if (accumulator.align == Align::scales)
    require(numbers, {formats::e2m1}, true, "numbers", "e2m1");
  else require(numbers, {formats::e4m3, formats::e5m2}, true, "numbers", "e4m3 or e5m2");
  require(scales, {formats::e4m3, formats::e8m0}, false, "scales", "e4m3 or e8m0");
  return detail::with_scales(numbers, scales, block);
}

nb::object added_up(const Array& left, const std::string& left_dtype, const Array& right,
                    const std::string& right_dtype, const std::string& accumulate,
                    const std::optional<std::vector<std::pair<Array, std::string>>>& scales) {
  const Accumulator accumulator = accumulator_in(accumulate);
  if ((accumulator.scaled > 0) != scales.has_value())
    fail<UsageError>("matmul", "this accumulator reads ",
                     scales ? "no scales. Multiply the numbers by them."
                            : "numbers and their scales. Give scales=(of a, of b).");
  const Tensor a = borrowed(left, left_dtype), b = borrowed(right, right_dtype);
  std::vector<Tensor> given_ones{a, b};
  if (scales)
    for (const auto& [array, dtype] : *scales) given_ones.push_back(borrowed(array, dtype));
  if (given_ones.size() != (scales ? 4 : 2))
    fail<UsageError>("matmul", given_ones.size() - 2,
                     " arrays of scales. Give scales=(of a, of b).");
  for (const Tensor& x : given_ones) {
    if (x.rank() != 2)
      fail<ShapeError>("matmul", "an operand is ", described(x), ". Give matrices.");
    if (a.device() != x.device())
      fail<DeviceError>("matmul", "the operands are on ", a.device(), " and ", x.device(),
                        ". Move one: x.to(device).");
  }
  if (a.size(1) != b.size(0))
    fail<ShapeError>("matmul", "inner sizes differ: ", described(a), " and ", described(b),
                     "; a.shape[1] must equal b.shape[0].");
  Tensor c;
  {
    const OthersRun others(a);
    const NoGrad not_recorded;
    if (scales) {
      const Tensor of_a = given_ones[2].to(f32), of_b = given_ones[3].to(f32);
      c = empty({a.size(0), b.size(1)}, f32, a.device());
      const Tensor rows = with_scales("a", a.to(f32), of_a, accumulator),
                   columns = with_scales("b", transpose(b, 0, 1).to(f32), transpose(of_b, 0, 1),
                                         accumulator);
      backend_for(a).matmul_accumulating(rows, transpose(columns, 0, 1), {}, accumulator, c);
    } else {
      c = Matmul::product(a.to(f32), b.to(f32), f32, accumulator);
    }
  }
  return given(c);
}

/// Returns the quantizers that a policy's rules call by names of its own.
std::vector<Ready> own_quantizers(const amp::Policy& file) {
  std::vector<Ready> own;
  for (const policy::Rule& rule : file.rules.rules)
    for (const auto& [role, said] : rule.roles) {
      const bool known =
          std::ranges::any_of(own, [&](const Ready& r) { return r.name == said.named; });
      if (said.kind != policy::RoleRule::Kind::grid || said.named.empty() || known) continue;
      amp::Policy alone = file;
      alone.about.clear(), alone.meant_for.clear(), alone.rules = {};
      policy::Rule only;
      only.roles.emplace(policy::Role::input, said);
      alone.rules.rules.push_back(only);
      own.push_back({said.named, said.quantizer, alone});
    }
  return own;
}

/// Returns a ready-made quantizer. Throws UsageError for a name that neither it nor the policy has.
Ready ready_beside(const amp::Policy& file, const std::string& name) {
  if (const auto known = quantizer_named(name)) return {name, *known};
  const std::vector<Ready> own = own_quantizers(file);
  const auto ready_made = ready_made_quantizers();
  std::vector<std::string_view> names(ready_made.begin(), ready_made.end());
  for (const Ready& each : own) names.push_back(each.name);
  for (const NamedFormat& format : named_formats()) names.push_back(format.name);
  fail_unknown_name("policy " + file.name, "quantizer", name, names);
}

std::string text_of(const nb::object& value) {
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  return nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(value));
}

std::vector<double> numbers_of(const NumberFormat& format) {
  const int64_t count = count_of_numbers(format);
  if (count > 65536)
    fail<UsageError>("Format.numbers", described(format), " has ", count,
                     " numbers from 0 up. Lists end at 65536.");
  std::vector<double> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(number_at(format, i));
  return numbers;
}

}  // namespace

void add_numbers(nb::module_& module) {
  nb::class_<NumberFormat>(module, "Format",
                           "A grid of numbers: a format's name, or eXmY, or intN.")
      .def("__init__", [](NumberFormat* self,
                          const std::string& name) { new (self) NumberFormat(format_named(name)); })
      .def_prop_ro("name", [](const NumberFormat& f) { return described(f); })
      .def_prop_ro("bits", [](const NumberFormat& f) { return int(f.bits); })
      .def_prop_ro(
          "significand_bits", [](const NumberFormat& f) { return int(f.significand_bits); },
          "bits of a significand, with the hidden one")
      .def_prop_ro("min_exponent", [](const NumberFormat& f) { return int(f.min_exponent); })
      .def_prop_ro("max_exponent", [](const NumberFormat& f) { return std::ilogb(f.max); })
      .def_prop_ro(
          "max", [](const NumberFormat& f) { return double(f.max); }, "the largest number")
      .def_prop_ro(
          "smallest", [](const NumberFormat& f) { return number_at(f, 1); },
          "the smallest number above 0")
      .def_prop_ro("smallest_normal",
                   [](const NumberFormat& f) { return std::ldexp(1.0, f.min_exponent); })
      .def_ro("subnormals", &NumberFormat::subnormals)
      .def_ro("infinity", &NumberFormat::infinity, "false: larger numbers become the largest")
      .def_prop_ro("count", count_of_numbers, "how many numbers there are from 0 to max")
      .def("numbers", numbers_of, "all numbers from 0 to max, in order")
      .def("__eq__", [](const NumberFormat& a, const NumberFormat& b) { return a == b; })
      .def("__hash__",
           [](const NumberFormat& f) { return nb::hash(nb::str(described(f).c_str())); })
      .def("__reduce__",
           [](const nb::object& f) {
             return nb::make_tuple(f.type(), nb::make_tuple(f.attr("name")));
           })
      .def("__repr__", [](const NumberFormat& f) { return "Format('" + described(f) + "')"; });
  nb::class_<Ready>(module, "Quantizer",
                    "A grid with its scaling: a name, or an object as in a policy file.")
      .def("__init__",
           [](Ready* self, const nb::object& name) { new (self) Ready(ready(text_of(name))); })
      .def_ro("name", &Ready::name)
      .def_prop_ro("what", [](const Ready& r) { return described(r.quantizer); })
      .def_prop_ro("grid", [](const Ready& r) { return r.quantizer.grid; })
      .def_prop_ro("bits_per_element",
                   [](const Ready& r) { return r.quantizer.bits_per_element(); })
      .def("__reduce__",
           [](const nb::object& self) {
             const auto& r = nb::cast<const Ready&>(self);
             if (r.policy.rules.rules.empty())
               return nb::make_tuple(self.type(), nb::make_tuple(r.name));
             return nb::make_tuple(nb::module_::import_("halftone.numbers").attr("quantizer_of"),
                                   nb::make_tuple(policy::write(r.policy), r.name));
           })
      .def("__repr__", [](const Ready& r) { return "Quantizer('" + r.name + "')"; });
  module.def("quantizer_of", [](const std::string& text, const std::string& name) {
    const amp::Policy file = policy::read_text(text, "quantizer");
    return Ready{name, quantizer_of(file, name), file};
  });
  module.def("own_quantizers", own_quantizers);
  module.def("ready_beside", ready_beside);
  module.def(
      "formats",
      [] {
        std::vector<NumberFormat> formats;
        for (const NamedFormat& named : named_formats()) formats.push_back(named.format);
        return formats;
      },
      "The named formats.");
  module.def(
      "quantizers",
      [] {
        std::vector<Ready> all;
        for (const std::string_view name : ready_made_quantizers())
          all.push_back({std::string(name), *quantizer_named(name)});
        return all;
      },
      "The ready-made quantizers.");
  module.def(
      "roundings",
      [] {
        std::vector<std::string> names;
        for (int i = 0; i < rounding_count; ++i) names.emplace_back(name(Rounding(i)));
        return names;
      },
      "The names of the roundings.");
  module.def(
      "use_stream",
      [](const std::string& op, int index, uintptr_t stream) {
        for (const BackendStatus& status : backend_statuses())
          if (status.name == "cuda" && !status.backend)
            fail<DeviceError>(op, "the tensor is on cuda:", index,
                              ", and halftone has no GPU: ", status.description,
                              ". Copy the tensor to the CPU: x.cpu().");
        backend_for(Device::cuda(index)).use_stream(reinterpret_cast<void*>(stream));
      },
      nb::arg("op"), nb::arg("index"), nb::arg("stream"));
  module.def("manual_seed", manual_seed, nb::arg("seed"),
             "Restarts the generator that stochastic rounding without a seed draws from.");
  module.def(
      "quantize",
      [](const Array& x, const std::string& dtype, int64_t axis, const Ready& quantizer,
         const std::optional<std::string>& rounding, std::optional<uint64_t> seed) {
        return rounded(x, dtype, axis, quantizer.quantizer, rounding, seed);
      },
      nb::arg("x"), nb::arg("dtype"), nb::arg("axis"), nb::arg("quantizer"),
      nb::arg("rounding").none(), nb::arg("seed").none());
  module.def("matmul", added_up, nb::arg("a"), nb::arg("a_dtype"), nb::arg("b"), nb::arg("b_dtype"),
             nb::arg("accumulate"), nb::arg("scales").none());
  module.def(
      "accumulators",
      [] {
        std::vector<std::string> names;
        for (const NamedAccumulator& machine : named_accumulators())
          names.emplace_back(machine.name);
        return names;
      },
      "The names of the accumulators of machines.");
  module.def(
      "round_to",
      [](const Array& x, const std::string& dtype, const NumberFormat& format,
         const std::string& rounding, std::optional<uint64_t> seed) {
        return rounded(x, dtype, -1, {.grid = format}, rounding, seed);
      },
      nb::arg("x"), nb::arg("dtype"), nb::arg("format"), nb::arg("rounding"),
      nb::arg("seed").none());
}

}  // namespace halftone::python
