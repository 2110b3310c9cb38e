// Lesson 1: tensors. You will learn how to make and print tensors, that views share memory, how
// shapes broadcast, what each dtype can and cannot represent, and how to see what uses the memory.
#include <iomanip>
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

void compare_dtypes() {
  std::cout << "\n--- dtypes: four numbers after rounding\n";
  const ht::Tensor exact = ht::from({0.1, 1.001, 1e-7, 70000}, ht::f64);
  std::cout << "dtype      bits     epsilon         max         0.1       1.001        1e-7       "
               "70000\n";
  for (const ht::DType dtype : {ht::f64, ht::f32, ht::f16, ht::bf16, ht::f8_e4m3, ht::f8_e5m2}) {
    const ht::DTypeFacts& facts = ht::facts(dtype);
    std::cout << std::left << std::setw(8) << facts.name << std::right << std::setw(7)
              << facts.significand_bits << std::setprecision(3) << std::setw(12)
              << ht::epsilon(dtype) << std::setw(12) << facts.max << std::setprecision(5);
    // Short floats are storage: casting rounds to nearest even, and kernels compute in f32.
    for (const double value : ht::cast(exact, dtype).to_vector<double>())
      std::cout << std::setw(12) << value;
    std::cout << '\n';
  }
  std::cout << "f16 overflows above 65504 and loses small numbers; bf16 has f32's range and\n"
               "three digits. Mixed precision is about living with that.\n";
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
  compare_dtypes();
  count_bytes();
  return after_output();
}
