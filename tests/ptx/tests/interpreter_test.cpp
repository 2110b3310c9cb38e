// Threads of a block: branches, barriers, exchanges, atomics, tensor cores, in every order.
#include <bit>
#include <numeric>

#include "../interpreter.h"

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
