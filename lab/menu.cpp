// Replays the products of a pass on quantized operands.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <halftone/autograd/node.h>
#include <halftone/core/error.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/lab/menu/one_pass.h>
#include <halftone/policy/quantizer_json.h>
#include <halftone/policy/treated_op.h>

namespace halftone::lab {

namespace {

using policy::Role;

/// The sums over the replays of one module under one format; sums of squares of errors, and of what
/// has the errors.
struct BatchSums {
  double loss = 0;  // sum (dL/dy)^2 (dy)^2
  double bend = 0;  // the same times the number of losses in the mean
  double y_error = 0, y_size = 0;
  double dw_error = 0, dw_size = 0;  // gradients of weights

  /// Adds the sums of a batch, with gradients divided by the loss scale.
  void add(const BatchSums& batch, double scale) {
    const double by = 1 / (scale * scale);
    loss += by * batch.loss, bend += by * batch.bend;
    y_error += batch.y_error, y_size += batch.y_size;
    dw_error += by * batch.dw_error, dw_size += by * batch.dw_size;
  }
};

struct Module {
  std::string path;
  double flops = 0;
  std::vector<BatchSums> batch, all;  // by format
};

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

/// Returns the square of Measurement::added that a module adds alone: see one_pass.h. Sums of
/// squares of gradients: of the module after it, and of all.
double added_squared(const BatchSums& sums, double after, double all) {
  constexpr double of_results = 0.02;  // fitted on lenet, lstm_text and gpt_tiny
  const double y = ratio(sums.y_error, sums.y_size);
  return (sums.dw_error + y * after) / all + sums.bend + of_results * y;
}

/// Returns the number of losses whose mean a tensor leads to: images, or rows of other tensors.
double losses_of(const Tensor& y) {
  if (y.rank() == 4) return double(y.size(0));
  return y.rank() == 0 || y.size(-1) == 0 ? 1 : double(y.numel() / y.size(-1));
}

/// A product with its replays, between forward and backward.
struct Replay {
  std::vector<Role> roles;
  std::shared_ptr<Node> exact;
  double losses = 1;
  std::vector<float> y;
  std::vector<std::vector<float>> errors;      // y of a format minus y
  std::vector<std::shared_ptr<Node>> formats;  // nodes on quantized operands
};

class Replayer final : public policy::Observer {
 public:
  Replayer(std::vector<Module>& modules, const std::vector<Quantizer>& formats,
           const std::set<std::string>& sites)
      : modules_(modules), formats_(formats), sites_(sites) {}

  bool begin_pass(int64_t) override {
    replays_.clear();
    return true;
  }

  void tensor(const policy::Seen& seen, const Tensor&, const Tensor& after) override {
    if (seen.role > Role::bias || !sites_.contains(seen.site)) return;
    operands_.resize(std::max(operands_.size(), seen.input + 1));
    operands_[seen.input] = {seen.role, after};
  }

  void ran(std::string_view site, std::span<const Tensor> inputs, Computation& computation,
           const Tensor&) override {
    const std::vector<Operand> operands = std::move(operands_);
    operands_.clear();
    if (!sites_.contains(std::string(site))) return;
    std::vector<Tensor> wide(inputs.size());
    Replay replay;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool given = i < operands.size() && operands[i].value.defined();
      replay.roles.push_back(given ? operands[i].role : Role::bias);
      const Tensor x = given ? operands[i].value : inputs[i];
      wide[i] = x.defined() && is_floating(x.dtype()) ? x.detach().to(f32) : x;
    }
    const Tensor exact = computation.aside(wide, &replay.exact);
    replay.y = exact.to_vector<float>(), replay.losses = losses_of(exact);
    const Contraction sums = replay.exact->info->sums.value_or(sums_over_last);
    for (const Quantizer& format : formats_) {
      std::vector<Tensor> rounded = wide;
      for (std::size_t i = 0; i < wide.size(); ++i)
        if (replay.roles[i] != Role::bias && wide[i].defined() && is_floating(wide[i].dtype()))
          rounded[i] = policy::quantized_along(wide[i], sums.forward.of(i), {.quantizer = format});
      std::shared_ptr<Node>& node = replay.formats.emplace_back();
      std::vector<float> error = computation.aside(rounded, &node).to_vector<float>();
      for (std::size_t i = 0; i < error.size(); ++i) error[i] -= replay.y[i];
      replay.errors.push_back(std::move(error));
    }
    replays_[std::string(site)].push_back(std::move(replay));
  }

  void differentiated(std::string_view site, const Tensor& dy,
                      std::span<const Tensor> gradients) override {
    const auto found = replays_.find(std::string(site));
    if (found == replays_.end() || found->second.empty()) return;
    Replay replay = std::move(found->second.back());
    found->second.pop_back();
    Module& module = module_of(site);
    const Tensor wide = dy.detach().to(f32);
    const std::vector<float> g = wide.to_vector<float>();
    for (std::size_t f = 0; f < formats_.size(); ++f) {
      BatchSums& to = module.batch[f];
      double loss = 0;
      for (std::size_t i = 0; i < g.size(); ++i) {
        const double error = replay.errors[f][i], y = replay.y[i], change = double(g[i]) * error;
        loss += change * change, to.y_error += error * error, to.y_size += y * y;
      }
      to.loss += loss, to.bend += replay.losses * loss;
    }
    for (std::size_t i = 0; i < replay.roles.size(); ++i)
      if (replay.roles[i] == Role::weight && i < gradients.size() && gradients[i].defined())
        add_weight(i, replay, wide, module);
  }

 private:
  /// Replays the product that gives the gradient of a weight.
  void add_weight(std::size_t input, const Replay& replay, const Tensor& dy, Module& module) {
    const Sums along = replay.exact->info->sums.value_or(sums_over_last).gradient.of(input);
    const auto mask = uint32_t(1) << input;
    const std::vector<float> exact = replay.exact->backward_for(dy, mask)[input].to_vector<float>();
    for (std::size_t f = 0; f < formats_.size(); ++f) {
      const Tensor rounded = policy::quantized_along(dy, along, {.quantizer = formats_[f]});
      const std::vector<float> own =
          replay.formats[f]->backward_for(rounded, mask)[input].to_vector<float>();
      double error = 0, size = 0;
      for (std::size_t k = 0; k < own.size(); ++k) {
        const double wanted = exact[k], difference = double(own[k]) - wanted;
        error += difference * difference, size += wanted * wanted;
      }
      module.batch[f].dw_error += error, module.batch[f].dw_size += size;
    }
  }

  struct Operand {
    Role role = Role::bias;
    Tensor value{};
  };
  Module& module_of(std::string_view site) {
    const std::string_view path = site.substr(0, site.rfind('/'));
    return *std::ranges::find(modules_, path, &Module::path);
  }

  std::vector<Module>& modules_;
  const std::vector<Quantizer>& formats_;
  const std::set<std::string>& sites_;
  std::vector<Operand> operands_{};
  std::map<std::string, std::vector<Replay>> replays_{};
};

std::vector<Quantizer> quantizers_of(const std::vector<std::string>& names) {
  std::vector<Quantizer> result;
  for (const std::string& name : names) {
    const std::optional<Quantizer> quantizer = quantizer_named(name);
    if (!quantizer) {
      std::vector<std::string_view> known;
      for (const NamedFormat& format : named_formats()) known.push_back(format.name);
      for (const std::string_view ready : ready_made_quantizers()) known.push_back(ready);
      fail_unknown_name("--menu", "quantizer", name, known);
    }
    if (policy::is_unsigned(quantizer->grid))
      fail<UsageError>("--menu", name,
                       " has no sign bit, and operands have negative numbers. Choose a "
                       "format with a sign, such as e4m3.");
    result.push_back(*quantizer);
  }
  return result;
}

}  // namespace

std::vector<OnePassScore> one_pass_scores(const Trial& trial, const policy::PolicyFile& base,
                                          const std::vector<policy::ResolvedSite>& sites,
                                          const std::vector<std::string>& formats) {
  const std::vector<Quantizer> quantizers = quantizers_of(formats);
  std::vector<Module> modules;
  const auto module_at = [&](const std::string& path) {
    return std::ranges::find(modules, path, &Module::path);
  };
  for (const policy::ResolvedSite& site : sites) {
    if (site.flops <= 0 || site.site.path.empty()) continue;
    if (module_at(site.site.path) == modules.end()) {
      const std::vector<BatchSums> none(quantizers.size());
      modules.push_back({site.site.path, 0, none, none});
    }
    module_at(site.site.path)->flops += site.flops;
  }
  if (modules.empty())
    fail<UsageError>("--menu", "the workload has no product in a module. Choose another.");
  std::set<std::string> replayed;
  for (const policy::ResolvedSite& site : sites)
    if (site.asks == CastClass::low_precision && module_at(site.site.path) != modules.end())
      replayed.insert(policy::name(site.site));
  double losses = 0;
  int batches = 0;
  trial.watch(base, std::make_shared<Replayer>(modules, quantizers, replayed),
              [&](double loss, double scale) {
                losses += std::abs(loss), ++batches;
                for (Module& module : modules)
                  for (std::size_t f = 0; f < quantizers.size(); ++f)
                    module.all[f].add(module.batch[f], scale), module.batch[f] = {};
              });
  std::vector<OnePassScore> scores;
  const double all = trial.size() * trial.size();
  for (std::size_t m = 0; m < modules.size(); ++m) {
    const Module& module = modules[m];
    const double after = m + 1 < modules.size() ? modules[m + 1].all.front().dw_size : all;
    for (std::size_t f = 0; f < quantizers.size(); ++f) {
      const BatchSums& sums = module.all[f];
      BatchSums mean = sums;
      mean.bend /= batches;
      scores.push_back({.path = module.path,
                        .format = formats[f],
                        .bits = quantizers[f].bits_per_element(),
                        .flops = module.flops,
                        .loss_change = ratio(std::sqrt(sums.loss * batches), losses),
                        .added = std::sqrt(added_squared(mean, after, all))});
    }
  }
  return scores;
}

}  // namespace halftone::lab
