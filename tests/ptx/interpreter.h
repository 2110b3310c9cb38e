// A small kernel that a test writes: its memory before and after a run.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "execution.h"
#include "program.h"

namespace halftone::test {

/// A module with one kernel, whose parameter is the address of words.
inline std::string with_kernel(const std::string& body, const std::string& directives = "",
                               const std::string& before = "") {
  return ".version 9.0\n.target sm_80\n.address_size 64\n" + before +
         ".visible .entry k(\n.param .u64 k_param_0\n)\n" + directives +
         "{\n.reg .pred %p<8>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<20>;\n.reg .f32 %f<40>;\n.reg .b64 "
         "%rd<9>;\n.reg .f64 %fd<8>;\n" +
         "ld.param.u64 %rd1, [k_param_0];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n"
         "add.s64 %rd3, %rd1, %rd2;\n" +
         body + "ret;\n}\n";
}

inline ptx::Range& words_of_the_test() {
  static ptx::Range range;
  return range;
}

struct Run {
  unsigned threads = 32, blocks = 1;
  ptx::Order order = ptx::Order::in_step;
  bool fused = false;
};

/// %rd1 is the address of the words, %r1 the number of the thread, %rd3 the address of its word.
inline std::vector<uint32_t> words_after(const std::string& module, std::vector<uint32_t> words,
                                         const Run& run = {}) {
  alignas(64) static uint32_t memory[1024];
  std::copy(words.begin(), words.end(), memory);
  ptx::Module m(module);
  ptx::Kernel& kernel = m.kernel("k");
  ptx::decode(kernel);
  if (run.fused) ptx::fuse(kernel);
  words_of_the_test() = {reinterpret_cast<uint64_t>(memory), words.size() * 4};
  std::vector<std::byte> parameters(8);
  std::memcpy(parameters.data(), &words_of_the_test().first, 8);
  ptx::Launch launch{{run.blocks, 1, 1}, {run.threads, 1, 1}, run.order};
  launch.most_steps = 100'000;
  launch.find_allocation = [](uint64_t) { return words_of_the_test(); };
  ptx::run(kernel, launch, parameters);
  std::copy_n(memory, words.size(), words.begin());
  return words;
}

/// Returns the result that one thread computes with a body that leaves it in %r2.
inline uint32_t result_of(const std::string& body) {
  return words_after(with_kernel(body + "st.global.u32 [%rd3], %r2;\n"), {0}, {.threads = 1})[0];
}

}  // namespace halftone::test
