// The bytes of every strategy, to the byte, on an MLP: bytes at rest and between steps, and the
// peak of every use. Bytes per parameter with Adam:
//
//                                    fp32  amp   o2  o2 fused  full  kahan  split
//   parameter                           4    4    2         2     2      2      2
//   master, remainder, compensation     -    -    4         4     -      2      2
//   gradient                            4    4    2         2     2      2      2
//   master gradient                     -    -    4         -     -      -      -
//   optimizer state                     8    8    8         8     4      4      8
//   cast cache, forward to backward     -    2    -         -     -      -      -
//   steady                             16   16   16        16     8     10     14
//   peak                               16   18   20        16     8     10     14
#include "cases.h"

namespace halftone::test::ledger_test {
namespace {

using Use = MemoryUse;

/// Bytes per parameter.
struct Expected {
  std::string_view strategy;
  std::optional<DType> state_dtype;  // other than the strategy's
  bool fused_master = true;
  int parameter, companion, gradient, master_gradient, state, cast_cache, steady, peak;
  double ratio;
};

const Expected table[]{
    {"fp64", {}, true, 8, 0, 8, 0, 16, 0, 32, 32, 2.0},
    {"fp32", {}, true, 4, 0, 4, 0, 8, 0, 16, 16, 1.0},
    {"amp-bf16", {}, true, 4, 0, 4, 0, 8, 2, 16, 18, 1.0},
    {"amp-fp16", {}, true, 4, 0, 4, 0, 8, 2, 16, 18, 1.0},
    {"o1-fp16", {}, true, 4, 0, 4, 0, 8, 2, 16, 18, 1.0},
    {"o2-bf16", {}, false, 2, 4, 2, 4, 8, 0, 16, 20, 1.5},
    {"o2-bf16", {}, true, 2, 4, 2, 0, 8, 0, 16, 16, 1.5},
    {"o2-fp16", {}, false, 2, 4, 2, 4, 8, 0, 16, 20, 1.5},
    {"o2-fp16", {}, true, 2, 4, 2, 0, 8, 0, 16, 16, 1.5},
    {"o3-fp16", {}, true, 2, 0, 2, 0, 8, 0, 12, 12, 0.5},
    {"o3-fp16", f16, true, 2, 0, 2, 0, 4, 0, 8, 8, 0.5},
    {"full-bf16", {}, true, 2, 0, 2, 0, 4, 0, 8, 8, 0.5},
    {"full-bf16", f32, true, 2, 0, 2, 0, 8, 0, 12, 12, 0.5},
    {"full-bf16-sr", {}, true, 2, 0, 2, 0, 4, 0, 8, 8, 0.5},
    {"full-bf16-kahan", {}, true, 2, 2, 2, 0, 4, 0, 10, 10, 1.0},
    {"full-bf16-kahan", f32, true, 2, 2, 2, 0, 8, 0, 14, 14, 1.0},
    {"split-bf16", {}, true, 2, 2, 2, 0, 8, 0, 14, 14, 1.0},
    {"split-bf16", bf16, true, 2, 2, 2, 0, 4, 0, 10, 10, 1.0},
};

/// The uses that belong to parameters: without activations, inputs and workspaces.
int64_t of_parameters(const std::array<int64_t, memory_use_count>& bytes) {
  int64_t sum = 0;
  for (const Use use : {Use::parameter, Use::master_weight, Use::gradient, Use::master_gradient,
                        Use::optimizer_state, Use::cast_cache, Use::compensation})
    sum += bytes[std::size_t(use)];
  return sum;
}
int64_t companion(const MemoryReport& report) {
  return report.now_of(Use::master_weight) + report.now_of(Use::compensation);
}

/// Returns the largest sum over parameter uses during two accumulated micro-batches and a step. The
/// ledger's peak includes all bytes, also activations; this one only the parameters'.
class Watch {
 public:
  void look() { largest_ = std::max(largest_, of_parameters(memory_report().now)); }
  int64_t largest() const { return largest_; }

 private:
  int64_t largest_ = 0;
};

/// Reads the ledger whenever an operation of the forward pass runs.
struct Watched final : UserOp {
  static constexpr OpInfo info{"watched", CastClass::as_is};
  Watch* watch;
  explicit Watched(Watch* w) : watch(w) {}
  Tensor forward(const Tensor& x) {
    watch->look();
    return x.clone();
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    watch->look();
    return {dy};
  }
};

TEST_CASE("the ledger of every strategy, to the byte") {
  for (const Expected& e : table) {
    CAPTURE(e.strategy);
    CAPTURE(e.fused_master);
    const MemoryReport empty = memory_report();
    REQUIRE(of_parameters(empty.now) == 0);
    {
      amp::Strategy strategy = amp::Strategy::named(e.strategy);
      strategy.fused_master = e.fused_master;
      if (e.state_dtype) strategy.state_dtype = e.state_dtype;
      StrategyCase run(strategy);
      const int64_t n = run.model->parameter_count();
      const MemoryReport at_rest = memory_report();
      CHECK(at_rest.now_of(Use::parameter) == e.parameter * n);
      CHECK(companion(at_rest) == e.companion * n);
      CHECK(double(at_rest.now_of(Use::parameter) + companion(at_rest)) == e.ratio * 4 * double(n));

      run.step();  // makes the optimizer's state
      run.training.zero_grad();
      reset_peak_memory();
      Watch watch;
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        const Tensor loss = cross_entropy(
            run.training.forward(
                [&](const Tensor& x) { return apply(Watched(&watch), (*run.model)(x)); },
                run.inputs),
            run.targets);
        run.training.backward(loss);
      }
      run.training.optimizer().gradients();  // as clipping would: makes the masters' gradients
      watch.look();
      run.training.step();
      const MemoryReport after = memory_report();
      CHECK(after.peak_of(Use::parameter) == e.parameter * n);
      CHECK(after.peak_of(Use::master_weight) + after.peak_of(Use::compensation) ==
            e.companion * n);
      CHECK(after.now_of(Use::gradient) == e.gradient * n);
      CHECK(after.peak_of(Use::master_gradient) == e.master_gradient * n);
      CHECK(after.now_of(Use::optimizer_state) == e.state * n);
      CHECK(after.peak_of(Use::cast_cache) == e.cast_cache * n);
      CHECK(of_parameters(after.now) == e.steady * n);
      CHECK(watch.largest() == e.peak * n);
    }
    CHECK(memory_report().now == empty.now);  // nothing remains allocated
  }
}

TEST_CASE("outside the region only the graph holds casts, and backward frees them") {
  StrategyCase run("amp-bf16");
  {
    const Tensor loss = run.loss();
    CHECK(memory_report().now_of(Use::cast_cache) > 0);
    run.training.backward(loss);
    CHECK(memory_report().now_of(Use::cast_cache) == 0);
  }
}

}  // namespace
}  // namespace halftone::test::ledger_test
