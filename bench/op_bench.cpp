// Times single operations, forward and backward separately, on a table of shapes that occur in
// models. Prints the time, GFLOP/s, GB/s (for the bytes that must move at least once) and, if
// oneDNN ran, the implementation that it chose.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/halftone.h>

#include "../examples/output.h"

namespace ht = halftone;
using ht::Shape;
using ht::Tensor;

namespace {

struct Options {
  std::vector<std::string> ops{}, dtypes{"f32", "bf16"};
  int threads = 2;
  double seconds = 0.3;
  bool json = false;
  std::string device_name = "cpu";
  ht::Device device{};
};

using Tensors = std::vector<Tensor>;

/// One row of the table: the inputs, the call, and its work.
struct Entry {
  std::string op;
  std::vector<Shape> shapes;  // of the inputs, all of the dtype under test
  std::function<Tensor(const Tensors&)> call;
  double flop_forward = 0, flop_backward = 0;  // 0: arithmetic does not limit the operation
  bool f32_only = false, forward_only = false;
};

double volume(const Shape& shape) { return double(ht::numel_of(shape)); }

std::vector<Entry> elementwise_entries() {
  const Shape big{4096, 1024};
  return {{"relu", {big}, [](const Tensors& x) { return ht::relu(x[0]); }},
          {"gelu", {big}, [](const Tensors& x) { return ht::gelu(x[0]); }},
          {"exp", {big}, [](const Tensors& x) { return ht::exp(x[0]); }},
          {"add", {big, big}, [](const Tensors& x) { return x[0] + x[1]; }},
          {"add", {big, {1024}}, [](const Tensors& x) { return x[0] + x[1]; }},
          {"mul", {big, big}, [](const Tensors& x) { return x[0] * x[1]; }},
          {"dropout", {big}, [](const Tensors& x) { return ht::dropout(x[0], 0.1, true); }},
          // The highest rates of a device: bytes here, operations in the largest product below.
          {"mul", {{16384, 8192}, {16384, 8192}}, [](const Tensors& x) { return x[0] * x[1]; }}};
}

/// Compare with neg, which moves the same bytes.
std::vector<Entry> quantize_entries() {
  const Shape big{4096, 1024};
  std::vector<Entry> entries{{"neg", {big}, [](const Tensors& x) { return ht::neg(x[0]); }}};
  std::vector<std::pair<std::string, ht::Quantizer>> quantizers;
  for (const char* name : {"e4m3", "e2m1", "mxfp8", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block"})
    quantizers.emplace_back(name, *ht::quantizer_named(name));
  ht::Quantizer chooses = *ht::quantizer_named("nvfp4");
  chooses.scaling.targets = {6, 4};
  ht::Quantizer by_rms = *ht::quantizer_named("mxfp8"), by_quantile = by_rms;
  by_rms.clip.rms = 4, by_quantile.clip.quantile = 0.999;
  quantizers.insert(quantizers.end(), {{"four_over_six", chooses},
                                       {"mxfp8_clip_rms", by_rms},
                                       {"mxfp8_clip_quantile", by_quantile}});
  for (const auto& [name, nearest] : quantizers)
    for (const ht::Rounding rounding : {ht::Rounding::nearest_even, ht::Rounding::stochastic}) {
      ht::Quantizer quantizer = nearest;
      quantizer.rounding = rounding;
      const bool random = rounding == ht::Rounding::stochastic;
      entries.push_back({"quantize_" + name + (random ? "_stochastic" : ""),
                         {big},
                         [quantizer](const Tensors& x) { return ht::quantize(x[0], quantizer); },
                         0,
                         0,
                         !quantizer.exact_in(ht::bf16)});
    }
  return entries;
}

std::vector<Entry> row_entries() {
  const Shape big{4096, 1024};
  return {
      {"sum", {big}, [](const Tensors& x) { return ht::sum(x[0]); }},
      {"sum", {big}, [](const Tensors& x) { return ht::sum(x[0], {0}); }},
      {"mean", {big}, [](const Tensors& x) { return ht::mean(x[0], {1}); }},
      {"max", {big}, [](const Tensors& x) { return ht::max(x[0], {1}); }},
      {"min", {big}, [](const Tensors& x) { return ht::min(x[0], {0}); }},
      {"softmax", {big}, [](const Tensors& x) { return ht::softmax(x[0], -1); }},
      {"log_softmax", {{512, 50304}}, [](const Tensors& x) { return ht::log_softmax(x[0], -1); }},
      {"cross_entropy",
       {{512, 50304}},
       [](const Tensors& x) {
         static const Tensor targets = ht::randint(0, 50304, {512}).to(x[0].device());
         return ht::cross_entropy(x[0], targets);
       }},
      {"layer_norm",
       {big, {1024}, {1024}},
       [](const Tensors& x) { return ht::layer_norm(x[0], {1024}, x[1], x[2]); }},
      {"rms_norm",
       {big, {1024}},
       [](const Tensors& x) { return ht::rms_norm(x[0], {1024}, x[1], 1e-5); }},
      {"group_norm",
       {{32, 64, 56, 56}, {64}, {64}},
       [](const Tensors& x) { return ht::group_norm(x[0], 8, x[1], x[2]); }},
      {"batch_norm", {{32, 64, 56, 56}, {64}, {64}}, [](const Tensors& x) {
         return ht::batch_norm(x[0], x[1], x[2], {}, {});
       }}};
}

Entry matmul_entry(int64_t m, int64_t n, int64_t k, int64_t batch = 0) {
  const double flop = 2.0 * double(m) * double(n) * double(k) * double(std::max<int64_t>(batch, 1));
  const auto call = [](const Tensors& x) { return ht::matmul(x[0], x[1]); };
  if (batch > 0) return {"matmul", {{batch, m, k}, {batch, k, n}}, call, flop, 2 * flop};
  return {"matmul", {{m, k}, {k, n}}, call, flop, 2 * flop};
}

/// Sums of matrix units, emulated.
std::vector<Entry> sums_entries() {
  std::vector<Entry> entries;
  for (const std::string name :
       {"v100-mma", "h100-wgmma", "h100-wgmma-f8", "b200-tcgen05-f8", "mi300-mfma"}) {
    Entry& entry = entries.emplace_back(matmul_entry(256, 512, 512));
    entry.op = "sums_" + name;
    entry.call = [unit = *ht::accumulator_named(name)](const Tensors& x) {
      return ht::Matmul::product(x[0], x[1], x[0].dtype(), unit);
    };
    entry.flop_backward = 0, entry.forward_only = true;
  }
  return entries;
}

Entry linear_entry(int64_t rows, int64_t in, int64_t out) {
  const double flop = 2.0 * double(rows) * double(in) * double(out);
  return {"linear",
          {{rows, in}, {out, in}, {out}},
          [](const Tensors& x) { return ht::linear(x[0], x[1], x[2]); },
          flop,
          2 * flop};
}

Entry conv_entry(const Shape& x, int64_t out, int64_t kernel, int64_t stride) {
  const int64_t padding = kernel / 2, side = (x[2] + 2 * padding - kernel) / stride + 1;
  const Shape weight{out, x[1], kernel, kernel};
  const double flop = 2 * double(x[0] * side * side) * volume(weight);
  return {"conv2d",
          {x, weight, {out}},
          [=](const Tensors& in) {
            return ht::conv2d(in[0], in[1], in[2], {.stride = stride, .padding = padding});
          },
          flop,
          2 * flop};
}

/// Returns false for entries that would take a CPU minutes; those are for GPUs.
bool fits(const Entry& entry, ht::Device device) {
  double elements = 0;
  for (const Shape& shape : entry.shapes) elements += volume(shape);
  return device.kind != ht::DeviceKind::cpu || elements < 6e7;
}

std::vector<Entry> all_entries() {
  std::vector<Entry> entries = elementwise_entries();
  std::ranges::move(row_entries(), std::back_inserter(entries));
  std::ranges::move(quantize_entries(), std::back_inserter(entries));
  std::ranges::move(sums_entries(), std::back_inserter(entries));
  for (Entry& entry : std::vector<Entry>{
           matmul_entry(512, 512, 512), matmul_entry(2048, 2048, 2048), matmul_entry(64, 128, 784),
           matmul_entry(8192, 8192, 8192), matmul_entry(256, 256, 64, 48),
           linear_entry(512, 784, 2048), linear_entry(512, 2048, 2048),
           linear_entry(2048, 384, 1536), conv_entry({128, 1, 28, 28}, 32, 3, 1),
           conv_entry({128, 32, 14, 14}, 64, 3, 1), conv_entry({16, 64, 56, 56}, 64, 3, 1),
           conv_entry({16, 128, 56, 56}, 256, 3, 2), conv_entry({16, 256, 14, 14}, 1024, 1, 1)})
    entries.push_back(std::move(entry));
  const Shape images{128, 32, 28, 28};
  entries.push_back({"max_pool2d", {images}, [](const Tensors& x) {
                       return ht::max_pool2d(x[0], {.kernel = 2});
                     }});
  entries.push_back({"avg_pool2d", {images}, [](const Tensors& x) {
                       return ht::avg_pool2d(x[0], {.kernel = 2});
                     }});
  return entries;
}

/// Returns the milliseconds at the end of the fastest third: less noisy than the mean, less lucky
/// than the minimum. A GPU gets ten calls at a time.
double time_of(const std::function<void()>& work, const Options& options) {
  using Clock = std::chrono::steady_clock;
  ht::Backend& backend = ht::backend_for(options.device);
  const int at_a_time = options.device.kind == ht::DeviceKind::cpu ? 1 : 10;
  for (int i = 0; i < 2; ++i) work();
  backend.synchronize();
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 5 ||
         std::chrono::duration<double>(Clock::now() - start).count() < options.seconds) {
    const auto before = Clock::now();
    for (int i = 0; i < at_a_time; ++i) work();
    backend.synchronize();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - before).count() /
                    at_a_time);
  }
  std::ranges::sort(times);
  return times[times.size() / 3];
}

struct Measurement {
  std::string op, shapes;
  ht::DType dtype;
  double milliseconds, flop, bytes;
  std::string implementation;
};

void print(const Measurement& m, const Options& options) {
  const double gflops = m.flop / m.milliseconds * 1e-6, gbytes = m.bytes / m.milliseconds * 1e-6;
  if (options.json) {
    std::cout << nlohmann::ordered_json{{"op", m.op},
                                        {"shapes", m.shapes},
                                        {"dtype", ht::name(m.dtype)},
                                        {"device", options.device_name},
                                        {"threads", options.threads},
                                        {"ms", m.milliseconds},
                                        {"gflop_per_s", gflops},
                                        {"gb_per_s", gbytes},
                                        {"implementation", m.implementation}}
              << std::endl;
    return;
  }
  const std::string gflop_column = m.flop > 0 ? std::to_string(int64_t(gflops + 0.5)) : "-";
  std::printf("%-22s %-6s %10.3f %9s %8.1f  %-38s %s\n", m.op.c_str(),
              std::string(ht::name(m.dtype)).c_str(), m.milliseconds, gflop_column.c_str(), gbytes,
              m.shapes.c_str(), m.implementation.c_str());
  std::fflush(stdout);
}

/// Returns oneDNN's name for the last implementation that ran in `work`; empty if none ran. The
/// record is per thread, so a new thread starts without one.
std::string implementation_of(const std::function<void()>& work) {
  std::string name;
  std::thread([&] {
    work();
    name = ht::onednn::last_implementation();
  }).join();
  return name;
}

void measure(const Entry& entry, ht::DType dtype, const Options& options) {
  ht::manual_seed(0);
  Tensors inputs;
  ht::PlainText shapes;
  double input_bytes = 0;
  for (const Shape& shape : entry.shapes) {
    inputs.push_back(ht::cast(ht::randn(shape, ht::f32, options.device), dtype));
    input_bytes += double(inputs.back().bytes());
    shapes << (inputs.size() > 1 ? " " : "") << shape;
  }
  Measurement m{entry.op, shapes.str(), dtype, 0, entry.flop_forward, 0, {}};
  {
    const ht::NoGrad no_grad;
    m.bytes = input_bytes + double(entry.call(inputs).bytes());
    const auto forward = [&] { entry.call(inputs); };
    m.implementation = implementation_of(forward);
    m.milliseconds = time_of(forward, options);
    print(m, options);
  }
  if (entry.forward_only) return;
  for (Tensor& input : inputs) input.set_requires_grad();
  const Tensor y = entry.call(inputs);
  const Tensor dy = ht::cast(ht::randn(y.shape(), ht::f32, options.device), dtype);
  const auto backward = [&] {
    for (Tensor& input : inputs) input.set_grad({});
    y.backward(dy, true);
  };
  m.implementation = implementation_of(backward);
  m.milliseconds = time_of(backward, options);
  m.op += ".backward", m.flop = entry.flop_backward, m.bytes = 2 * input_bytes + double(y.bytes());
  print(m, options);
}

/// Times optimizer steps over one large and many small parameters. state_bytes: read and written
/// for an element.
template <class Optimizer, class Settings>
void measure_optimizer(const std::string& name, double state_bytes, const Settings& settings,
                       ht::DType dtype, const Options& options) {
  for (const int64_t count : {1, 200}) {
    Tensors parameters;
    double elements = 0;
    for (int64_t i = 0; i < count; ++i) {
      parameters.push_back(
          ht::cast(ht::randn({count == 1 ? 10'000'000 : 5'000}, ht::f32, options.device), dtype));
      parameters.back().set_requires_grad();
      parameters.back().set_grad(ht::zeros_like(parameters.back()));
      elements += double(parameters.back().numel());
    }
    Optimizer optimizer(parameters, settings);
    const double bytes = elements * (3 * double(ht::size_of(dtype)) + state_bytes);
    const double ms = time_of([&] { optimizer.step(); }, options);
    print({name,
           std::to_string(count) + " x " + std::to_string(parameters[0].numel()),
           dtype,
           ms,
           0,
           bytes,
           {}},
          options);
  }
}

/// Returns the family of an operation: "quantize" for "quantize_e4m3".
std::string family_of(const std::string& op) { return op.substr(0, op.find('_')); }

/// Returns all operations, and families of several operations whose name is not an operation's.
std::vector<std::string> known_ops() {
  std::set<std::string> names{"adamw", "adamw_8bit", "adamw_4bit", "adamw_e4m3_expanded", "sgd"};
  for (const Entry& entry : all_entries()) names.insert(entry.op);
  std::map<std::string, int> families;
  for (const std::string& op : names) ++families[family_of(op)];
  for (const auto& [family, count] : families)
    if (count > 1) names.insert(family);
  return {names.begin(), names.end()};
}

void run(const Options& options) {
  if (!options.json)
    std::printf("%-22s %-6s %10s %9s %8s  %-38s %s\n", "operation", "dtype", "ms", "GFLOP/s",
                "GB/s", "shapes", "oneDNN implementation");
  const std::vector<Entry> entries = all_entries();
  const auto is_asked = [&](const std::string& name) {
    return std::ranges::find(options.ops, name) != options.ops.end();
  };
  const auto wanted = [&](const std::string& op) {
    const std::string family = family_of(op);
    return options.ops.empty() || is_asked(op) ||
           (is_asked(family) && std::ranges::find(entries, family, &Entry::op) == entries.end());
  };
  for (const std::string& dtype_name : options.dtypes) {
    const ht::DType dtype = ht::dtype_named(dtype_name).value();
    for (const Entry& entry : entries)
      if (wanted(entry.op) && fits(entry, options.device) && (dtype == ht::f32 || !entry.f32_only))
        measure(entry, dtype, options);
    using ht::CodedForm, ht::optim::AdamW, ht::optim::AdamWOptions;
    const auto adamw = [&](const std::string& name, double bytes, ht::optim::StateFormat format) {
      if (wanted(name))
        measure_optimizer<AdamW>(name, bytes, AdamWOptions{.state_dtype = format}, dtype, options);
    };
    adamw("adamw", 16, ht::f32);
    adamw("adamw_8bit", 4.1, CodedForm::dynamic8);
    adamw("adamw_4bit", 2.1, CodedForm::dynamic4);
    adamw("adamw_e4m3_expanded", 4.1, CodedForm::e4m3_expanded);
    if (wanted("sgd"))
      measure_optimizer<ht::optim::Sgd>("sgd", 0, ht::optim::SgdOptions{}, dtype, options);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times single operations on shapes that occur in models.");
  app.add_option("--ops", options.ops, "by commas, also families (quantize); default: all")
      ->delimiter(',')
      ->check(CLI::IsMember(known_ops()));
  app.add_option("--dtypes", options.dtypes, "f32, bf16, f16, f64; default: f32,bf16")
      ->delimiter(',')
      ->check(CLI::IsMember({"f64", "f32", "f16", "bf16"}));
  app.add_option("--device", options.device_name, "cpu, cuda or cuda:N");
  app.add_option("--threads", options.threads, "OpenMP threads")->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "time per measurement")->check(CLI::PositiveNumber);
  app.add_flag("--json", options.json, "print JSON lines");
  CLI11_PARSE(app, argc, argv);
  omp_set_num_threads(options.threads);
  try {
    options.device = ht::device_named(options.device_name);
    run(options);
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return after_output();
}
