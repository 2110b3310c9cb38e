// The list of all operations, and apply(), through which each of them runs.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <halftone/autograd/node.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/device.h>
#include <halftone/core/formulas.h>
#include <halftone/core/tensor.h>

namespace halftone {

// The catalog: every operation of the framework, named once. apply() refuses an operation that is
// missing here, and tests/ops/properties.cpp requires samples for every entry. Elementwise
// operations enter through their formula lists.

template <class F> struct Unary;
template <class F> struct Binary;
template <class F> struct Compare;
struct Cast;
struct Where;
struct Reshape;
struct Permute;
struct Expand;
struct Slice;
struct Cat;
struct Pad;
struct Contiguous;
struct Sum;
struct Mean;
struct Var;
struct Max;
struct Min;
struct Prod;
struct Norm;
struct ArgMax;
struct ArgMin;
struct Any;
struct All;
struct ArgSort;
struct Gather;
struct ScatterAdd;
struct Flip;
struct CumulativeSum;
struct CumulativeProduct;
struct Matmul;
struct Linear;
struct Dot;
struct CosineSimilarity;
struct Inverse;
struct Solve;
struct Cholesky;
enum class DecompositionKind { qr, svd, eigh };
template <DecompositionKind kind> struct Decomposition;
using Qr = Decomposition<DecompositionKind::qr>;
using Svd = Decomposition<DecompositionKind::svd>;
using Eigh = Decomposition<DecompositionKind::eigh>;
struct Softmax;
struct LogSoftmax;
struct LogSumExp;
struct Attention;
struct PackedAttention;
template <bool of_values> struct AttentionProduct;
using AttentionScores = AttentionProduct<false>;
using AttentionValues = AttentionProduct<true>;
struct AttentionProbabilities;
struct Rope;
struct PackedSwiglu;
struct GroupedLinear;
struct RouterScores;
struct CrossEntropy;
struct NllLoss;
struct LayerNorm;
struct RmsNorm;
struct AddBeforeNorm;
struct GroupNorm;
struct InstanceNorm;
struct BatchNorm;
struct BatchNormRelu;
struct Conv2d;
struct ConvTranspose2d;
struct MaxPool2d;
struct AvgPool2d;
struct AdaptiveAvgPool2d;
struct Interpolate;
struct Embedding;
struct Lstm;
struct Gru;
struct Dropout;
struct Quantize;
struct Checkpoint;

using ElementwiseOps = Concat<Wrap<Unary, UnaryFormulas>, Wrap<Binary, BinaryFormulas>,
                              Wrap<Compare, CompareFormulas>>;
using StructuredOps =
    TypeList<Cast, Where, Reshape, Permute, Expand, Slice, Cat, Pad, Contiguous, Sum, Mean, Var,
             Max, Min, Prod, Norm, ArgMax, ArgMin, Any, All, ArgSort, Gather, ScatterAdd, Flip,
             CumulativeSum, CumulativeProduct, Matmul, Linear, Dot, CosineSimilarity, Inverse,
             Solve, Cholesky, Qr, Svd, Eigh, Softmax, LogSoftmax, LogSumExp, Attention,
             PackedAttention, AttentionScores, AttentionProbabilities, AttentionValues, Rope,
             PackedSwiglu, GroupedLinear, RouterScores, CrossEntropy, NllLoss, LayerNorm, RmsNorm,
             AddBeforeNorm, GroupNorm, InstanceNorm, BatchNorm, BatchNormRelu, Conv2d,
             ConvTranspose2d, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Interpolate, Embedding, Lstm,
             Gru, Dropout, Quantize, Checkpoint>;
using AllOps = Concat<ElementwiseOps, StructuredOps>;

/// Functions made of operations, with a class of their own in casting policies, as in PyTorch's
/// lists: their inputs are cast before the first of those operations.
namespace composed {
inline constexpr OpInfo einsum{"einsum", CastClass::low_precision, cast_reason::products};
constexpr OpInfo loss(std::string_view name, CastClass asked = CastClass::full_precision) {
  return {name, asked, cast_reason::loss, {.is_loss = true}};
}
inline constexpr OpInfo triplet_margin_loss = loss("triplet_margin_loss");
inline constexpr OpInfo cosine_embedding_loss = loss("cosine_embedding_loss");
inline constexpr OpInfo margin_ranking_loss = loss("margin_ranking_loss");
inline constexpr OpInfo hinge_embedding_loss = loss("hinge_embedding_loss");
inline constexpr OpInfo poisson_nll_loss = loss("poisson_nll_loss");
/// PyTorch casts the inputs of ctc_loss on the CPU only.
inline constexpr OpInfo ctc_loss = loss("ctc_loss", CastClass::as_is);
inline constexpr OpInfo index_put{"index_put", CastClass::widest_input,
                                  cast_reason::several_inputs};
inline constexpr OpInfo index_copy{"index_copy", CastClass::as_is, cast_reason::moves};
inline constexpr OpInfo grid_sample{"grid_sample", CastClass::widest_input,
                                    cast_reason::two_inputs};
inline constexpr const OpInfo* all[]{&einsum,
                                     &triplet_margin_loss,
                                     &cosine_embedding_loss,
                                     &margin_ranking_loss,
                                     &hinge_embedding_loss,
                                     &poisson_nll_loss,
                                     &ctc_loss,
                                     &index_put,
                                     &index_copy,
                                     &grid_sample};
}  // namespace composed

/// Base of operations that users define outside the library: exempt from the catalog.
struct UserOp {};

template <class Op>
concept Operation = std::same_as<const OpInfo, decltype(Op::info)>;

}  // namespace halftone

// Lists the members of an operation, a plain struct: its saved tensors can be read from outside.

namespace halftone::detail {

/// Converts to any type. A struct can be initialized with as many of these as it has members.
struct AnyValue {
  template <class T> operator T() const;
};
template <class S, std::size_t... I> consteval bool takes_values(std::index_sequence<I...>) {
  return requires { S{(static_cast<void>(I), AnyValue{})...}; };
}
inline constexpr std::size_t most_members = 13;  // Quantizer has the most
template <class S, std::size_t N = most_members + 1> consteval std::size_t count_of_values() {
  if constexpr (N == 0 || takes_values<S>(std::make_index_sequence<N>{})) return N;
  else return count_of_values<S, N - 1>();
}

/// Calls see(member) for each member of a struct without constructors and private members.
template <class S, class See> void for_each_member(const S& s, const See& see) {
  const auto all = [&](const auto&... member) { (see(member), ...); };
  constexpr std::size_t bases = std::derived_from<S, UserOp> ? 1 : 0;  // initialized first
  constexpr std::size_t count = count_of_values<S>() - bases;
  static_assert(count <= most_members, "give members that belong together a struct of their own");
  if constexpr (count == 1) {
    const auto& [a] = s;
    all(a);
  } else if constexpr (count == 2) {
    const auto& [a, b] = s;
    all(a, b);
  } else if constexpr (count == 3) {
    const auto& [a, b, c] = s;
    all(a, b, c);
  } else if constexpr (count == 4) {
    const auto& [a, b, c, d] = s;
    all(a, b, c, d);
  } else if constexpr (count == 5) {
    const auto& [a, b, c, d, e] = s;
    all(a, b, c, d, e);
  } else if constexpr (count == 6) {
    const auto& [a, b, c, d, e, f] = s;
    all(a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    const auto& [a, b, c, d, e, f, g] = s;
    all(a, b, c, d, e, f, g);
  } else if constexpr (count == 8) {
    const auto& [a, b, c, d, e, f, g, h] = s;
    all(a, b, c, d, e, f, g, h);
  } else if constexpr (count == 9) {
    const auto& [a, b, c, d, e, f, g, h, i] = s;
    all(a, b, c, d, e, f, g, h, i);
  } else if constexpr (count == 10) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = s;
    all(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (count == 11) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = s;
    all(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (count == 12) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (count == 13) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m);
  }
}

/// Returns the sum of the storage versions (core/memory.h) of the tensors in a member: it grows
/// with each write in place. A struct that other passes may write declares `static constexpr bool
/// written_by_passes = true` and is skipped, as are structs that cannot be read.
template <class M> uint64_t versions_of(const M& member) {
  if constexpr (requires { M::written_by_passes; } || std::is_trivially_copyable_v<M>) {
    return 0;
  } else if constexpr (std::same_as<M, Tensor>) {
    return member.defined() ? member.storage()->version() : 0;
  } else if constexpr (std::same_as<M, std::vector<Tensor>>) {
    uint64_t sum = 0;
    for (const Tensor& x : member) sum += versions_of(x);
    return sum;
  } else if constexpr (requires { member.has_value(), *member; }) {
    return member ? versions_of(*member) : 0;
  } else if constexpr (std::is_class_v<M> && std::is_aggregate_v<M>) {
    uint64_t sum = 0;
    if constexpr (count_of_values<M>() <= most_members)
      for_each_member(member, [&](const auto& inner) { sum += versions_of(inner); });
    return sum;
  } else {
    return 0;
  }
}

}  // namespace halftone::detail

// Every operation of the framework passes through here, in three visible steps: cast, compute,
// record.
//   user call -> apply -> (amp: casts, themselves recorded) -> Op::forward -> backend kernel ->
//   Node
// An operation is a struct with `info`, attributes, saved tensors, forward and backward; moved into
// a node it is the graph. It takes its inputs one by one (a fixed number) or as a span (any number,
// e.g. cat). recorded_backward(dy, history) states the same gradients in operations, for passes
// that create a graph (autograd/history.h).

namespace halftone {

/// The inputs that need gradients, and each gradient's dtype. An operation that can save work
/// declares a member `Needs<N> needs{};`. The dtype is usually the input's. It is f32 for an input
/// that is a cast of an f32 tensor, if the operation declares `static constexpr std::array<bool, N>
/// wide_gradients` with true for this input: the gradient then goes directly to that tensor. A
/// weight gradient thus leaves its matrix product as f32, never rounded to bf16 and cast back.
template <int N> struct Needs {
  std::array<bool, std::size_t(N)> input{};
  std::array<DType, std::size_t(N)> gradient_dtype{};
  bool operator[](int i) const { return input[std::size_t(i)]; }
  DType dtype(int i) const { return gradient_dtype[std::size_t(i)]; }
};

namespace detail {

/// Whether an operation declares `static constexpr bool reads_waiting = true`: it then reads inputs
/// and gradients that wait (core/pending.h). For other operations these are computed first.
template <class Op> constexpr bool reads_waiting = requires { Op::reads_waiting; };
/// Does not compute an operand whose numbers and scales products read (F8Operand).
void compute_if_waiting(const Tensor& x);

[[noreturn]] void fail_saved_was_written(const OpInfo& op);
[[noreturn]] void fail_without_gradient(const OpInfo& op);
[[noreturn]] void fail_without_second_gradient(const OpInfo& op);

/// Calls see(x) for each defined tensor that an operation saved. A member named `mask` is left out.
template <class Op, class See> void for_each_saved(const Op& op, const See& see) {
  if constexpr (std::is_class_v<Op> && std::is_aggregate_v<Op>)
    if constexpr (count_of_values<Op>() <= most_members)
      for_each_member(op, [&]<class M>(const M& member) {
        if constexpr (std::same_as<M, Tensor>) {
          if constexpr (requires { op.mask; })
            if (&member == &op.mask) return;
          if (member.defined()) see(member);
        } else if constexpr (std::same_as<M, std::vector<Tensor>>) {
          for (const Tensor& x : member)
            if (x.defined()) see(x);
        } else if constexpr (!std::is_trivially_copyable_v<M> && Operation<M>) {
          for_each_saved(member, see);  // an operation that is made of another
        }
      });
}

/// Returns the tensor that a node stores in place of the saved x. If x is a large activation, that
/// tensor has the form plan.saved and is decoded when it is read; otherwise it is x itself.
Tensor coded_if_activation(const Tensor& x, std::span<const Tensor> inputs, const Tensor& output,
                           const CastPlan& plan);

template <Operation Op> struct NodeOf final : Node {
  std::optional<Op> op;
  uint64_t saved_versions;  // of the saved tensors, when the operation was recorded
  explicit NodeOf(Op recorded) : op(std::move(recorded)), saved_versions(versions_of(*op)) {}

  std::vector<Tensor> backward(const Tensor& dy) override {
    if (versions_of(*op) != saved_versions) fail_saved_was_written(Op::info);
    if constexpr (!reads_waiting<Op>) compute_if_waiting(dy);
    if (saved_coded) for_each_saved(*op, [](const Tensor& x) { compute_if_waiting(x); });
    if constexpr (requires { op->backward(dy); }) {
      auto gradients = op->backward(dy);
      return {std::make_move_iterator(gradients.begin()), std::make_move_iterator(gradients.end())};
    } else {
      fail_without_gradient(Op::info);
    }
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) override {
    if (versions_of(*op) != saved_versions) fail_saved_was_written(Op::info);
    if constexpr (requires { op->recorded_backward(dy, history); })
      return op->recorded_backward(dy, history);
    else fail_without_second_gradient(Op::info);
  }
  std::vector<Tensor> backward_for(const Tensor& dy, uint32_t inputs) override {
    const auto wanted = [&](std::size_t i) { return i < 32 && (inputs >> i & 1) != 0; };
    std::vector<Tensor> gradients;
    if constexpr (requires { op->needs; }) {
      const auto needs = op->needs;
      for (std::size_t i = 0; i < needs.input.size(); ++i)
        op->needs.input[i] = needs.input[i] && wanted(i);
      gradients = backward(dy);
      op->needs = needs;
    } else {
      gradients = backward(dy);
    }
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (!wanted(i)) gradients[i] = {};
    return gradients;
  }
  void release() override {
    if constexpr (requires { Op::survives_backward; }) return;
    op.reset();
  }
  bool released() const override { return !op.has_value(); }
};

/// Whether an operation can write f32 from short floats (softmax, sums, norms, losses): such an
/// operation declares a member `bool f32_result`.
template <class Op> constexpr bool has_f32_result = requires(Op& op) { op.f32_result; };

/// Returns the edge for the gradient of an input. With `wide`, an input that is a cast of an f32
/// tensor gets the edge of that tensor.
Edge edge_of(const Tensor& input, bool wide);
/// Returns the edges of all inputs; `wide`: one entry per input; empty: false for all.
std::vector<Edge> edges_of(std::span<const Tensor> inputs, std::span<const bool> wide);
template <class Op> constexpr bool wants_wide([[maybe_unused]] std::size_t input) {
  if constexpr (requires { Op::wide_gradients; }) return Op::wide_gradients[input];
  else return false;
}
template <Operation Op> std::vector<Edge> edges_of(std::span<const Tensor> inputs) {
  if constexpr (requires { Op::wide_gradients; }) return edges_of(inputs, Op::wide_gradients);
  else return edges_of(inputs, {});
}

template <Operation Op> void fill_needs(Op& op, std::span<const Edge> edges) {
  if constexpr (requires { op.needs; })
    for (std::size_t i = 0; i < edges.size(); ++i) {
      op.needs.input[i] = edges[i].input != nullptr;
      op.needs.gradient_dtype[i] = edges[i].dtype;
    }
}

/// Returns whether an operation is recorded even if no input requires a gradient, as Checkpoint is.
template <class Op> constexpr bool always_recorded() {
  if constexpr (requires { Op::always_recorded; }) return Op::always_recorded;
  else return false;
}

template <class Op, std::size_t... I>
Tensor call_forward(Op& op, std::span<const Tensor> inputs, std::index_sequence<I...>) {
  return op.forward(inputs[I].detach()...);
}

/// Runs forward on tensors without history; no operation inside can record or cast.
template <std::size_t Count, Operation Op> Tensor run_bare(Op& op, std::span<const Tensor> inputs) {
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  const OperationScope running(&Op::info);
  if constexpr (requires { op.forward(inputs); }) return op.forward(inputs);
  else return call_forward(op, inputs, std::make_index_sequence<Count>{});
}

template <class Op, std::size_t... I> consteval bool has_save(std::index_sequence<I...> /*all*/) {
  return requires(Op & op, const Tensor& x) { op.save((static_cast<void>(I), x)...); };
}
template <class Op, std::size_t... I>
void save_bare(Op& op, std::span<const Tensor> inputs, std::index_sequence<I...> /*all*/) {
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  op.save(inputs[I].detach()...);
}

template <std::size_t Count, Operation Op> class OpComputation final : public ComputationOf<Op> {
 public:
  explicit OpComputation(Op& op) : op_(op) {
    if constexpr (can_repeat) fresh_.emplace(op);
  }
  const Op& operation() const override { return op_; }
  Tensor run(std::span<const Tensor> inputs) override {
    return result_ = run_bare<Count>(op_, inputs);
  }
  /// Returns the result of the last run.
  const Tensor& result() const { return result_; }
  bool saves_apart() const override { return can_save; }
  void save(std::span<const Tensor> inputs) override {
    if constexpr (can_save) save_bare(op_, inputs, std::make_index_sequence<Count>{});
  }
  Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>* kept) override {
    if constexpr (can_repeat) {
      Op other = *fresh_;
      if constexpr (requires { other.needs; })
        for (std::size_t i = 0; i < other.needs.input.size() && kept; ++i) {
          other.needs.input[i] = inputs[i].defined() && is_floating(inputs[i].dtype());
          if (other.needs.input[i]) other.needs.gradient_dtype[i] = inputs[i].dtype();
        }
      Tensor result = run_bare<Count>(other, inputs);
      if (kept) {
        *kept = std::make_shared<NodeOf<Op>>(std::move(other));
        (*kept)->info = &Op::info;
      }
      return result;
    } else {
      fail<UnsupportedError>(Op::info.name,
                             "cannot be computed twice. Ask for nothing that needs a second run.");
    }
  }

 private:
  static constexpr bool can_repeat = std::copy_constructible<Op> && !Op::info.once;
  static constexpr bool can_save = has_save<Op>(std::make_index_sequence<Count>{});
  Op& op_;
  Tensor result_{};
  std::optional<Op> fresh_{};  // a copy of the operation before it saved anything
};

/// Throws UsageError if a tap did not run its operation, and DTypeError if `handed_on`, the tap's
/// result, differs from `result`, the operation's own, in dtype, shape or device.
void check_tapped(const OpInfo& op, const Tensor& result, const Tensor& handed_on);

/// Runs forward with a tap around it.
template <std::size_t Count, Operation Op>
Tensor run_tapped(Op& op, std::span<const Tensor> inputs, OpTap& tap) {
  OpComputation<Count, Op> computation(op);
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  Tensor handed_on = tap.forward(inputs, computation);
  check_tapped(Op::info, computation.result(), handed_on);
  return handed_on;
}

template <std::size_t Count, Operation Op>
Tensor computed(Op& op, std::span<const Tensor> inputs, const CastPlan& plan) {
  const Tf32Scope products(plan.tf32);
  return plan.tap ? run_tapped<Count>(op, inputs, *plan.tap) : run_bare<Count>(op, inputs);
}

bool any_requires_grad(std::span<const Tensor> inputs);
void require_one_device(const OpInfo& op, std::span<const Tensor> inputs);
/// Returns the output as a tensor with history: `node` gets its edges, its number and the facts
/// that the engine checks.
Tensor with_history(const OpInfo& info, const Tensor& output, std::shared_ptr<Node> node,
                    std::vector<Edge> edges);

/// Returns a floating output in `dtype`, by a recorded cast; without a dtype, the output itself.
Tensor as_planned(Tensor output, std::optional<DType> dtype);

template <std::size_t Count, Operation Op> Tensor apply_to(Op op, std::span<Tensor> inputs) {
  static_assert(is_in_list<Op, AllOps> || std::derived_from<Op, UserOp>,
                "name this operation in autograd/apply.h, or derive it from UserOp");
  static_assert(Op::info.cast_class != CastClass::low_precision || Op::info.sums.has_value(),
                "a low-precision operation says in its OpInfo which dimensions its products sum "
                "over: {.sums = sums_over_last}, or a Contraction of its own");
  static_assert(
      Op::info.accumulator == requires { op.accumulate; },
      "an operation with an emulated accumulator has a member `accumulate`, and says so "
      "in its OpInfo: {.accumulator = true}");
  require_one_device(Op::info, inputs);
  // 1. Precision. Under autocast the policy may replace inputs by recorded casts.
  CastPlan plan;
  if (InputCaster* caster = active_caster())
    plan = caster->plan(Op::info, inputs, has_f32_result<Op>);
  if constexpr (has_f32_result<Op>) op.f32_result = plan.f32_result;
  if constexpr (requires { op.accumulate; }) op.accumulate = plan.accumulate;
  // 2. Compute. The operation may skip the gradients that are not needed.
  const bool record = grad_enabled() && (always_recorded<Op>() || any_requires_grad(inputs));
  std::vector<Edge> edges;
  if (record) fill_needs(op, edges = edges_of<Op>(inputs));
  if constexpr (!reads_waiting<Op>)
    for (const Tensor& x : inputs) compute_if_waiting(x);
  Tensor output = computed<Count>(op, inputs, plan);
  if (!output.defined())
    fail<UsageError>(Op::info.name, "forward() returned an undefined tensor. Return the result.");
  // 3. Record. The operation becomes the node, together with the tensors it saved.
  if (!record || !is_floating(output.dtype())) return as_planned(std::move(output), plan.result);
  if (plan.saved != CodedForm{})
    for_each_saved(op, [&](const Tensor& x) {
      const_cast<Tensor&>(x) = coded_if_activation(x, inputs, output, plan);
    });
  auto node = std::make_shared<NodeOf<Op>>(std::move(op));
  node->saved_coded = plan.saved != CodedForm{};
  node->tap = std::move(plan.tap), node->tf32 = plan.tf32;
  output = with_history(Op::info, output, std::move(node), std::move(edges));
  return as_planned(std::move(output), plan.result);
}

/// Does what apply_to() does, for operations of the catalog. It is compiled once, in the library
/// (compiled_ops.h), because a hundred operations cost every file that includes them seconds.
template <std::size_t Count, Operation Op> Tensor apply_compiled(Op op, std::span<Tensor> inputs);

template <std::size_t Count, Operation Op> Tensor apply_any(Op op, std::span<Tensor> inputs) {
  if constexpr (std::derived_from<Op, UserOp>) return apply_to<Count>(std::move(op), inputs);
  else return apply_compiled<Count>(std::move(op), inputs);
}

}  // namespace detail

/// Runs an operation on its inputs. An undefined tensor means an absent optional input.
template <Operation Op, std::same_as<Tensor>... In> Tensor apply(Op op, const In&... in) {
  std::array<Tensor, sizeof...(In)> inputs{in...};
  return detail::apply_any<sizeof...(In)>(std::move(op), std::span<Tensor>(inputs));
}
/// Runs an operation that takes any number of inputs.
template <Operation Op> Tensor apply(Op op, std::vector<Tensor> inputs) {
  return detail::apply_any<0>(std::move(op), std::span<Tensor>(inputs));
}

}  // namespace halftone
