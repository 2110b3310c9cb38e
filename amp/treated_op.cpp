// Decides which tensors are rounded: operands before the operation, its result after it; in
// backward the incoming gradient, for each product as its rule says, and the outgoing gradients.
// The rounding is in core/formats/quantizer.h, the view of the tensor in session.h.
#include <halftone/amp/session.h>

#include <bit>

#include <halftone/autograd/node.h>
#include <halftone/core/tensor.h>
#include <halftone/amp/policy.h>

namespace halftone::policy {

uint64_t site_seed(uint64_t seed, std::string_view site) {
  uint64_t z = (seed ^ Fingerprint().add(site).value()) + 0x9e3779b97f4a7c15u;  // SplitMix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

RandomKey key_of(uint64_t seed, uint64_t offset, Role role, std::size_t input) {
  return {seed + uint64_t(role) + 16 * uint64_t(input), offset};
}

void fail_inexact(std::string_view where, std::string_view site, Role role,
                  const Quantizer& quantizer, DType dtype) {
  fail<UsageError>(where, site, ": the grid of \"", name(role), "\" is ", described(quantizer),
                   ", which ", dtype,
                   " does not hold exactly. Add \"compute\": \"f32\", or a power-of-two scale.");
}

namespace {

class TreatedOp final : public OpTap {
 public:
  explicit TreatedOp(TreatedCall call) : call_(std::move(call)) {}

  Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
    if (!inputs.empty() && inputs[0].defined()) dtype_ = inputs[0].dtype();
    const std::vector<Tensor> used = operands(inputs);
    Tensor y;
    const bool differs = call_.records && call_.treatment->backward_differs();
    if (differs && operation.saves_apart()) {
      y = operation.run(used);
      operation.save(operands_of_backward(inputs, used));
    } else if (differs) {
      y = operation.aside(used);
      operation.run(operands_of_backward(inputs, used));
    } else {
      y = operation.run(used);
    }
    require_exact(y.dtype());
    if (call_.observer) call_.observer->ran(call_.site, call_.before, operation, y);
    call_.before.clear();  // they must not outlive the pass
    return rounded(Role::output, y, Sums::over_last, 0);
  }

  std::vector<Tensor> backward(Node& node, const Tensor& dy) override {
    const std::size_t count = node.edges.size();
    const auto inputs_with = [&](Role role) {
      uint32_t wanted = 0;
      for (std::size_t i = 0; i < count && i < 32; ++i)
        if (node.edges[i].input && role_of(i) == role) wanted |= uint32_t(1) << i;
      return wanted;
    };
    const uint32_t weights = inputs_with(Role::weight), biases = inputs_with(Role::bias);
    std::vector<Tensor> gradients(count);
    const auto go = [&](const Tensor& seen, uint32_t wanted) {
      if (wanted == 0) return;
      std::vector<Tensor> own = node.backward_for(seen, wanted);
      for (std::size_t i = 0; i < own.size(); ++i)
        if (own[i].defined()) gradients[i] = std::move(own[i]);
    };
    const Tensor seen = rounded(Role::grad_output, dy, sums().gradient.of(0), 0);
    const bool apart = call_.treatment->says(Role::grad_output_weight, 0);
    if (seen.body() == dy.body() && !apart) gradients = node.backward(dy);
    else if (weights == 0 && biases == 0) gradients = node.backward(seen);
    else {
      // A bias's gradient is a sum of the unrounded dy: no recipe sums rounded values for it.
      go(seen, inputs_with(Role::input) | (apart ? 0 : weights));
      if (apart && weights != 0) go(seen_by_weight(dy, weights), weights);
      go(dy, biases);
    }
    for (const Learned& learned : learned_)
      if (Tensor& g = gradients[learned.input]; g.defined())
        g = call_.learned->gradient(
            learned.name, *call_.treatment->quantizer(role_of(learned.input), learned.input),
            learned.x, learned.scale, g, learned.count, call_.notes);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Role leaves = role_of(i) == Role::input ? Role::grad_input : Role::grad_weight;
      gradients[i] = rounded(leaves, gradients[i], Sums::over_last, i);
    }
    if (call_.observer) call_.observer->differentiated(call_.site, dy, gradients);
    return gradients;
  }

 private:
  Role role_of(std::size_t input) const {
    return input < call_.roles.size() ? call_.roles[input] : Role::input;
  }

  const Contraction& sums() const { return call_.op->sums ? *call_.op->sums : sums_over_last; }

  std::vector<Tensor> operands(std::span<const Tensor> inputs) {
    std::vector<Tensor> result;
    learned_.clear();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& x = inputs[i];
      result.push_back(rounded(role_of(i), x, sums().forward.of(i), i));
      const Quantizer* const quantizer = call_.treatment->quantizer(role_of(i), i);
      if (!quantizer || !quantizer->scaling.learned || !x.defined() || x.numel() == 0) continue;
      // n: the numbers of a scale; of an input, those of one example.
      const bool per_row = quantizer->scaling.row_level || role_of(i) != Role::weight;
      const int64_t count = per_row && x.rank() > 0 ? x.numel() / x.size(0) : x.numel();
      const std::string use = name_of_use(role_of(i), i);
      learned_.push_back({i, use, x, call_.learned->scale_for(use, *quantizer, x).clone(), count});
    }
    return result;
  }

  /// Returns forward's tensors for uses without their own rule: drawn and observed only once.
  std::vector<Tensor> operands_of_backward(std::span<const Tensor> inputs,
                                           std::vector<Tensor> used) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Role role = role_of(i);
      if (role == Role::bias) continue;
      const Role use = role == Role::input ? Role::input_backward : Role::weight_backward;
      if (call_.treatment->says(use, i))
        used[i] = rounded(use, inputs[i], sums().backward.of(i), i);
    }
    return used;
  }

  /// Checks that the dtype of the result and of its gradient holds their grids.
  void require_exact(DType dtype) const {
    if (!is_floating(dtype) || dtype == f64) return;
    for (const Role role : {Role::output, Role::grad_output, Role::grad_output_weight})
      if (call_.treatment->keeps_scales(role)) continue;
      else if (const Quantizer* quantizer = call_.treatment->quantizer(role);
               quantizer && !quantizer->exact_in(dtype))
        fail_inexact(call_.where, call_.site, role, *quantizer, dtype);
  }

  Tensor seen_by_weight(const Tensor& dy, uint32_t weights) const {
    const auto input = std::size_t(std::countr_zero(weights));
    return rounded(Role::grad_output_weight, dy, sums().gradient.of(input), 0);
  }

  Tensor rounded(Role role, const Tensor& x, Sums sums, std::size_t input) const {
    const Quantizer* quantizer = call_.treatment->quantizer(role, input);
    const bool quantizes = quantizer && x.defined() && is_floating(x.dtype()) && x.dtype() != f64;
    const Seen seen{call_.site, call_.op->name, role, input, quantizes ? quantizer : nullptr};
    for (const Measured& measured : call_.measured)
      if (measured.role == role) measure(measured, x, sums, input);
    const Tensor y = quantizes ? quantized_once(seen, x, sums) : x;
    if (call_.observer && x.defined()) {
      // The product reads rotated numbers; an observer sees them rotated back.
      const bool turned = quantizes && quantizer->hadamard > 0 && f8_operand(y);
      const Tensor after = turned ? quantized_along(x, sums, call_of(seen)) : readable(y);
      call_.observer->tensor(seen, as_it_came(seen, x), after);
    }
    return y;
  }

  /// Surveys a rounding for a rule's condition; its result is not used.
  void measure(const Measured& measured, const Tensor& x, Sums sums, std::size_t input) const {
    if (!x.defined() || !is_floating(x.dtype()) || x.dtype() == f64) return;
    const Tensor row =
        call_.switches->row_for(measured.rule, call_.site, call_.pass, int(input), x.device());
    if (!row.defined()) return;
    quantized_along(x.dtype() == f32 ? x : x.to(f32), sums,
                    {.quantizer = measured.quantizer,
                     .survey = row,
                     .key = key_of(call_.seed, call_.offset, measured.role, input)});
  }

  /// Returns a rounded weight of an earlier pass, or rounds x.
  Tensor quantized_once(const Seen& seen, const Tensor& x, Sums sums) const {
    const bool weight = seen.role == Role::weight || seen.role == Role::weight_backward;
    if (!weight || !call_.rounded) return quantized_as(seen, x, sums);
    return call_.rounded->tensor_for(name_of_use(seen.role, seen.input), call_.before[seen.input],
                                     x, *seen.quantizer,
                                     [&] { return quantized_as(seen, x, sums); });
  }

  QuantizeCall call_of(const Seen& seen) const {
    return {.quantizer = *seen.quantizer,
            .key = key_of(call_.seed, call_.offset, seen.role, seen.input),
            .key_stride = uint64_t(1) << 34};
  }

  Tensor quantized_as(const Seen& seen, const Tensor& x, Sums sums) const {
    const Quantizer& quantizer = *seen.quantizer;
    QuantizeCall call = call_of(seen);
    const auto use = [&] { return name_of_use(seen.role, seen.input); };
    if (quantizer.scaling.from_history && quantizer.scaling.per == Scaling::Per::tensor)
      call.scale = call_.scales->scale_for(use(), quantizer, x, call_.notes);
    if (quantizer.average > 0)
      call.average =
          call_.averages->average_for(use(), quantizer.average, x, call_.step, call_.notes);
    if (quantizer.scaling.learned) call.amax = call_.learned->scale_for(use(), quantizer, x);
    if (call_.observer) {
      call.survey = call_.observer->row_for(seen, x.device());
      if (call.scale.defined()) call_.observer->scale_used(seen, call.scale);
    }
    const bool scaled = call_.treatment->keeps_scales(seen.role);
    if (scaled || factor_waits(seen)) {
      if (call.survey.defined()) quantized_along(x.to(f32), sums, call), call.survey = {};
      return waiting_along(x, sums, call, dtype_, scaled ? quantized_f8 : quantized_apart);
    }
    return quantizer.scaling.learned ? quantized(x, call) : quantized_along(x, sums, call);
  }

  /// Returns whether emulated sums are of numbers, and a factor of the tensor multiplies them
  /// afterwards, as in the machines that have such sums.
  bool factor_waits(const Seen& seen) const {
    const std::optional<Accumulator>& sums = call_.treatment->accumulate;
    return sums && sums->fused > 0 && call_.op->factors && is_multiplied(seen.role) &&
           has_one_factor(*seen.quantizer);
  }

  /// Returns a tensor that an observer can read without an effect on the product.
  static Tensor readable(const Tensor& x) {
    const auto operand = f8_operand(x);
    return operand ? waiting_operand(*operand, x.dtype()) : x;
  }

  std::string name_of_use(Role role, std::size_t input) const {
    return call_.site + '.' + std::string(name(role)) + (input > 0 ? std::to_string(input) : "");
  }

  /// Returns an operand before the region's cast, if nothing else changes it.
  const Tensor& as_it_came(const Seen& seen, const Tensor& x) const {
    const bool operand = seen.role <= Role::bias && seen.input < call_.before.size();
    return operand && !seen.quantizer ? call_.before[seen.input] : x;
  }

  /// An operand whose scale is learned, for its gradient.
  struct Learned {
    std::size_t input;
    std::string name;
    Tensor x, scale;
    int64_t count;
  };
  TreatedCall call_;
  std::vector<Learned> learned_{};
  DType dtype_{};  // of the operation's first input, and of its result
};

}  // namespace

std::shared_ptr<OpTap> make_treated_op(TreatedCall call) {
  return std::make_shared<TreatedOp>(std::move(call));
}

// The views: a transposition before, and its inverse after.

namespace {

/// Calls quantize(view of x, call) and returns its result as x is seen.
template <class Quantize>
Tensor in_view(const Tensor& x, Sums sums, const QuantizeCall& call, const Quantize& quantize) {
  const auto quantized_view = [&](const Tensor& x, const QuantizeCall& call, const auto& view) {
    QuantizeCall viewed = call;
    if (call.average.defined()) viewed.average = view(call.average);
    return quantize(view(x), viewed);
  };
  const int rank = x.rank();
  const auto exchanged = [&](int a, int b) {
    const auto view = [&](const Tensor& tensor) { return views::transpose(tensor, a, b); };
    return view(quantized_view(x, call, view));
  };
  switch (sums) {
    case Sums::over_last: break;
    case Sums::over_rows:
      if (rank < 2) break;
      return exchanged(rank - 2, rank - 1);
    case Sums::over_tokens: {
      if (rank < 2) break;
      const int64_t columns = x.size(-1);
      const auto view = [&](const Tensor& tensor) {
        const int64_t rows = columns == 0 ? 0 : tensor.numel() / columns;
        return views::transpose(views::reshaped(tensor, {rows, columns}), 0, 1);
      };
      return views::reshaped(views::transpose(quantized_view(x, call, view), 0, 1), x.shape());
    }
    case Sums::over_channels:
      if (rank < 3) break;
      return exchanged(1, rank - 1);
    case Sums::over_first:
      if (rank < 3) break;
      return exchanged(0, rank - 1);
  }
  return quantize(x, call);
}

}  // namespace

Tensor quantized_along(const Tensor& x, Sums sums, const QuantizeCall& call) {
  return in_view(x, sums, call, quantized);
}

Tensor waiting_along(const Tensor& x, Sums sums, const QuantizeCall& call, DType dtype,
                     F8Operand (*quantize)(const Tensor&, const QuantizeCall&)) {
  return in_view(x, sums, call, [&](const Tensor& view, const QuantizeCall& viewed) {
    return waiting_operand(quantize(view, viewed), dtype);
  });
}

}  // namespace halftone::policy
