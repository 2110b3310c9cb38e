// Hidden tests of task 8. The oracle is a plain f32 training, whose weights are rounded to look at.
#include "grade.h"

#include TASK

namespace {

std::vector<float> random_weights(std::size_t count, uint64_t seed) {
  grade::Random random{seed};
  std::vector<float> weights(count);
  for (float& w : weights) w = random.spread(-3, 0);
  return weights;
}
std::vector<uint16_t> random_gradients(std::size_t count, uint64_t seed) {
  std::vector<uint16_t> gradients;
  for (const float g : random_weights(count, seed)) gradients.push_back(numbers::bf16_bits(g));
  return gradients;
}
/// Compares with f32 weights.
void check(const Weights& w, const std::vector<float>& plain) {
  grade::same(int64_t(w.model.size()), int64_t(plain.size()), "count of model weights");
  grade::same(int64_t(w.masters.size()), int64_t(plain.size()), "count of masters");
  for (std::size_t i = 0; i < plain.size(); ++i) {
    grade::same(w.masters[i], plain[i], "a master");
    grade::same_bits(w.model[i], numbers::bf16_bits(plain[i]), 4, "a model weight");
  }
}
void plain_step(std::vector<float>& w, const std::vector<uint16_t>& gradients, float lr,
                float decay) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float decayed = decay * w[i], sum = numbers::from_bf16(gradients[i]) + decayed,
                update = lr * sum;
    w[i] = w[i] - update;
  }
}

}  // namespace

void grade::tests() {
  group("the example of task.h", "masters",
        "The model weight moves when the master has moved far enough.", [] {
          input("make_weights({1.001})");
          check(make_weights({1.001f}), {1.001f});
          for (const float lr : {0.001f, 0.01f}) {
            Weights w = make_weights({1.001f});
            std::vector<float> plain{1.001f};
            step(w, {0x3f80}, lr, 0), plain_step(plain, {0x3f80}, lr, 0);
            input("a step from 1.001 with gradient 1, lr %g, decay 0", double(lr));
            check(w, plain);
          }
        });
  group("masters keep the bits of the initial weights", "masters",
        "Masters that are made from rounded weights start the training from another model.", [] {
          const std::vector<float> initial = random_weights(500, 1);
          input("make_weights of 500 random numbers, the first %.9g", double(initial[0]));
          check(make_weights(initial), initial);
        });
  group("1000 steps are those of f32 weights", "masters",
        "Most updates late in a training are smaller than half a spacing of bf16.", [] {
          std::vector<float> plain = random_weights(20, 2);
          Weights w = make_weights(plain);
          for (uint64_t i = 0; i < 1000; ++i) {
            const std::vector<uint16_t> gradients = random_gradients(20, 100 + i);
            step(w, gradients, 1e-3f, 0), plain_step(plain, gradients, 1e-3f, 0);
            input("20 random weights after %d steps, lr 1e-3, decay 0", int(i + 1));
            check(w, plain);
          }
        });
  group("weight decay is computed from the master", "masters",
        "w - 1e-4 w rounds to w in bf16: no decay at all, in any step.", [] {
          std::vector<float> plain = random_weights(20, 3);
          plain[0] = 1e-35f;
          Weights w = make_weights(plain);
          for (int i = 0; i < 1000; ++i) {
            const std::vector<uint16_t> none(20, 0);
            step(w, none, 1e-2f, 1e-2f), plain_step(plain, none, 1e-2f, 1e-2f);
            input("20 random weights after %d steps, gradients 0, lr 1e-2, decay 1e-2", i + 1);
            check(w, plain);
          }
          for (uint64_t i = 0; i < 100; ++i) {
            const std::vector<uint16_t> gradients = random_gradients(20, 300 + i);
            step(w, gradients, 1e-2f, 1e-2f), plain_step(plain, gradients, 1e-2f, 1e-2f);
            input("then %d steps with random gradients", int(i + 1));
            check(w, plain);
          }
        });
  group("weights that are written", "masters",
        "Weights that are loaded are gone after the next step, if the masters do not follow.", [] {
          const std::vector<float> initial{1.001f, 2.002f, -0.5003f};
          Weights w = make_weights(initial);
          input("model weights of 1.001, 2.002, -0.5003; the second is replaced by 3");
          write_model(
              w, {numbers::bf16_bits(1.001f), numbers::bf16_bits(3), numbers::bf16_bits(-0.5003f)});
          check(w, {1.001f, 3, -0.5003f});
          step(w, {0, 0, 0}, 0.1f, 0);
          input("the same, and a step with gradients of 0");
          check(w, {1.001f, 3, -0.5003f});
          Weights several = make_weights(initial);
          input("the first replaced by the next larger bf16, the third by the next smaller");
          write_model(several, {0x3f81, numbers::bf16_bits(2.002f), 0xbeff});
          check(several, {numbers::from_bf16(0x3f81), 2.002f, numbers::from_bf16(0xbeff)});
          Weights zero = make_weights({0.0f});
          input("a model weight of 0 is replaced by -0");
          write_model(zero, {0x8000});
          check(zero, {-0.0f});
        });
  group("a training that is saved and restored", "masters",
        "Masters that are made again from bf16 weights after a restart make the loss jump.", [] {
          Weights w = make_weights(random_weights(30, 4));
          for (uint64_t i = 0; i < 100; ++i) step(w, random_gradients(30, i), 1e-3f, 1e-2f);
          const std::vector<float> saved = save(w);
          input("30 weights, saved after 100 steps and restored");
          Weights again = restore(saved);
          check(again, w.masters);
          for (uint64_t i = 100; i < 200; ++i) {
            step(w, random_gradients(30, i), 1e-3f, 1e-2f),
                step(again, random_gradients(30, i), 1e-3f, 1e-2f);
            input("step %d after the restart", int(i - 99));
            check(again, w.masters);
          }
        });
}
