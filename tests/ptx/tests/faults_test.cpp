// Errors that end a kernel: unknown instructions, and forbidden actions.
#include "../interpreter.h"

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
