// The correct implementations and the mutants of task 14.
#include "grade.h"

#include "mutants.h"

#include TASK

namespace {

using State = ScalerState;
using Rules = ScalerRules;

float within(const Rules& r, double scale) {
  return float(scale < double(r.min_scale) ? double(r.min_scale)
                                           : std::min(scale, double(r.max_scale)));
}
State right(State s, bool inf, const Rules& r) {
  if (inf) return {within(r, double(s.scale) * r.backoff_factor), 0};
  if (s.clean_steps + 1 < r.growth_interval) return {s.scale, s.clean_steps + 1};
  return {within(r, double(s.scale) * r.growth_factor), 0};
}
/// The state that follows if one of the rules has another value.
template <auto rule, auto value> State with(State s, bool inf, const Rules& r) {
  Rules other = r;
  other.*rule = value;
  return right(s, inf, other);
}
State in_other_words(State s, bool inf, const Rules& r) {
  s.clean_steps = inf ? 0 : s.clean_steps + 1;
  const bool grows = s.clean_steps >= r.growth_interval;
  if (inf) s.scale = std::max(r.min_scale, s.scale * r.backoff_factor);
  if (grows) s.clean_steps = 0, s.scale = std::min(r.max_scale, s.scale * r.growth_factor);
  return s;
}

const std::vector<grade::Named<Scaler>> correct{
    {"limits each product, computed in f64", right},
    {"limits only the side that the factor moves to, in f32", in_other_words}};
const std::vector<grade::Named<Scaler>> mutants{
    {"grows after every clean step", with<&Rules::growth_interval, 1>},
    {"grows one step too late",
     [](State s, bool inf, const Rules& r) {
       return right(
           s, inf,
           {r.growth_factor, r.backoff_factor, r.growth_interval + 1, r.min_scale, r.max_scale});
     }},
    {"waits for equality with the interval",
     [](State s, bool inf, const Rules& r) {
       return !inf && s.clean_steps >= r.growth_interval ? State{s.scale, s.clean_steps + 1}
                                                         : right(s, inf, r);
     }},
    {"an overflow does not reset the count",
     [](State s, bool inf, const Rules& r) {
       return inf ? State{right(s, inf, r).scale, s.clean_steps} : right(s, inf, r);
     }},
    {"growth does not reset the count",
     [](State s, bool inf, const Rules& r) {
       return !inf && s.clean_steps + 1 >= r.growth_interval
                  ? State{right(s, inf, r).scale, s.clean_steps + 1}
                  : right(s, inf, r);
     }},
    {"growth that the limit stops does not reset the count",
     [](State s, bool inf, const Rules& r) {
       const bool stopped =
           !inf && s.clean_steps + 1 >= r.growth_interval && s.scale == r.max_scale;
       return stopped ? State{s.scale, s.clean_steps} : right(s, inf, r);
     }},
    {"the scale has no floor", with<&Rules::min_scale, 0>},
    {"the scale has no ceiling",
     [](State s, bool inf, const Rules& r) {
       return right(s, inf,
                    {r.growth_factor, r.backoff_factor, r.growth_interval, r.min_scale,
                     std::numeric_limits<float>::infinity()});
     }},
    {"growth that would pass the ceiling is left out, not cut",
     [](State s, bool inf, const Rules& r) {
       return !inf && s.scale * r.growth_factor > r.max_scale &&
                      s.clean_steps + 1 >= r.growth_interval
                  ? State{s.scale, 0}
                  : right(s, inf, r);
     }},
    {"backing off that would pass the floor is left out, not cut",
     [](State s, bool inf, const Rules& r) {
       return inf && s.scale * r.backoff_factor < r.min_scale ? State{s.scale, 0}
                                                              : right(s, inf, r);
     }},
    {"always doubles, whatever the growth factor", with<&Rules::growth_factor, 2>},
    {"always halves, whatever the backoff factor",
     [](State s, bool inf, const Rules& r) {
       return right(s, inf, {r.growth_factor, 0.5f, r.growth_interval, r.min_scale, r.max_scale});
     }},
    {"always waits for 2000 clean steps, whatever the interval",
     with<&Rules::growth_interval, 2000>},
    {"an overflow in the step that completes the interval counts as clean",
     [](State s, bool inf, const Rules& r) {
       return right(s, inf && s.clean_steps + 1 < r.growth_interval, r);
     }},
    {"an overflow sets the scale back to 65536 / 2",
     [](State s, bool inf, const Rules& r) {
       return right(inf ? State{65536, 0} : s, inf, r);
     }},
    {"the clean steps are counted in a static variable",
     [](State s, bool inf, const Rules& r) {
       static int64_t clean = 0;
       const State next = right({s.scale, s.clean_steps == 0 ? 0 : clean}, inf, r);
       clean = next.clean_steps;
       return next;
     }},
};

}  // namespace

void grade::tests() {
  group("correct implementations are accepted", "loss_scaler",
        "A test that fails for right code is switched off, and then it finds nothing.",
        [] { judge(accepts, correct, true); });
  group("mutants are rejected", "loss_scaler",
        "Mistakes in a loss scaler do not stop a training: it only loses steps for days.",
        [] { judge(accepts, mutants, false); });
}
