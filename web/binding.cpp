// The page's side in C++: halftone_call() takes a request as JSON, such as
// {"do": "round", "format": "e4m3", "x": 0.1}, and returns an answer as JSON, {"error": "..."} for
// a mistake. Nothing here knows a browser: the same file is compiled natively for the test
// (tests/web/), which compares the hashes of both builds.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <halftone/amp/autocast.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/resolved.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/models.h>
#include <halftone/optim/optimizers.h>
#include <halftone/train/metrics.h>

namespace ht = halftone;
using Json = nlohmann::ordered_json;

namespace {

/// JSON has no infinity and no NaN: a number is a pair of a number, null if it is neither finite
/// nor short, and a text.
Json number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", std::isnan(x) ? std::fabs(x) : x);  // never "-nan"
  return {{"value", std::isfinite(x) ? Json(x) : Json()}, {"text", text}};
}

// --- 1. A number and its neighbors in a format

ht::NumberFormat format_of(const Json& request) {
  const auto name = request.at("format").get<std::string>();
  if (name.starts_with("ue") || name == "e8m0")
    ht::fail<ht::UsageError>("format", name, " has no sign: it is for scales. Use another format.");
  if (const auto format = ht::number_format_named(name)) return *format;
  ht::fail<ht::UsageError>(
      "format", "there is no format named \"", name,
      "\". Use f16, bf16, e4m3, e2m1, int8, or any eXmY with X from 2 to 8 and "
      "Y up to 23.");
}

/// Returns sign, exponent and fraction of a number on the grid. Codes without their sign are in the
/// order of the numbers, infinity after the largest.
Json bits_of(const ht::NumberFormat& format, double y) {
  const int fraction = format.significand_bits - 1, rest = format.bits - 1;
  int64_t code = (int64_t(1) << rest) - 1;  // NaN
  if (!std::isnan(y)) {
    int64_t low = 0, high = ht::count_of_numbers(format);
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (ht::number_at(format, middle) < std::fabs(y)) low = middle + 1;
      else high = middle;
    }
    code = low;
  }
  std::string text;
  for (int bit = rest - 1; bit >= 0; --bit) text += (code >> bit & 1) != 0 ? '1' : '0';
  const int exponent = rest > fraction + 1 ? rest - fraction : 0;  // integers have none
  return {std::signbit(y) ? "1" : "0", text.substr(0, std::size_t(exponent)),
          text.substr(std::size_t(exponent))};
}

Json round_number(const Json& request) {
  const ht::NumberFormat format = format_of(request);
  const auto x = float(request.at("x").get<double>());
  const auto rounding = ht::named<ht::Rounding>(request.value("rounding", "nearest_even"));
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto to = [&](float value, ht::Rounding how) { return ht::round_to(format, value, how); };
  float below = to(x, ht::Rounding::down), above = to(x, ht::Rounding::up);
  const bool exact = below == x && above == x;
  if (exact)
    below = to(std::nextafter(x, -infinity), ht::Rounding::down),
    above = to(std::nextafter(x, infinity), ht::Rounding::up);
  const double place = (double(x) - below) / (double(above) - below);
  Json roundings = Json::array();
  for (int i = 0; i < ht::rounding_count; ++i) {
    const auto how = ht::Rounding(i);
    if (how == ht::Rounding::stochastic) continue;  // of two results, by chance
    const float y = to(x, how);
    roundings.push_back({{"name", ht::name(how)},
                         {"result", number(y)},
                         {"off", number(double(y) - x)},
                         {"bits", bits_of(format, y)}});
  }
  const float y =
      to(x, rounding == ht::Rounding::stochastic ? ht::Rounding::nearest_even : rounding.value());
  const int64_t count = ht::count_of_numbers(format);
  return {{"x", number(x)},
          {"result", number(y)},
          {"bits", bits_of(format, y)},
          {"exact", exact},
          {"below", number(below)},
          {"above", number(above)},
          {"up", exact || !std::isfinite(place) ? Json() : Json(place)},  // stochastic: probability
          {"off", number(double(y) - x)},
          {"relative", number(x == 0 ? 0 : std::fabs((double(y) - x) / x))},
          {"roundings", roundings},
          {"format",
           {{"description", ht::described(format)},
            {"bits", int(format.bits)},
            {"largest", number(format.max)},
            {"normal", number(std::ldexp(1.0, format.min_exponent))},
            {"smallest", number(ht::number_at(format, 1))},
            {"numbers", count},
            {"infinity", bool(format.infinity)}}}};
}

/// Returns the rounded numbers at `count` equal distances, for the staircase.
Json stairs(const Json& request) {
  const ht::NumberFormat format = format_of(request);
  const auto named = ht::named<ht::Rounding>(request.value("rounding", "nearest_even"));
  const double from = request.at("from").get<double>(), to = request.at("to").get<double>();
  const auto count = std::clamp(request.value("count", 300), 2, 2000);
  const ht::Rounding rounding = named.value();
  Json y = Json::array();
  for (int i = 0; i < count; ++i) {
    // Golden steps look random, and are the same each time.
    const auto random = uint32_t(i) * 2654435769u;
    const auto x = float(from + (to - from) * i / (count - 1));
    const float rounded = ht::round_to(format, x, rounding, random);
    y.push_back(std::isfinite(rounded) ? Json(rounded) : Json());
  }
  return {{"y", y}};
}

/// Returns a block after a quantizer, and the factor of each number's scale.
Json block(const Json& request) {
  const auto name = request.at("format").get<std::string>();
  const std::optional<ht::Quantizer> quantizer = ht::quantizer_named(name);
  if (!quantizer)
    ht::fail<ht::UsageError>(
        "format", "there is no quantizer named \"", name,
        "\". Use mxfp8, mxfp6, mxfp4, nvfp4, or another of halftone-lab formats.");
  const auto x = request.at("x").get<std::vector<float>>();
  const ht::Tensor row = ht::from_vector(x, {1, int64_t(x.size())});
  const auto y = ht::quantize(row, *quantizer).to_vector<float>();
  const ht::QuantizeNumbers numbers = ht::numbers_of(*quantizer);
  const auto amax = [](std::span<const float> part) {
    float most = 0;
    for (const float v : part) most = std::max(most, std::fabs(v));
    return most;
  };
  const auto columns = std::min(x.size(), quantizer->scaling.per == ht::Scaling::Per::block
                                              ? std::size_t(quantizer->scaling.columns)
                                              : x.size());
  Json scales = Json::array();
  double signal = 0, noise = 0;
  int64_t lost = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    signal += double(x[i]) * x[i], noise += (double(y[i]) - x[i]) * (double(y[i]) - x[i]);
    lost += x[i] != 0 && y[i] == 0;
    if (i % columns != 0) continue;
    const auto part = std::span(x).subspan(i, std::min(columns, x.size() - i));
    const ht::Scale scale = numbers.per == ht::Scaling::Per::block
                                ? ht::scale_of_block(numbers, amax(part), amax(x))
                                : ht::scale_per_tensor(numbers.per == ht::Scaling::Per::tensor
                                                           ? ht::scale_of_tensor(numbers, amax(x))
                                                           : 1);
    scales.push_back(number(double(scale.out) * scale.tail));
  }
  return {{"y", y},
          {"columns", columns},
          {"scales", scales},
          {"lost", lost},
          {"decibels", number(10 * std::log10(signal / noise))},
          {"description", ht::described(*quantizer)},
          {"bits", quantizer->bits_per_element()}};
}

// --- 2. An update that a short weight loses

struct OneWeight final : ht::nn::Module {
  ht::nn::Parameter w;
  explicit OneWeight(float value) : w(ht::full({1}, value)) {}
  void describe(ht::nn::Fields& field) override { field("w", w); }
};

/// Returns the weight that forward sees, after each step with the same gradient.
std::vector<float> path_of(std::string_view strategy, float w, float g, double rate, int steps) {
  OneWeight model(w);
  ht::optim::Sgd sgd(model.parameters(), {.lr = rate});
  ht::amp::Training training = ht::amp::apply(strategy, model, sgd);
  std::vector<float> path{model.w.to_vector<float>()};
  for (int step = 0; step < steps; ++step) {
    model.w.set_grad(ht::full({1}, g, model.w.dtype()));
    training.step();
    path.push_back(model.w.to_vector<float>()[0]);
  }
  return path;
}

Json update(const Json& request) {
  const auto w = float(request.at("w").get<double>()), g = float(request.at("g").get<double>());
  const double rate = request.at("lr").get<double>();
  const int steps = std::clamp(request.value("steps", 64), 1, 400);
  Json paths = Json::array();
  for (const auto& [strategy, bytes] : {std::pair{"fp32", 4},
                                        {"full-bf16", 2},
                                        {"full-bf16-sr", 2},
                                        {"full-bf16-kahan", 4},
                                        {"split-bf16", 4}}) {
    const std::vector<float> path = path_of(strategy, w, g, rate, steps);
    int moves = 0;
    for (std::size_t i = 1; i < path.size(); ++i) moves += path[i] != path[i - 1];
    Json values = Json::array();
    for (const float value : path) values.push_back(std::isfinite(value) ? Json(value) : Json());
    paths.push_back({{"strategy", strategy},
                     {"bytes", bytes},
                     {"moves", moves},
                     {"last", number(path.back())},
                     {"path", values}});
  }
  // Toward the side that the update goes to: below a power of two, numbers are closer together.
  const float start = ht::round_to(ht::formats::bf16, w), change = float(-rate * double(g));
  const float next =
      ht::round_to(ht::formats::bf16, std::nextafter(start, change < 0 ? -HUGE_VALF : HUGE_VALF),
                   change < 0 ? ht::Rounding::down : ht::Rounding::up);
  return {{"paths", paths},
          {"change", number(change)},
          {"start", number(start)},
          {"next", number(next)},
          {"half", number(std::fabs(double(next) - start) / 2)}};
}

// --- 3. A training on drawn digits

constexpr int side = 12, training_digits = 1000, test_digits = 500, batch_size = 64;
constexpr const char* glyphs[10][7] = {
    {" ### ", "#   #", "#  ##", "# # #", "##  #", "#   #", " ### "},
    {"  #  ", " ##  ", "  #  ", "  #  ", "  #  ", "  #  ", " ### "},
    {" ### ", "#   #", "    #", "   # ", "  #  ", " #   ", "#####"},
    {"#####", "   # ", "  #  ", "   # ", "    #", "#   #", " ### "},
    {"   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "},
    {"#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "},
    {"  ## ", " #   ", "#    ", "#### ", "#   #", "#   #", " ### "},
    {"#####", "    #", "   # ", "  #  ", " #   ", " #   ", " #   "},
    {" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "},
    {" ### ", "#   #", "#   #", " ####", "    #", "   # ", " ##  "}};

/// Digit n of the set shows n % 10: moved, scaled, slanted, with noise, by random words that only n
/// determines.
void draw(int n, float* pixels) {
  const auto random = [n](int i) {  // -1 to 1
    return 2 * ht::Philox::uniform(ht::Philox::words(1, uint64_t(64 * n + i / 4))[i % 4]) - 1;
  };
  const auto ink = [&](int row, int column) {
    const bool inside = row >= 0 && row < 7 && column >= 0 && column < 5;
    return inside && glyphs[n % 10][row][column] == '#' ? 1.0f : 0.0f;
  };
  const float dx = 1.5f * random(0), dy = 1.5f * random(1), slant = 0.35f * random(2);
  const float across = 0.6f + 0.15f * random(3), down = 0.68f + 0.12f * random(4);
  for (int i = 0; i < side; ++i)
    for (int j = 0; j < side; ++j) {
      const float from_middle = float(i) - 5.5f - dy;
      const float y = 3 + down * from_middle;
      const float x = 2 + across * (float(j) - 5.5f - dx + slant * from_middle);
      const float row = std::floor(y), column = std::floor(x), v = y - row, u = x - column;
      const int r = int(row), c = int(column);
      const float value = (1 - v) * ((1 - u) * ink(r, c) + u * ink(r, c + 1)) +
                          v * ((1 - u) * ink(r + 1, c) + u * ink(r + 1, c + 1));
      pixels[side * i + j] = value + 0.25f * random(8 + side * i + j);
    }
}

struct Digits {
  ht::Tensor images, labels;
};
/// Returns `count` digits: those of the training set that the step draws, or the test set.
Digits batch_of(int count, bool test, int64_t step) {
  static const std::vector<float> all = [] {
    std::vector<float> pixels(std::size_t(training_digits + test_digits) * side * side);
    for (int n = 0; n < training_digits + test_digits; ++n) draw(n, &pixels[side * side * n]);
    return pixels;
  }();
  const ht::MemoryScope scope(ht::MemoryUse::input);
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (int i = 0; i < count; ++i) {
    const uint32_t word = ht::Philox::words(2, uint64_t(batch_size * step + i))[0];
    const int n = test ? training_digits + i : int(word % training_digits);
    pixels.insert(pixels.end(), &all[side * side * n], &all[side * side * n] + side * side);
    labels.push_back(n % 10);
  }
  return {ht::from_vector(pixels, {count, side * side}), ht::from_vector(labels, {count})};
}

std::string hash_of(std::span<const ht::Tensor> tensors) {  // as halftone-lab's
  ht::policy::Fingerprint fingerprint;
  for (const ht::Tensor& x : tensors) {
    std::ostringstream head;
    head << x.shape() << ' ' << x.dtype();
    fingerprint.add(head.str());
    fingerprint.add({reinterpret_cast<const char*>(x.raw_data()), std::size_t(x.bytes())});
  }
  return fingerprint.text();
}

constexpr int64_t model_parameters = side * side * 64 + 64 + 2 * 64 + 64 * 10 + 10;
/// Braces: they fix the order in which the layers draw their first weights.
ht::nn::Sequential new_model() {
  ht::manual_seed(0);
  return ht::nn::Sequential{ht::nn::Linear(side * side, 64), ht::nn::LayerNorm(64), ht::nn::Relu(),
                            ht::nn::Linear(64, 10)};
}

/// A model in training. Two of them share the ledger: what the other one has is subtracted.
class Run {
 public:
  Run(ht::amp::Policy policy, double rate)
      : others_(ht::memory_report().now),
        model_(new_model()),
        adamw_(model_.parameters(), {.lr = rate}),
        list_(std::make_shared<ht::amp::CastPolicy>(ht::amp::CastPolicy::preset(policy.policy))) {
    policy.own_policy = list_;
    training_.emplace(policy, model_, adamw_);
    keep_own();
  }

  Json steps(int count) {
    begin();
    Json losses = Json::array();
    int64_t casts = 0;
    for (int i = 0; i < count; ++i) {
      const int64_t casts_before = ht::amp::casts_made();
      losses.push_back(number(step())["value"]);
      casts = ht::amp::casts_made() - casts_before;
    }
    return end({{"losses", losses}, {"casts", casts}});
  }

  /// Runs one step under a log of casts and a probe. Neither changes a bit.
  Json look() {
    begin();
    ht::policy::Probe probe(*training_, {.every = 1}, step_);
    Json operations = Json::array();
    double loss = 0;
    {
      const ht::amp::PrecisionLog log;
      loss = step();
      for (const ht::amp::PrecisionLog::Entry& e : log.entries())
        operations.push_back({{"op", e.op},
                              {"class", ht::name(e.decided.cast_class)},
                              {"runs_in", e.runs_in},
                              {"casts", e.casts},
                              {"bytes", e.bytes},
                              {"to_zero", e.to_zero}});
    }
    ht::Survey gradients;  // of the results of all operations
    int lift = 0;          // of the loss scale, as a power of two
    for (const ht::policy::ProbeRow& row : probe.rows())
      if (row.role == ht::policy::Role::grad_output && row.site.find("linear") != row.site.npos)
        gradients.merge(row.survey), lift = std::ilogb(row.loss_scale);
    ht::policy::UpdateSums updates;
    for (const ht::policy::UpdateRow& row : probe.updates())
      if (row.state.empty()) updates.add(row.stored);
    // The shares that f16 rounds to 0, and holds with fewer bits, if it gets them times 2^by.
    const auto in_f16 = [&](int by) {
      return Json{{"zero", number(gradients.would_underflow(ht::formats::f16, by))},
                  {"short", number(gradients.share_below(-14 - by))}};
    };
    const std::optional<int> enough = gradients.sufficient_lift(ht::formats::f16);
    return end({{"losses", {number(loss)["value"]}},
                {"operations", operations},
                {"underflow", {{"unscaled", in_f16(-lift)}, {"scaled", in_f16(0)}}},
                {"enough", enough ? number(std::ldexp(1.0, *enough + lift)) : Json()},
                {"updates", {{"count", updates.count}, {"lost", updates.lost}}}});
  }

  Json accuracy() {
    begin();
    const auto best = [&] {
      const ht::NoGrad no_grad;
      const ht::Tensor images = batch_of(test_digits, true, 0).images;
      return training_->forward(model_, images).argmax(1).to_vector<int64_t>();
    }();
    int right = 0;
    for (int i = 0; i < test_digits; ++i) right += best[std::size_t(i)] == i % 10;
    keep_own();
    return {{"accuracy", double(right) / test_digits}};
  }

  Json set(std::string_view op, std::string_view wanted) {
    const auto asked = ht::named<ht::CastClass>(wanted);
    if (!asked)
      ht::fail<ht::UsageError>("list", "there is no class named \"", wanted,
                               "\". Use low_precision, full_precision, widest_input or as_is.");
    (*list_)[op] = *asked;
    return {{"op", op}, {"class", wanted}};
  }

  /// Returns the effect of the policy, and what each rounded tensor lost in the last look().
  Json resolved() {
    ht::policy::Probe probe(*training_, {.every = 1, .updates = false}, step_);
    step();
    const ht::policy::Session& session = ht::policy::session_of(*training_);
    session.require_all_rules_used();
    Json tensors = Json::array();
    for (const ht::policy::ProbeRow& row : probe.rows())
      if (!row.quantizer.empty())
        tensors.push_back({{"site", row.site},
                           {"role", ht::policy::name(row.role)},
                           {"format", row.quantizer},
                           {"to_zero", number(row.survey.underflow())},
                           {"saturated", number(row.survey.saturation())},
                           {"decibels", number(row.survey.sqnr())}});
    return {{"table", ht::policy::resolved_table(session)}, {"tensors", tensors}};
  }

  std::string hash() const { return hash_of(model_.parameters()); }
  /// Returns the dtype of autocast, which asks the list; null: none.
  Json begun() const {
    const std::optional<ht::DType> dtype = training_->strategy().autocast;
    return {{"hash", hash()}, {"autocast", dtype ? Json(ht::name(*dtype)) : Json()}};
  }

 private:
  double step() {
    const Digits batch = batch_of(batch_size, false, step_++);
    training_->zero_grad();
    const ht::Tensor loss = training_->forward(
        [&](const ht::Tensor& x) { return ht::cross_entropy(model_(x), batch.labels); },
        batch.images);
    training_->backward(loss);
    training_->step();
    return loss.item();
  }

  void begin() {
    const ht::MemoryReport report = ht::memory_report();
    for (std::size_t i = 0; i < own_.size(); ++i) others_[i] = report.now[i] - own_[i];
    ht::reset_peak_memory();
  }
  void keep_own() {
    const ht::MemoryReport report = ht::memory_report();
    for (std::size_t i = 0; i < own_.size(); ++i) own_[i] = report.now[i] - others_[i];
  }
  Json end(Json answer) {
    keep_own();
    const ht::MemoryReport report = ht::memory_report();
    Json uses = Json::object(), peaks = Json::object();
    int64_t total = 0;
    for (std::size_t i = 0; i < own_.size(); ++i) {
      const int64_t bytes = report.at_peak[i] - others_[i];
      const std::string use(ht::name(ht::MemoryUse(i)));
      if (bytes != 0) uses[use] = bytes;
      if (report.peak[i] != others_[i]) peaks[use] = report.peak[i] - others_[i];
      total += bytes;
    }
    answer["step"] = step_, answer["bytes"] = uses, answer["peaks"] = peaks,
    answer["total"] = total;
    answer["scale"] = training_->scaler().scale_value();
    answer["skipped"] = training_->skipped_steps();
    return answer;
  }

  std::array<int64_t, ht::memory_use_count> others_, own_{};
  ht::nn::Sequential model_;
  ht::optim::AdamW adamw_;
  std::shared_ptr<ht::amp::CastPolicy> list_;
  std::optional<ht::amp::Training> training_{};
  int64_t step_ = 0;
};

Run& run_of(const Json& request) {
  static std::map<int, std::unique_ptr<Run>> runs;
  std::unique_ptr<Run>& run = runs[request.value("id", 0)];
  if (request.contains("strategy")) {
    run.reset();  // before the new one, which counts the bytes of others
    ht::amp::Policy policy = ht::amp::Policy::named(request.at("strategy").get<std::string>());
    const double scale = request.value("scale", policy.loss_scale.init_scale);  // 0: none
    policy.scales_loss = policy.scales_loss && scale > 0;
    if (policy.scales_loss) policy.loss_scale.init_scale = scale;
    run = std::make_unique<Run>(policy, request.value("lr", 1e-3));
  }
  if (!run) ht::fail<ht::UsageError>("train", "no training has begun. Choose a strategy first.");
  return *run;
}

// --- 4. A policy

Json policy(const Json& request) {
  const ht::amp::Policy policy =
      ht::policy::read_text(request.at("text").get<std::string>(), "editor");
  Run run(ht::policy::watched(policy), 1e-3);
  Json answer = run.resolved();
  std::ostringstream line;
  line << policy;
  answer["line"] = line.str(), answer["hash"] = ht::policy::hash(policy);
  return answer;
}

// --- 5. The first graded task, with the tests of examples/exercises/

/// The reader's function, of the bits of an f32. It throws nothing.
int (*to_bf16_of_bits)(int bits) = nullptr;
}  // namespace
uint16_t to_bf16(float x) { return uint16_t(to_bf16_of_bits(std::bit_cast<int32_t>(x))); }
#define TASK <cstdint>  // in place of task.h, which defines to_bf16()
#include <halftone/examples/exercises/01_round_to_bf16/tests.cpp>

namespace grade {
namespace {
Json groups, verdict;
std::string described;
struct Failed {};
}  // namespace

void group(const char* title, const char* topic, const char* why, void (*run)()) {
  if (!verdict.is_null()) return;
  groups.push_back(title);
  described.clear();
  try {
    run();
  } catch (const Failed&) {
    verdict["title"] = title, verdict["topic"] = topic, verdict["why"] = why;
  }
}
void input(const char* format, ...) {
  char text[200];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  described = text;
}
void fail(const std::string& expected, const std::string& got) {
  verdict = {{"input", described}, {"expected", expected}, {"got", got}};
  throw Failed{};
}
void holds(bool ok, const std::string& expected, const std::string& got) {
  if (!ok) fail(expected, got);
}
void same_bits(uint64_t got, uint64_t expected, int digits, const char*) {
  const auto text = [digits](uint64_t bits) {
    char code[32];
    std::snprintf(code, sizeof code, "0x%0*llx", digits, static_cast<unsigned long long>(bits));
    return std::string(code);
  };
  if (got != expected) fail(text(expected), text(got));
}
}  // namespace grade

namespace {

// --- The list of requests

Json about(const Json&) {
  Json roundings = Json::array(), shipped = Json::array();
  for (const std::string_view word : ht::words_of<ht::Rounding>) roundings.push_back(word);
  for (const ht::policy::ShippedPolicy& p : ht::policy::shipped_policies())
    shipped.push_back({{"name", p.name}, {"text", p.text}});
  ht::nn::Sequential model = new_model();
  ht::optim::AdamW adamw(model.parameters());
  Json bytes = Json::array();  // of a weight
  for (const std::string_view name : ht::amp::Policy::names()) {
    const ht::amp::StrategyBytes all =
        ht::amp::predicted_bytes(ht::amp::Policy::named(name), model, adamw);
    Json row{name};
    for (const int64_t part :
         {all.parameter, all.companion, all.gradient, all.optimizer_state, all.total()})
      row.push_back(double(part) / double(model_parameters));
    bytes.push_back(row);
  }
  return {{"kernels", ht::kernels_of({})},
          {"strategies", ht::amp::Policy::names()},
          {"bytes", bytes},
          {"roundings", roundings},
          {"policies", shipped}};
}

Json answer_to(const Json& request) {
  static const std::map<std::string, Json (*)(const Json&)> all{
      {"about", about},
      {"round", round_number},
      {"stairs", stairs},
      {"block", block},
      {"update", update},
      {"policy", policy},
      {"new", [](const Json& r) { return run_of(r).begun(); }},
      {"steps", [](const Json& r) { return run_of(r).steps(r.value("count", 1)); }},
      {"look", [](const Json& r) { return run_of(r).look(); }},
      {"accuracy", [](const Json& r) { return run_of(r).accuracy(); }},
      {"set",
       [](const Json& r) {
         return run_of(r).set(r.at("op").get<std::string>(), r.at("class").get<std::string>());
       }},
      {"hash", [](const Json& r) {
         return Json{{"hash", run_of(r).hash()}};
       }}};
  const auto asked = request.at("do").get<std::string>();
  const auto found = all.find(asked);
  if (found == all.end())
    ht::fail<ht::UsageError>("halftone_call", "there is no request \"", asked,
                             "\". Use one of answer_to() in web/binding.cpp.");
  return found->second(request);
}

}  // namespace

/// Grades the reader's function: {"groups": [titles that ran], "verdict": null or the case that
/// failed}.
extern "C" const char* halftone_grade(int (*to_bf16)(int bits)) {
  static std::string text;
  to_bf16_of_bits = to_bf16;
  grade::groups = Json::array(), grade::verdict = {};
  grade::tests();
  text = Json{{"groups", grade::groups}, {"verdict", grade::verdict}}.dump();
  return text.c_str();
}

/// The answer is valid until the next call.
extern "C" const char* halftone_call(const char* request) {
  static std::string text;
  try {
    ht::set_portable_bits(true);
    text = answer_to(Json::parse(request)).dump();
  } catch (const std::exception& error) { text = Json{{"error", error.what()}}.dump(); }
  return text.c_str();
}
