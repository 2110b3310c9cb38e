// One loop per arity over the formula lists. The compiler inlines the formulas and vectorizes the
// loop.
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/formats/coded_form.h>

namespace halftone::simd::HALFTONE_ISA {

static void unary(FormulaCall call, const float* x, float* y, int64_t n) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f.forward(x[i]);
  });
}

static void unary_backward(FormulaCall call, const float* saved, const float* dy, float* dx,
                           int64_t n) {
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i] = gradient_of(f, dy[i], saved[i]);
  });
}

static void binary(FormulaCall call, const float* a, const float* b, float* y, int64_t n) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f.forward(a[i], b[i]);
  });
}

static void binary_backward(FormulaCall call, int input, const float* a, const float* b,
                            const float* dy, float* dx, int64_t n) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
    if (input == 0) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) dx[i] = gradient_of<0>(f, dy[i], a[i], b[i]);
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) dx[i] = gradient_of<1>(f, dy[i], a[i], b[i]);
    }
  });
}

static void compare(FormulaCall call, const float* a, const float* b, bool* y, int64_t n) {
  visit_index(CompareFormulas{}, call.index, [&]<class F>() {
    const F f = formula_of<F>(call);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f.forward(a[i], b[i]);
  });
}

/// Uses no branches, which would be mispredicted.
template <class T>
static void select(const bool* condition, const T* a, const T* b, T* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T mask = T(0) - T(condition[i]);
    y[i] = T((a[i] & mask) | (b[i] & T(~mask)));
  }
}

static void accumulate(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}
static void subtract(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] -= x[i];
}
static void scale(float factor, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] *= factor;
}
static void lerp(const float* x, float weight, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += weight * (x[i] - y[i]);
}

void fill_elementwise(Kernels& table) {
  table.compare = compare, table.select_words = select<uint32_t>;
  table.select_halves = select<uint16_t>;
  table.unary = unary, table.unary_backward = unary_backward;
  table.binary = binary, table.binary_backward = binary_backward;
  table.accumulate = accumulate, table.subtract = subtract, table.scale = scale, table.lerp = lerp;
}

// Optimizer updates, in one pass over everything that they read and write; weight forms; the check
// of scaled gradients.

/// One loop per rule and mask of states; states outside of the mask are never touched.
template <class Rule, StateMask mask>
static void update_as(const UpdateNumbers& u, const float* gradient, float* weight,
                      float* const* states, int64_t n) {
  using Has = StaticStates<mask>;
  typename Rule::template Numbers<float> numbers;
  __builtin_memcpy(&numbers, u.numbers, sizeof numbers);
  float *const s0 = states[0], *const s1 = states[1], *const s2 = states[2];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    float state[3] = {Has::has(0) ? s0[i] : 0, Has::has(1) ? s1[i] : 0, Has::has(2) ? s2[i] : 0};
    float w = weight[i];
    Rule::apply(numbers, Has{}, gradient[i], w, state);
    weight[i] = w;
    if (Has::has(0)) s0[i] = state[0];
    if (Has::has(1)) s1[i] = state[1];
    if (Has::has(2)) s2[i] = state[2];
  }
}

template <class Rule, StateMask... masks>
static void update_rule(StateMasks<masks...> /*kinds*/, const UpdateNumbers& u,
                        const float* gradient, float* weight, float* const* states, int64_t n) {
  ((u.states == masks ? update_as<Rule, masks>(u, gradient, weight, states, n) : void()), ...);
}

static void update(const UpdateNumbers& u, const float* gradient, float* weight,
                   float* const* states, int64_t n) {
  visit_index(UpdateRules{}, u.rule, [&]<class Rule>() {
    update_rule<Rule>(typename Rule::Kinds{}, u, gradient, weight, states, n);
  });
}

/// Calls visitor.operator()<Form>() for the form if it stores an i16 (`halves`), or if it does not.
template <bool halves, class Visitor> static void visit_form(WeightForm form, Visitor visitor) {
  visit_index(WeightForms{}, int(form), [&]<class Form>() {
    if constexpr ((Form::companion_dtype(bf16) == i16) == halves)
      visitor.template operator()<Form>();
  });
}

static void decode(WeightForm form, const float* parameter, const float* companion, float* weight,
                   int64_t n) {
  visit_form<false>(form, [&]<class Form>() {
    constexpr bool both = !Form::companion.empty();
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i)
      weight[i] = Form::decode(parameter[i], both ? companion[i] : 0.0f);
  });
}

static void encode(WeightForm form, const float* weight, const uint16_t* random, float* parameter,
                   float* companion, int64_t n) {
  visit_form<false>(form, [&]<class Form>() {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const auto kept = Form::encode(weight[i], Form::uses_rounded ? parameter[i] : weight[i],
                                     Form::uses_random ? random[i] : uint16_t(0));
      parameter[i] = kept.parameter;
      if constexpr (!Form::companion.empty()) companion[i] = kept.companion;
    }
  });
}

static void decode_halves(WeightForm form, const uint16_t* parameter, const int16_t* companion,
                          float* weight, int64_t n) {
  visit_form<true>(form, [&]<class Form>() {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i)
      weight[i] = Form::decode(__builtin_bit_cast(float, uint32_t(parameter[i]) << 16),
                               float(companion[i]));
  });
}

static void encode_halves(WeightForm form, const float* weight, uint16_t* parameter,
                          int16_t* companion, int64_t n) {
  visit_form<true>(form, [&]<class Form>() {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const auto kept = Form::encode(weight[i], weight[i], uint16_t(0));
      parameter[i] = uint16_t(__builtin_bit_cast(uint32_t, kept.parameter) >> 16);
      companion[i] = int16_t(int32_t(kept.companion));
    }
  });
}

static bool unscale(const float* x, float factor, float* y, int64_t n) {
  constexpr uint32_t exponent = 0x7f800000u;  // all ones: infinite or NaN
  uint32_t found = 0;
  if (!y) {
    for (int64_t i = 0; i < n; ++i)
      found |= (__builtin_bit_cast(uint32_t, x[i]) & exponent) == exponent;
    return found == 0;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    found |= (__builtin_bit_cast(uint32_t, x[i]) & exponent) == exponent;
    y[i] = x[i] * factor;
  }
  return found == 0;
}

// Coded states (core/formats/coded_form.h): numbers are scaled in one loop, and codes are looked up
// in another, sixteen at once.

/// codes[i] = codec.code_of(scaled[i])
static void look_up_codes(const Codec& codec, const float* scaled, int64_t n, uint8_t* codes) {
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512i first = _mm512_set1_epi32(int(codec.first)),
                last = _mm512_set1_epi32(int(codec.last)),
                of_sign = _mm512_set1_epi32(int(codec.last - codec.first + 1));
  for (; i + 16 <= n; i += 16) {
    const __m512i bits = _mm512_loadu_si512(scaled + i);
    const __m512i magnitude =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x7fff));
    const __mmask16 negative = _mm512_cmplt_epi32_mask(bits, _mm512_setzero_si512());
    const __mmask16 inside = _mm512_cmpge_epi32_mask(magnitude, first);
    __m512i at =
        _mm512_sub_epi32(_mm512_min_epi32(_mm512_max_epi32(magnitude, first), last), first);
    at = _mm512_mask_add_epi32(at, negative, at, of_sign);
    const __m512i cell = _mm512_i32gather_epi32(at, codec.cells, 4);
    const __m512i lower = _mm512_maskz_and_epi32(inside, bits, _mm512_set1_epi32(0xffff));
    const __mmask16 above = _mm512_cmpgt_epi32_mask(lower, _mm512_srli_epi32(cell, 16));
    const __m128i found = _mm512_cvtepi32_epi8(_mm512_mask_srli_epi32(cell, above, cell, 8));
    __builtin_memcpy(codes + i, &found, sizeof found);
  }
#endif
  for (; i < n; ++i) codes[i] = codec.code_of(scaled[i]);
}

/// x[i] = numbers[codes[i]]
static void look_up_numbers(const float* numbers, const uint8_t* codes, int64_t n, float* x) {
  int64_t i = 0;
#if defined(__AVX512F__)
  __m512 table[16];
  for (int k = 0; k < 16; ++k) table[k] = _mm512_loadu_ps(numbers + 16 * k);
  for (; i + 16 <= n; i += 16) {
    __m128i bytes;
    __builtin_memcpy(&bytes, codes + i, sizeof bytes);
    const __m512i code = _mm512_cvtepu8_epi32(bytes);
    const __mmask16 bit5 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(32)),
                    bit6 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(64)),
                    bit7 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(128));
    __m512 of[4];  // for each value of the two highest bits
    for (int k = 0; k < 4; ++k)
      of[k] =
          _mm512_mask_blend_ps(bit5, _mm512_permutex2var_ps(table[4 * k], code, table[4 * k + 1]),
                               _mm512_permutex2var_ps(table[4 * k + 2], code, table[4 * k + 3]));
    _mm512_storeu_ps(x + i, _mm512_mask_blend_ps(bit7, _mm512_mask_blend_ps(bit6, of[0], of[1]),
                                                 _mm512_mask_blend_ps(bit6, of[2], of[3])));
  }
#endif
  for (; i < n; ++i) x[i] = numbers[codes[i]];
}

template <CodedForm form>
static void encode_blocks_as(const Codec& codec, const float* x, int64_t n, uint8_t* block) {
  constexpr CodedFormFacts f = facts(form);
  for (; n > 0; n -= f.block, x += f.block, block += f.block_bytes()) {
    const int64_t count = n < f.block ? n : f.block;
    uint32_t largest = 0, smallest = 0x7fffffff;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t magnitude = __builtin_bit_cast(uint32_t, x[i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
      if (f.scales > 1) smallest = magnitude - 1 < smallest ? magnitude - 1 : smallest;
    }
    const coded::Scales scales = coded::scales_of(form, __builtin_bit_cast(float, largest),
                                                  __builtin_bit_cast(float, smallest + 1));
    __builtin_memcpy(block, &scales, std::size_t(f.scale_bytes()));
    alignas(64) float scaled[f.block];
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) scaled[i] = coded::scaled(form, scales, x[i]);
    uint8_t* const codes = block + f.scale_bytes();
    if constexpr (f.codes_in_byte == 1) {
      look_up_codes(codec, scaled, count, codes);
    } else {
      uint8_t apart[f.block + 1];
      look_up_codes(codec, scaled, count, apart);
      apart[count] = 0;
      for (int64_t i = 0; i < (count + 1) / 2; ++i)
        codes[i] = uint8_t(apart[2 * i] << 4 | apart[2 * i + 1]);
    }
  }
}

template <CodedForm form>
static void decode_blocks_as(const Codec& codec, const uint8_t* block, int64_t n, float* x) {
  constexpr CodedFormFacts f = facts(form);
  for (; n > 0; n -= f.block, x += f.block, block += f.block_bytes()) {
    const int64_t count = n < f.block ? n : f.block;
    float read[2] = {0, 1};
    __builtin_memcpy(read, block, std::size_t(f.scale_bytes()));
    const coded::Scales scales{read[0], read[1]};
    const uint8_t* codes = block + f.scale_bytes();
    uint8_t apart[f.block + 1];
    if constexpr (f.codes_in_byte == 2) {
      for (int64_t i = 0; i < (count + 1) / 2; ++i)
        apart[2 * i] = codes[i] >> 4, apart[2 * i + 1] = codes[i] & 15;
      codes = apart;
    }
    look_up_numbers(codec.numbers, codes, count, x);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) x[i] = coded::unscaled(form, scales, x[i]);
  }
}

template <class Visitor> static void visit_coded_form(CodedForm form, Visitor visitor) {
  switch (form) {
    case CodedForm::plain: break;
    case CodedForm::dynamic8: return visitor.template operator()<CodedForm::dynamic8>();
    case CodedForm::linear8: return visitor.template operator()<CodedForm::linear8>();
    case CodedForm::dynamic4: return visitor.template operator()<CodedForm::dynamic4>();
    case CodedForm::e4m3: return visitor.template operator()<CodedForm::e4m3>();
    case CodedForm::e4m3_expanded: return visitor.template operator()<CodedForm::e4m3_expanded>();
  }
}
static void decode_blocks(const Codec& codec, const uint8_t* blocks, int64_t n, float* x) {
  visit_coded_form(codec.form,
                   [&]<CodedForm form>() { decode_blocks_as<form>(codec, blocks, n, x); });
}
static void encode_blocks(const Codec& codec, const float* x, int64_t n, uint8_t* blocks) {
  visit_coded_form(codec.form,
                   [&]<CodedForm form>() { encode_blocks_as<form>(codec, x, n, blocks); });
}

void fill_training(Kernels& table) {
  table.decode_blocks = decode_blocks, table.encode_blocks = encode_blocks;
  table.update = update, table.decode = decode, table.encode = encode;
  table.decode_halves = decode_halves, table.encode_halves = encode_halves;
  table.unscale = unscale;
}

}  // namespace halftone::simd::HALFTONE_ISA

// The tables of this instruction set. The portable one shares the kernels that neither add floats
// in an order of their own nor contain a product that could be fused.

#ifdef HALFTONE_PORTABLE
namespace halftone::simd::HALFTONE_FAST_ISA {
void fill_short_formats(Kernels& table);
void fill_images(Kernels& table);
void fill_random(Kernels& table);
void fill_quantize(Kernels& table);
}  // namespace halftone::simd::HALFTONE_FAST_ISA
#endif

namespace halftone::simd::HALFTONE_ISA {

#ifdef HALFTONE_PORTABLE
using namespace HALFTONE_FAST_ISA;
#endif

static Kernels make_table() {
  Kernels table{};
  table.name = HALFTONE_ISA_NAME;
  fill_elementwise(table);
  fill_reductions(table);
  fill_rows(table);
  fill_channels(table);
  fill_training(table);
  fill_gemm(table);
  fill_short_formats(table);
  fill_images(table);
  fill_random(table);
  fill_quantize(table);
  return table;
}

const Kernels& kernels() {
  static const Kernels table = make_table();
  return table;
}

}  // namespace halftone::simd::HALFTONE_ISA
