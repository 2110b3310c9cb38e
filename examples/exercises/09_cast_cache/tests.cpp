// Hidden tests of task 9.
#include "grade.h"

#include TASK

namespace {

const Var& weight() {
  static thread_local Var w;
  return w = leaf(1.001f, true);
}
void number_is(const Var& x, float expected) {
  grade::same(x->number(), expected, "number of operand(w)");
}
/// One pass of training: 3 w.
void train(const Var& w) { backward(multiply(operand(leaf(3, false)), operand(w))); }

}  // namespace

void grade::tests() {
  group("the example of task.h", "cast_cache", "This is one step of a training under autocast.",
        [] {
          const Var w = leaf(1.001f, true), x = leaf(3, false);
          const int before = casts_made;
          {
            input("multiply(operand(x), operand(w)) in a bf16 region");
            Autocast region(Dtype::bf16);
            backward(multiply(operand(x), operand(w)));
            same(casts_made - before, 2, "casts"), same(cached(), 1, "cached()");
            number_is(operand(w), 1.0f);
            input("operand(w) twice");
            same(operand(w) == operand(w), true, "the same Var");
          }
          input("after the region");
          same(w->gradient, 3.0f, "w->gradient"), same(cached(), 0, "cached()"),
              same(operand(w) == w, true, "operand(w) == w");
        });
  group("which inputs are cast, and which are cached", "cast_cache",
        "A cache of activations holds memory for numbers that are used once.", [] {
          const Var w = weight(), x = leaf(2, false);
          Autocast region(Dtype::f16);
          const Var y = multiply(operand(x), operand(w));
          input("an activation that is f16 already, in an f16 region");
          same(operand(y) == y, true, "operand(y) == y");
          const Var wide =
              result(2.5f, Dtype::f32, {{w, 1.0f}});  // requires a gradient, but is not a leaf
          input("an f32 activation and an f32 input without gradient, twice each");
          const int before = casts_made;
          for (int i = 0; i < 2; ++i)
            same(int(operand(wide)->dtype), int(Dtype::f16), "dtype"), operand(x);
          same(casts_made - before, 4, "casts"), same(cached(), 1, "cached()");
          Autocast inner(Dtype::bf16);
          input("an f16 activation in a bf16 region");
          same(operand(y) == y, true, "operand(y) == y");
          Autocast off(Dtype::f32);
          input("an f32 weight and an f16 activation in an f32 region (autocast is off)");
          same(operand(w) == w, true, "operand(w) == w"),
              same(operand(y) == y, true, "operand(y) == y");
        });
  group("a weight is cast once", "cast_cache",
        "A recurrent network uses a weight hundreds of times in a pass.", [] {
          const Var w = weight(), v = leaf(-2.002f, true);
          Autocast region(Dtype::bf16);
          const int before = casts_made;
          for (int i = 0; i < 100; ++i) operand(w), operand(v);
          input("100 uses of two weights");
          same(casts_made - before, 2, "casts"), same(cached(), 2, "cached()");
          for (int i = 0; i < 2; ++i) train(w);
          input("two losses with one weight, each with its backward()");
          same(w->gradient, 6.0f, "w->gradient");
          const Var kept = operand(v);
          {
            const NoGrad evaluation;
            input("operand(v) under NoGrad");
            same(operand(v) == kept, true, "the same Var as before");
          }
          write(w, 2), operand(w), replace(w, 3), operand(w);
          input("operand(v), after another weight got another number and other memory");
          same(operand(v) == kept, true, "the same Var as before");
        });
  group("trap: the weight changes inside a region", "cast_cache",
        "An optimizer step in the region: the cache without a version trains with the old weight.",
        [] {
          const Var w = weight();
          Autocast region(Dtype::bf16);
          operand(w);
          for (int step = 1; step <= 5; ++step) {
            write(w, float(step));
            input("operand(w) after write(w, %d)", step);
            number_is(operand(w), float(step));
          }
          input("after five writes of one weight");
          same(cached(), 1, "cached()");
        });
  group("trap: the weight gets other memory", "cast_cache",
        "Loading a model replaces the memory; its version starts at 0 again.", [] {
          const Var w = weight();
          Autocast region(Dtype::bf16);
          operand(w);
          replace(w, 2);
          input("operand(w) after replace(w, 2)");
          number_is(operand(w), 2);
          replace(w, 3), replace(w, 4);  // the second may be where the memory of 2 was
          input("operand(w) after replace(w, 3) and replace(w, 4)");
          number_is(operand(w), 4);
          const Var tied = pooled(Tensor{.storage = w->storage, .requires_grad = true});
          input("operand(w) and operand(tied), two weights with one memory");
          same(operand(tied) == operand(w), false, "the same Var");
          train(tied);
          same(tied->gradient, 3.0f, "tied->gradient"), same(w->gradient, 0.0f, "w->gradient");
        });
  group("trap: a forward pass under NoGrad comes first", "cast_cache",
        "An evaluation in the region leaves a cast without history. The weight then gets no "
        "gradient, and no error says so.",
        [] {
          const Var w = weight(), wide = result(2.5f, Dtype::f32, {{w, 1.0f}});
          const int before = casts_made;
          Autocast region(Dtype::bf16);
          {
            const NoGrad evaluation;
            input("an f32 activation under NoGrad");
            same(operand(wide)->requires_grad, false, "requires_grad of its cast");
            input("an evaluation under NoGrad");
            same(multiply(operand(w), operand(w))->requires_grad, false,
                 "requires_grad of its result");
            same(recording, false, "recording, still under NoGrad");
          }
          input("training after an evaluation under NoGrad, in one region");
          same(operand(w)->requires_grad, true, "requires_grad of operand(w)");
          same(casts_made - before, 2, "casts, one of them of w");
          train(w);
          same(w->gradient, 3.0f, "w->gradient");
        });
  group("trap: one weight under two dtypes", "cast_cache",
        "A bf16 region in an f16 one would get the f16 cast, and an operation two dtypes.", [] {
          const Var w = weight();
          Autocast outer(Dtype::f16);
          const int before = casts_made;
          const Var half = operand(w);
          {
            Autocast inner(Dtype::bf16);
            input("operand(w) in a bf16 region inside of an f16 one");
            same(int(operand(w)->dtype), int(Dtype::bf16), "dtype");
            Autocast off(Dtype::f32);
            operand(w);
          }
          input("operand(w) in the f16 region again");
          same(int(operand(w)->dtype), int(Dtype::f16), "dtype"),
              same(operand(w) == half, true, "the same Var as before");
          same(casts_made - before, 2, "casts");
        });
  group("the end of a region", "cast_cache",
        "A cache that outlives its region holds a short copy of the model, and a region that does "
        "not end turns the optimizer's arithmetic short.",
        [] {
          const Var w = weight();
          std::weak_ptr<Tensor> short_copy;
          try {
            Autocast outer(Dtype::bf16);
            short_copy = operand(w);
            Autocast inner(Dtype::f16);
            throw 1;
          } catch (int) {}
          input("after two regions that an exception ended");
          same(operand(w) == w, true, "operand(w) == w"), same(cached(), 0, "cached()");
          same(short_copy.expired(), true, "the cast is freed");
          Autocast region(Dtype::bf16);
          { Autocast off(Dtype::f32); }
          input("in a bf16 region, after an f32 region inside of it");
          same(int(operand(w)->dtype), int(Dtype::bf16), "dtype of operand(w)");
        });
  group("trap: threads", "cast_cache",
        "A worker of a data loader must not run in bf16 because the main thread has a region.", [] {
          static Var w;
          static bool untouched, cast_there;
          static std::size_t count;
          w = leaf(1.001f, true);
          Autocast region(Dtype::bf16);
          operand(w);
          std::thread([] {
            untouched = operand(w) == w, count = cached();
            Autocast own(Dtype::f16);
            cast_there = operand(w)->dtype == Dtype::f16;
          }).join();
          input("another thread, while this one has a bf16 region");
          same(untouched, true, "operand(w) == w"), same(count, 0, "cached()");
          same(cast_there, true, "operand(w) is f16 in an f16 region of that thread");
          input("this thread, after the other one had a region of its own");
          same(int(operand(w)->dtype), int(Dtype::bf16), "dtype of operand(w)"),
              same(cached(), 1, "cached()");
          w.reset();
        });
}
