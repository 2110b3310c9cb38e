// Results of single instructions, at the edges that "PTX ISA" describes.
#include <bit>
#include <cmath>
#include <cstdio>

#include "../interpreter.h"

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
