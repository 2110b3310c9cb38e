// Lesson 1: tensors. You will learn how to make and print tensors, that views share memory, how
// shapes broadcast, how dtypes change, and how to see what uses the memory.
#include <iostream>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;

namespace {

void make_and_print() {
  std::cout << "--- making tensors\n";
  const ht::Tensor a = ht::from({{1.0, 2, 3}, {4, 5, 6}});
  std::cout << a << "\n\n"
            << ht::arange(0, 1, 0.25) << "\n\n"
            << ht::zeros({2, 2}, ht::i32) << '\n';
  // The same seed gives the same numbers with any number of threads.
  ht::manual_seed(0);
  std::cout << '\n' << ht::randn({2, 3}) << '\n';
}

void share_memory() {
  std::cout << "\n--- views\n";
  const ht::Tensor a = ht::from({{1.0, 2, 3}, {4, 5, 6}});
  // A view has another shape and other strides over the same storage: nothing is copied.
  const ht::Tensor columns = ht::transpose(a, 0, 1);
  std::cout << "shape " << columns.shape() << ", strides " << columns.strides()
            << ", same storage: " << std::boolalpha << (columns.storage() == a.storage()) << '\n';
  const ht::Tensor row_major = ht::contiguous(columns);
  std::cout << "contiguous() copies where it must: strides " << row_major.strides()
            << ", same storage: " << (row_major.storage() == a.storage()) << '\n';
  std::cout << "the last column:\n" << ht::slice(a, 1, 2, 3) << '\n';
}

void compute() {
  std::cout << "\n--- computing\n";
  const ht::Tensor a = ht::from({{1.0, 2, 3}, {4, 5, 6}});
  const ht::Tensor bias = ht::from({10.0, 20, 30});
  // [2, 3] + [3]: sizes are aligned from the right, and a missing or unit size repeats.
  std::cout << a + bias << '\n' << ht::matmul(a, ht::transpose(a, 0, 1)) << '\n';
  std::cout << "mean of each row: " << ht::mean(a, {1}) << '\n';
  try {
    ht::matmul(a, a);
  } catch (const ht::ShapeError& error) {
    std::cout << "an error says what to do:\n  " << error.what() << '\n';
  }
}

void change_dtype() {
  std::cout << "\n--- dtypes\n";
  const ht::Tensor x = ht::from({0.1, 1.001, 257});  // f32, unless a dtype is given
  for (const ht::DType dtype : {ht::f32, ht::bf16, ht::f16})
    std::cout << dtype << ": " << ht::cast(x, dtype).bytes() << " bytes, " << ht::cast(x, dtype)
              << '\n';
  std::cout << "A cast rounds; lesson 3 says to which numbers.\n";
}

void count_bytes() {
  std::cout << "\n--- memory\n";
  ht::reset_peak_memory();
  // Every allocation is counted for a use, which the enclosing scope sets.
  const ht::MemoryScope scope(ht::MemoryUse::input);
  const ht::Tensor batch = ht::rand({128, 1, 28, 28});
  std::cout << ht::memory_report();
}

}  // namespace

int main() {
  make_and_print();
  share_memory();
  compute();
  change_dtype();
  count_bytes();
  return after_output();
}

// Conclusion. A tensor is a view of a storage with a dtype. Operations broadcast and check shapes,
// casts round, and every allocation is counted for a use.
//
// Exercises
// 1 (pencil). Which strides has transpose(a, 0, 1) of a row-major [4, 5, 6] tensor? Is it
//   contiguous?
// 2 (predict). The view `columns` is filled with fill_with(). Which of the tensors a and row_major
//   change?
// 3 (implement). Write an outer sum, out[i][j] = x[i] + y[j], with unsqueeze and +, without a loop.
