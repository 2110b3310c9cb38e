// The PTX of all kernels of this program has only known instructions. Small kernels that a test
// writes: their memory before and after a run.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../execution.h"
#include "../program.h"

namespace halftone::test {
namespace {

/// A module with one kernel, whose parameter is the address of words.
std::string with_kernel(const std::string& body, const std::string& directives = "",
                        const std::string& before = "") {
  return ".version 9.0\n.target sm_80\n.address_size 64\n" + before +
         ".visible .entry k(\n.param .u64 k_param_0\n)\n" + directives +
         "{\n.reg .pred %p<8>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<20>;\n.reg .f32 %f<40>;\n.reg .b64 "
         "%rd<9>;\n.reg .f64 %fd<8>;\n" +
         "ld.param.u64 %rd1, [k_param_0];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n"
         "add.s64 %rd3, %rd1, %rd2;\n" +
         body + "ret;\n}\n";
}

ptx::Range& words_of_the_test() {
  static ptx::Range range;
  return range;
}

struct Run {
  unsigned threads = 32, blocks = 1;
  ptx::Order order = ptx::Order::in_step;
  bool fused = false;
};

/// %rd1 is the address of the words, %r1 the number of the thread, %rd3 the address of its word.
std::vector<uint32_t> words_after(const std::string& module, std::vector<uint32_t> words,
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
uint32_t result_of(const std::string& body) {
  return words_after(with_kernel(body + "st.global.u32 [%rd3], %r2;\n"), {0}, {.threads = 1})[0];
}

}  // namespace
}  // namespace halftone::test

namespace halftone::test::compiled_kernels {

TEST_CASE("every kernel that nvcc compiled is decoded") {
  int kernels = 0;
  for (ptx::Module* const module : ptx::all_modules())
    for (const auto& [name, kernel] : module->kernels) {
      INFO(name);
      CHECK_NOTHROW(ptx::decode(*kernel));
      CHECK(kernel->code.size() > 1);
      ++kernels;
    }
  MESSAGE(kernels, " kernels");
  CHECK(kernels > 1000);
}

TEST_CASE("kernels that promise the reference's bits have no product and sum that ptxas may fuse") {
  int kernels = 0;
  for (const ptx::Module* const module : ptx::all_modules()) {
    ptx::Module copy(module->text);
    for (const auto& [name, kernel] : copy.kernels) {
      // Surveys promise counts, and sums up to rounding.
      const bool promises =
          (name.find("_quantize_cu_") != name.npos && name.find("survey_kernel") == name.npos) ||
          name.find("next_kernel") != name.npos || name.find("accumulate_kernel") != name.npos;
      if (!promises) continue;
      INFO(name);
      ptx::decode(*kernel);
      const int64_t before = ptx::fused_sums();
      ptx::fuse(*kernel);
      CHECK(ptx::fused_sums() == before);
      ++kernels;
    }
  }
  CHECK(kernels >= 10);
}

}  // namespace halftone::test::compiled_kernels

// Errors that end a kernel: unknown instructions, and forbidden actions.

namespace halftone::test::faults {
namespace {

using ptx::Order;
constexpr Order orders[] = {Order::in_step, Order::ascending, Order::descending, Order::shuffled};

void check_fault(const std::string& module, const char* text, const Run& run = {}) {
  CHECK_THROWS_WITH_AS(words_after(module, std::vector<uint32_t>(64), run), doctest::Contains(text),
                       ptx::Fault);
}
void check_body(const std::string& body, const char* text, const Run& run = {}) {
  INFO(body);
  check_fault(with_kernel(body), text, run);
}

TEST_CASE("an instruction or a modifier that is not known ends the run with its text") {
  check_body("frobnicate.u32 %r2, %r1;\n", "not known: `frobnicate.u32 %r2, %r1` in k");
  check_body("add.sat.s32 %r2, %r1, %r1;\n", "not known: `add.sat.s32");
  check_body("ld.global.volatile.u32 %r2, [%rd3];\n", "not known");
  check_body("bar.sync 1;\n", "barrier that is not number 0");
  check_body("bra L;\n", "there is no label L");
  check_body("mov.b32 %r2, %q;\n", "there is no %q");
  check_body("mov.b32 %r2, %rd1;\n", "%rd1 has 8 bytes, where 4 are wanted");
  check_fault(with_kernel("", ".surprise 7\n", ".surprise 7;\n"), "not a declaration");
}

TEST_CASE("reading a register that no instruction writes is a fault") {
  check_body("add.s32 %r2, %r1, %r3;\n", "a register that nothing writes is read: `add.s32");
  check_body("@%p1 mov.b32 %r2, %r1;\n", "nothing writes");
}

TEST_CASE("accesses out of bounds, and accesses that are not aligned, name the thread") {
  check_body("ld.global.u32 %r2, [%rd3+256];\n", "in no allocation: 4 bytes at 0x");
  check_body("ld.global.u32 %r2, [%rd3+2];\n", "not aligned: 4 bytes at 0x");
  check_body("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd3];\n", "not aligned: 16 bytes");
  check_body("mov.b64 %rd4, 0;\nst.global.u32 [%rd4], %r1;\n",
             "in no allocation: 4 bytes at 0x0, thread 0");
  check_body("ld.param.u32 %r2, [k_param_0+8];\n", "outside of the 8 bytes of parameter memory");
  const std::string shared =
      ".shared .align 4 .b8 s[16];\nmov.b32 %r2, s;\nshl.b32 %r3, %r1, 2;\nadd.s32 %r2, %r2, "
      "%r3;\n";
  check_body(shared + "st.shared.u32 [%r2], %r1;\n",
             "outside of the 16 bytes of shared memory: 4 bytes at 0x10, thread 4");
  const std::string local =
      ".local .align 4 .b8 l[8];\nmov.b64 %rd4, l;\nadd.s64 %rd4, %rd4, %rd2;\n";
  check_body(local + "st.local.u32 [%rd4], %r1;\n",
             "outside of the 16 bytes of local memory: 4 bytes at 0x10");
  check_body(local + "cvta.local.u64 %rd5, %rd4;\nst.u32 [%rd5+16], %r1;\n",
             "in no allocation: 4 bytes at 0x", {.threads = 1});
}

TEST_CASE("blocks larger than .maxntid are refused") {
  check_fault(with_kernel("", ".maxntid 64, 1, 1\n"), "a block of 65 threads, at most 64",
              {.threads = 65});
  CHECK_NOTHROW(words_after(with_kernel("", ".maxntid 64, 1, 1\n"), {}, {.threads = 64}));
}

TEST_CASE("a barrier or an exchange that some threads never reach") {
  const std::string some = "setp.gt.u32 %p1, %r1, 39;\n";
  for (const Order order : orders) {
    CAPTURE(int(order));
    const Run run{.threads = 64, .order = order};
    check_body(some + "@%p1 bra L;\nbar.sync 0;\nL:\n",
               "a barrier that some threads have left out: `bar.sync 0`", run);
    check_body(some + "@%p1 ret;\nbar.sync 0;\n", "a barrier that some threads have left out", run);
    check_body(some +
                   "@%p1 bra L;\nmov.b32 %r3, -1;\nvote.sync.ballot.b32 %r2, %p1, %r3;\nbar.sync "
                   "0;\nL:\nbar.sync 0;\n",
               "never come: `vote.sync", run);
    check_body("mov.b32 %r3, 1;\nshfl.sync.bfly.b32 %r2, %r1, 0, 31, %r3;\n",
               "whose mask leaves it out", run);
    check_body(
        "setp.lt.u32 %p1, %r1, 8;\n@!%p1 bra L;\nshfl.sync.idx.b32 %r2, %r1, 9, 31, 255;\nL:\n",
        "reads from lane 9, which takes no part", run);
  }
}

TEST_CASE("a kernel that does not end") {
  check_body("L:\nbra L;\n", "it does not end", {.threads = 1});
}

}  // namespace
}  // namespace halftone::test::faults

// Results of single instructions, at the edges that "PTX ISA" describes.

namespace halftone::test::instructions {
namespace {

/// A number in PTX's form: 0f3F800000.
std::string ptx_float(float x) {
  char text[16];
  std::snprintf(text, sizeof text, "0f%08X", std::bit_cast<uint32_t>(x));
  return text;
}
float float_of(const std::string& operation, const std::string& operands) {
  return std::bit_cast<float>(
      result_of(operation + " %f1, " + operands + ";\nmov.b32 %r2, %f1;\n"));
}
float sum(const char* operation, float a, float b) {
  return float_of(operation, ptx_float(a) + ", " + ptx_float(b));
}
uint32_t integer(const std::string& operation, const std::string& operands) {
  return result_of(operation + " %r2, " + operands + ";\n");
}

TEST_CASE("sums are rounded as their modifier says") {
  const float one_up = std::nextafter(1.0f, 2.0f), one_down = std::nextafter(1.0f, 0.0f);
  CHECK(sum("add.f32", 1, 0x1p-30f) == 1);
  CHECK(sum("add.rz.f32", 1, 0x1p-30f) == 1);
  CHECK(sum("add.rz.f32", 1, -0x1p-30f) == one_down);
  CHECK(sum("add.rm.f32", 1, 0x1p-30f) == 1);
  CHECK(sum("add.rm.f32", -1, -0x1p-30f) == -one_up);
  CHECK(sum("add.rp.f32", 1, 0x1p-30f) == one_up);
  CHECK(sum("add.f32", 1, 0x1p-30f) == 1);  // the mode was restored
  const std::string operands =
      ptx_float(0x1p-15f) + ", " + ptx_float(0x1p-15f) + ", " + ptx_float(1);
  CHECK(float_of("fma.rz.f32", operands) == 1);
  CHECK(float_of("fma.rp.f32", operands) == one_up);
}

TEST_CASE("a number has priority over a NaN, and zeros have an order") {
  const float nan = std::nanf("");
  CHECK(sum("max.f32", nan, -3) == -3);
  CHECK(sum("min.f32", -3, nan) == -3);
  CHECK(std::isnan(sum("max.f32", nan, nan)));
  CHECK(std::signbit(sum("min.f32", 0.0f, -0.0f)));
  CHECK(!std::signbit(sum("max.f32", -0.0f, 0.0f)));
}

TEST_CASE("comparisons with a NaN: ordered false, unordered true") {
  const auto compared = [](const std::string& how, float a, float b) {
    return result_of("setp." + how + ".f32 %p1, " + ptx_float(a) + ", " + ptx_float(b) +
                     ";\nselp.b32 %r2, 1, 0, %p1;\n") == 1;
  };
  const float nan = std::nanf("");
  for (const char* how : {"eq", "ne", "lt", "le", "gt", "ge", "num"}) CHECK(!compared(how, nan, 1));
  for (const char* how : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"})
    CHECK(compared(how, nan, 1));
  CHECK(compared("ne", 2, 1));
  CHECK(compared("leu", 1, 1));
  CHECK(!compared("gtu", 1, 1));
}

TEST_CASE("conversions saturate, and a NaN becomes 0") {
  CHECK(integer("cvt.rzi.s32.f32", ptx_float(-2.75f)) == uint32_t(-2));
  CHECK(integer("cvt.rni.s32.f32", ptx_float(2.5f)) == 2);
  CHECK(integer("cvt.rzi.s32.f32", ptx_float(3e9f)) == 0x7fffffff);
  CHECK(integer("cvt.rzi.s32.f32", ptx_float(-3e9f)) == 0x80000000);
  CHECK(integer("cvt.rzi.u32.f32", ptx_float(-1)) == 0);
  CHECK(integer("cvt.rzi.u32.f32", ptx_float(1e20f)) == 0xffffffff);
  CHECK(integer("cvt.rzi.s32.f32", ptx_float(std::nanf(""))) == 0);
  CHECK(integer("cvt.rzi.s32.f64", "0d7FF8000000000000") == 0x80000000);
  CHECK(float_of("cvt.rmi.f32.f32", ptx_float(-0.5f)) == -1);
  CHECK(float_of("cvt.rpi.f32.f32", ptx_float(0.5f)) == 1);
  CHECK(float_of("cvt.sat.f32.f32", ptx_float(1.5f)) == 1);
  CHECK(float_of("cvt.sat.f32.f32", ptx_float(std::nanf(""))) == 0);
  CHECK(result_of("cvt.rn.bf16.f32 %rs1, 0f3F808000;\nmov.b32 %r2, {%rs1, %rs1};\n") == 0x3f803f80);
  CHECK(result_of(
            "cvt.rn.f16.f32 %rs1, 0f477FF000;\nmov.b16 %rs2, 0;\nmov.b32 %r2, {%rs1, %rs2};\n") ==
        0x7c00);
  CHECK(result_of("mov.b16 %rs1, 1;\ncvt.f32.f16 %f1, %rs1;\nmov.b32 %r2, %f1;\n") ==
        std::bit_cast<uint32_t>(0x1p-24f));
  CHECK(result_of("mov.b16 %rs1, 255;\ncvt.s32.s8 %r2, %rs1;\n") == 0xffffffff);
}

TEST_CASE("bits: shifts beyond the width, fields, bytes") {
  CHECK(integer("shl.b32", "5, 32") == 0);
  CHECK(integer("shr.u32", "-1, 40") == 0);
  CHECK(integer("shr.s32", "-8, 40") == 0xffffffff);
  CHECK(integer("shr.s32", "-8, 1") == uint32_t(-4));
  CHECK(integer("bfi.b32", "0xff, 0x10000000, 4, 8") == 0x10000ff0);
  CHECK(integer("bfi.b32", "-1, 0, 28, 8") == 0xf0000000);
  CHECK(integer("prmt.b32", "0x03020180, 0x07060504, 0x7408") == 0x070480ff);
  CHECK(integer("clz.b32", "0") == 32);
  CHECK(integer("popc.b32", "0xf0f0") == 8);
  CHECK(integer("mul.hi.u32", "-1, -1") == 0xfffffffe);
  CHECK(integer("mad.lo.s32", "7, -3, 1") == uint32_t(-20));
  CHECK(integer("div.s32", "-7, 2") == uint32_t(-3));
  CHECK(integer("rem.s32", "-7, 2") == uint32_t(-1));
  CHECK(integer("abs.s32", "-7") == 7);
}

TEST_CASE("sums of several words, by their carry") {
  const auto high = [](const char* low, const char* rest) {
    return result_of(std::string(low) + " %r3, -1, 1;\n" + rest + " %r2, 5, 3;\n");
  };
  CHECK(high("add.cc.u32", "addc.u32") == 9);
  CHECK(high("sub.cc.u32", "subc.u32") == 2);
  CHECK(result_of("sub.cc.u32 %r3, 0, 1;\nsubc.u32 %r2, 5, 3;\n") == 1);
  CHECK(result_of("mad.lo.cc.u32 %r3, -1, 1, 1;\nmadc.hi.u32 %r2, -1, -1, 2;\n") == 0xfffffffe + 3);
}

TEST_CASE("registers taken apart, and addresses with a displacement") {
  CHECK(result_of(
            "mov.b32 %r3, 0x12345678;\nmov.b32 {%rs1, %rs2}, %r3;\nmov.b32 %r2, {%rs2, %rs1};\n") ==
        0x56781234);
  CHECK(result_of("mov.b64 %rd4, {7, 9};\nmov.b64 {%r3, %r2}, %rd4;\n") == 9);
  CHECK(words_after(
            with_kernel(
                "ld.global.v2.u32 {%r2, %r3}, [%rd1+8];\nst.global.v2.u32 [%rd1], {%r3, %r2};\n"),
            {0, 0, 3, 4}, {.threads = 1}) == std::vector<uint32_t>{4, 3, 3, 4});
  CHECK(words_after(with_kernel("ld.global.s8 %r2, [%rd1+1];\nst.global.u32 [%rd1], %r2;\n"),
                    {0xff00}, {.threads = 1}) == std::vector<uint32_t>{0xffffffff});
}

TEST_CASE("a product and a sum are fused where fusing is allowed, and nowhere else") {
  // (1 + e)^2 - 1 - 2 e is e^2 if the product is not rounded, and 0 if it is.
  const auto rest = [](const char* mul, const char* between, bool fused) {
    const std::string x = ptx_float(1 + 0x1p-12f), y = ptx_float(1 + 0x1p-11f);
    const std::string body = "mov.f32 %f2, " + x + ";\n" + mul + " %f1, %f2, %f2;\n" + between +
                             "sub.f32 %f3, %f1, " + y + ";\nst.global.f32 [%rd1], %f3;\n";
    return std::bit_cast<float>(
        words_after(with_kernel(body), {0}, {.threads = 1, .fused = fused})[0]);
  };
  CHECK(rest("mul.f32", "", false) == 0);
  CHECK(rest("mul.f32", "", true) == 0x1p-24f);
  CHECK(rest("mul.rn.f32", "", true) == 0);
  const std::string doubled = with_kernel(
      "mov.f32 %f2, 0f3F800001;\nmul.f32 %f1, %f2, 0f40000000;\nsub.f32 %f3, %f1, %f2;\n");
  const int64_t before = ptx::fused_sums();
  words_after(doubled, {0}, {.threads = 1, .fused = true});
  CHECK(ptx::fused_sums() == before);  // exact without it
  CHECK(rest("mul.f32", "mov.f32 %f2, 0f00000000;\n", true) == 0);
  CHECK(rest("mul.f32", "L:\n", true) == 0x1p-24f);  // no jump leads there
  CHECK(rest("mul.f32", "setp.eq.u32 %p1, %r1, 1;\n@%p1 bra L;\nL:\n", true) == 0);
}

}  // namespace
}  // namespace halftone::test::instructions

// Threads of a block: branches, barriers, exchanges, atomics, tensor cores, in every order.

namespace halftone::test::threads {
namespace {

using ptx::Order;
constexpr Order orders[] = {Order::in_step, Order::ascending, Order::descending, Order::shuffled};

std::vector<uint32_t> counted(std::size_t n) {
  std::vector<uint32_t> words(n);
  std::iota(words.begin(), words.end(), 0u);
  return words;
}
/// The words of 96 threads that store their own numbers, in each order.
template <class F> void check_words(const std::string& body, F wanted, unsigned threads = 96) {
  for (const Order order : orders) {
    CAPTURE(int(order));
    const auto got =
        words_after(with_kernel(body), counted(threads), {.threads = threads, .order = order});
    for (uint32_t t = 0; t < threads; ++t) CHECK(got[t] == wanted(t));
  }
}

TEST_CASE("threads that took different branches meet again") {
  check_words(
      "and.b32 %r2, %r1, 3;\nmov.b32 %r4, 0;\nL0:\nadd.s32 %r4, %r4, 10;\nadd.s32 %r2, %r2, -1;\n"
      "setp.gt.s32 %p1, %r2, 0;\n@%p1 bra L0;\nmov.b32 %r5, -1;\nsetp.eq.s32 %p2, %r4, 30;\n"
      "vote.sync.ballot.b32 %r6, %p2, %r5;\nadd.s32 %r4, %r4, %r6;\nst.global.u32 [%rd3], %r4;\n",
      [](uint32_t t) { return std::max(t & 3, 1u) * 10 + 0x88888888; });
}

TEST_CASE("calls keep their registers and their memory separate") {
  const std::string function =
      ".func (.param .b32 f_result) f(.param .b32 f_param_0)\n{\n.reg .b32 %r<4>;\n.reg .pred "
      "%p<2>;\n"
      "ld.param.u32 %r1, [f_param_0];\nsetp.lt.u32 %p1, %r1, 5;\n@%p1 bra L;\nmov.b32 %r2, 100;\n"
      "st.param.b32 [f_result], %r2;\nret;\nL:\nst.param.b32 [f_result], %r1;\nret;\n}\n";
  const std::string call =
      "{\n.param .b32 given;\n.param .b32 result;\nst.param.b32 [given], %r1;\n"
      "call.uni (result), f, (given);\nld.param.b32 %r2, [result];\n}\n";
  const auto got =
      words_after(with_kernel("mov.b32 %r7, 1000;\n" + call + "add.s32 %r7, %r7, %r2;\n" + call +
                                  "add.s32 %r7, %r7, %r2;\nst.global.u32 [%rd3], %r7;\n",
                              "", function),
                  counted(32));
  CHECK(got[3] == 1006);
  CHECK(got[7] == 1200);
}

const std::string shared_words =
    ".shared .align 4 .b8 s[1024];\nmov.b32 %r2, s;\nshl.b32 %r3, %r1, 2;\n"
    "add.s32 %r2, %r2, %r3;\nst.shared.u32 [%r2], %r1;\n";
const std::string next_word = "ld.shared.u32 %r4, [%r2+4];\nst.global.u32 [%rd3], %r4;\n";

TEST_CASE("a barrier orders accesses to shared memory; without it the orders differ") {
  check_words(
      shared_words + "bar.sync 0;\nsetp.eq.u32 %p1, %r1, 95;\n@%p1 bra L;\n" + next_word + "L:\n",
      [](uint32_t t) { return t < 95 ? t + 1 : t; });
  const std::string racing = with_kernel(shared_words + next_word);
  const auto ascending =
      words_after(racing, counted(96), {.threads = 96, .order = Order::ascending});
  const auto descending =
      words_after(racing, counted(96), {.threads = 96, .order = Order::descending});
  CHECK(ascending[31] != 32);  // the next warp has not run
  CHECK(descending[31] == 32);
}

TEST_CASE("shared memory and registers hold only numbers that a kernel wrote") {
  const std::string read =
      ".shared .align 4 .b8 s[128];\nmov.b32 %r2, s;\nld.shared.u32 %r3, [%r2];\nst.global.u32 "
      "[%rd3], %r3;\n";
  CHECK(words_after(with_kernel(read), {0}, {.threads = 1})[0] == 0xffffffff);
  const std::string skipped =
      "setp.eq.u32 %p1, %r1, 1;\n@!%p1 bra L;\nmov.b32 %r2, 7;\nL:\nst.global.u32 [%rd3], %r2;\n";
  CHECK(words_after(with_kernel(skipped), {0, 0}, {.threads = 2}) ==
        std::vector<uint32_t>{0xffffffff, 7});
}

TEST_CASE("shuffles: each direction, within segments, and past the end") {
  const auto body = [](const std::string& how, int by, int clamp) {
    return "mov.b32 %r5, -1;\nshfl.sync." + how + ".b32 %r2|%p1, %r1, " + std::to_string(by) +
           ", " + std::to_string(clamp) +
           ", %r5;\nselp.b32 %r3, 1000, 0, %p1;\nadd.s32 %r2, %r2, %r3;\nst.global.u32 [%rd3], "
           "%r2;\n";
  };
  check_words(body("bfly", 5, 31), [](uint32_t t) { return (t ^ 5) + 1000; });
  check_words(body("up", 3, 0), [](uint32_t t) { return t % 32 < 3 ? t : t - 3 + 1000; });
  check_words(body("down", 3, 31), [](uint32_t t) { return t % 32 > 28 ? t : t + 3 + 1000; });
  check_words(body("idx", 9, 31), [](uint32_t t) { return t / 32 * 32 + 9 + 1000; });
  // Segments of eight lanes: mask 0x18 in bits 8 to 12.
  check_words(body("idx", 2, 0x1807 | 0x18), [](uint32_t t) { return t / 8 * 8 + 2 + 1000; });
}

TEST_CASE("atomics of all threads of all blocks") {
  for (const Order order : orders) {
    const std::string body =
        "mov.b32 %r2, 2;\natom.global.add.u32 %r3, [%rd1], %r2;\natom.global.max.u32 %r4, "
        "[%rd1+4], %r1;\n"
        "atom.global.cas.b32 %r5, [%rd1+8], 0, 9;\n";
    const auto got =
        words_after(with_kernel(body), {5, 0, 0}, {.threads = 64, .blocks = 3, .order = order});
    CHECK(got == std::vector<uint32_t>{5 + 2 * 64 * 3, 63, 9});
  }
}

TEST_CASE("local memory by generic addresses: each thread reads and writes its own") {
  const std::string local =
      ".local .align 16 .b8 l[16];\nmov.b64 %rd4, l;\ncvta.local.u64 %rd5, %rd4;\n"
      "shl.b32 %r3, %r1, 1;\nst.u32 [%rd5], %r3;\nst.local.u32 [%rd4+4], %r1;\n";
  check_words(local +
                  "ld.v2.u32 {%r4, %r5}, [%rd5];\nsub.s32 %r2, %r4, %r5;\n"
                  "add.s32 %r2, %r2, 7;\nst.u32 [%rd3], %r2;\n",
              [](uint32_t t) { return t + 7; });
  check_words(local +
                  "add.s64 %rd6, %rd5, 4;\ncvta.to.local.u64 %rd7, %rd6;\nld.local.u32 %r4, "
                  "[%rd7];\nst.global.u32 [%rd3], %r4;\n",
              [](uint32_t t) { return t; });
  // The address of another thread's variable is that of the reader's own.
  check_words(local +
                  ".shared .align 8 .b8 s[8];\nsetp.eq.u32 %p1, %r1, 0;\n"
                  "@%p1 st.shared.u64 [s], %rd5;\nbar.sync 0;\nld.shared.u64 %rd6, [s];\n"
                  "ld.u32 %r4, [%rd6];\nst.global.u32 [%rd3], %r4;\n",
              [](uint32_t t) { return 2 * t; });
}

TEST_CASE("shared memory by generic addresses") {
  check_words(
      ".shared .align 4 .b8 s[384];\nmov.b64 %rd4, s;\ncvta.shared.u64 %rd5, %rd4;\n"
      "add.s64 %rd5, %rd5, %rd2;\nst.u32 [%rd5], %r1;\nbar.sync 0;\ncvta.to.shared.u64 %rd6, "
      "%rd5;\nld.shared.u32 %r4, [%rd6];\nld.u32 %r5, [%rd5];\nadd.s32 %r2, %r4, %r5;\n"
      "st.global.u32 [%rd3], %r2;\n",
      [](uint32_t t) { return 2 * t; });
}

TEST_CASE("a product of tiles equals that of three loops") {
  // Factors of bf16 in words 0 .. 127 and 128 .. 255, the result from word 256 on. The second
  // factor is stored by columns.
  std::vector<uint32_t> words(512);
  const auto value = [](int n) { return float((n * 7 + 3) % 11 - 5); };
  for (int n = 0; n < 512; n += 2)
    words[std::size_t(n / 2)] = std::bit_cast<uint32_t>(value(n)) >> 16 |
                                (std::bit_cast<uint32_t>(value(n + 1)) & 0xffff0000);
  const std::string a = "{%r2, %r3, %r4, %r5}", b = "{%r6, %r7, %r8, %r9}",
                    c = "{%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1}",
                    d = "{%f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9}";
  const std::string body =
      "mov.b32 %r10, 16;\nmov.f32 %f1, 0f40000000;\nadd.s64 %rd4, %rd1, 512;\nadd.s64 %rd5, %rd1, "
      "1024;\n"
      "wmma.load.a.sync.aligned.row.m16n16k16.bf16 " +
      a +
      ", [%rd1], %r10;\n"
      "wmma.load.b.sync.aligned.col.m16n16k16.bf16 " +
      b +
      ", [%rd4], %r10;\n"
      "wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32 " +
      d + ", " + a + ", " + b + ", " + c +
      ";\n"
      "cvta.to.global.u64 %rd6, %rd5;\n";
  const std::string store =
      ".shared .align 32 .b8 t[1024];\nmov.b32 %r11, t;\n"
      "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%r11], " +
      d +
      ", %r10;\nbar.sync 0;\n"
      "mul.lo.s32 %r12, %r1, 32;\nadd.s32 %r12, %r12, %r11;\nmul.wide.u32 %rd7, %r1, 32;\nadd.s64 "
      "%rd7, %rd7, %rd6;\n"
      "ld.shared.v4.f32 {%f10, %f11, %f12, %f13}, [%r12];\nst.global.v4.f32 [%rd7], {%f10, %f11, "
      "%f12, %f13};\n"
      "ld.shared.v4.f32 {%f10, %f11, %f12, %f13}, [%r12+16];\nst.global.v4.f32 [%rd7+16], {%f10, "
      "%f11, %f12, %f13};\n";
  const auto got = words_after(with_kernel(body + store), words);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 16; ++column) {
      float sum = 2;
      for (int k = 0; k < 16; ++k) sum += value(16 * row + k) * value(256 + 16 * column + k);
      CHECK(std::bit_cast<float>(got[std::size_t(256 + 16 * row + column)]) == sum);
    }
}

}  // namespace
}  // namespace halftone::test::threads
