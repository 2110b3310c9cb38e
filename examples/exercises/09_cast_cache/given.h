// A tape of tensors with one number each, for task 9. Read it first; nothing here is to be changed.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "numbers.h"

enum class Dtype { f32, f16, bf16 };

/// Gives freed memory to the next object of the type, as an allocator does.
template <class T> std::shared_ptr<T> pooled(T value) {
  static thread_local auto& freed = *new std::vector<void*>;  // outlives every tensor
  void* memory = freed.empty() ? ::operator new(sizeof(T)) : freed.back();
  if (!freed.empty()) freed.pop_back();
  return std::shared_ptr<T>(new (memory) T(std::move(value)), [](T* object) {
    object->~T();
    freed.push_back(object);
  });
}

/// The memory of a tensor. Every write in place increases `version`.
struct Storage {
  float number = 0;
  uint64_t version = 0;
};

struct Tensor;
using Var = std::shared_ptr<Tensor>;
struct Tensor {
  std::shared_ptr<Storage> storage{};
  Dtype dtype = Dtype::f32;
  bool requires_grad = false;
  float gradient = 0;
  std::vector<std::pair<Var, float>> history{};  // inputs, and the derivative by each
  bool is_leaf() const { return history.empty(); }
  float number() const { return storage->number; }
};

/// Whether operations are recorded on this thread. NoGrad turns that off for a scope (an
/// evaluation), EnableGrad turns it on.
inline thread_local bool recording = true;
struct GradMode {
  explicit GradMode(bool on) : before(std::exchange(recording, on)) {}
  ~GradMode() { recording = before; }
  GradMode(const GradMode&) = delete;
  bool before;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};
struct EnableGrad : GradMode {
  EnableGrad() : GradMode(true) {}
};

/// A weight (requires_grad) or an input, in f32.
inline Var leaf(float number, bool requires_grad) {
  return pooled(Tensor{.storage = pooled(Storage{number}), .requires_grad = requires_grad});
}
/// Writes in place, as an optimizer does.
inline void write(const Var& x, float number) {
  x->storage->number = number, ++x->storage->version;
}
/// Gives the tensor other memory, as loading a model does. The new memory has version 0.
inline void replace(const Var& x, float number) { x->storage = pooled(Storage{number}); }

inline float rounded(float x, Dtype dtype) {
  if (dtype == Dtype::bf16) return numbers::bf16(x);
  return dtype == Dtype::f16 ? numbers::rounded(x, 11, -14, 65504, true) : x;
}

/// The result of an operation. It is recorded if recording is on and an input requires a gradient.
inline Var result(float number, Dtype dtype, std::vector<std::pair<Var, float>> inputs) {
  bool recorded = false;
  for (const auto& [input, derivative] : inputs) recorded |= recording && input->requires_grad;
  if (!recorded) inputs.clear();
  return pooled(
      Tensor{pooled(Storage{rounded(number, dtype)}), dtype, recorded, 0, std::move(inputs)});
}

/// How many casts this thread has made.
inline thread_local int casts_made = 0;
inline Var cast(const Var& x, Dtype dtype) {
  return ++casts_made, result(x->number(), dtype, {{x, 1.0f}});
}

inline Var multiply(const Var& a, const Var& b) {
  if (a->dtype != b->dtype) throw std::logic_error("multiply() got operands of two dtypes");
  return result(a->number() * b->number(), a->dtype, {{a, b->number()}, {b, a->number()}});
}

/// Adds `gradient` times its derivative to the gradient of every tensor that `y` depends on.
inline void backward(const Var& y, float gradient = 1) {
  if (!y->requires_grad) throw std::logic_error("backward() of a result that has no history");
  y->gradient += gradient;
  for (const auto& [input, derivative] : y->history)
    if (input->requires_grad) backward(input, gradient * derivative);
}
