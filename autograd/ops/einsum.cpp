// einsum by one batched matrix product: every letter is of one of four kinds,
//   batch (both operands and the result), a's, b's (one operand and the result), summed (both).
// Letters of one operand alone that the result lacks are summed first.
#include <halftone/autograd/ops/einsum.h>

#include <algorithm>
#include <string>

namespace halftone {

namespace {

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

struct Equation {
  std::string a, b, result;
};

[[noreturn]] void refuse(std::string_view equation, std::string_view why) {
  fail<UsageError>("einsum", "\"", equation, "\": ", why,
                   ". Write it as \"ij,jk->ik\", a letter per dimension.");
}

Equation parsed(std::string_view equation) {
  std::string text(equation);
  std::erase(text, ' ');
  const std::size_t arrow = text.find("->"), comma = text.find(',');
  if (comma == std::string::npos || text.find(',', comma + 1) != std::string::npos)
    refuse(equation, "there must be two operands");
  if (text.find('.') != std::string::npos) refuse(equation, "\"...\" is not supported");
  Equation e{text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), {}};
  if (arrow != std::string::npos && comma > arrow) refuse(equation, "there must be two operands");
  const auto letters_only = [](const std::string& part) {
    return std::ranges::all_of(
        part, [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
  };
  const auto twice = [](const std::string& part) {
    for (std::size_t i = 0; i < part.size(); ++i)
      if (part.find(part[i], i + 1) != std::string::npos) return true;
    return false;
  };
  if (arrow != std::string::npos) {
    e.result = text.substr(arrow + 2);
  } else {
    for (const char c : e.a + e.b)
      if (has(e.a, c) != has(e.b, c)) e.result += c;
    std::ranges::sort(e.result);
  }
  if (!letters_only(e.a) || !letters_only(e.b) || !letters_only(e.result))
    refuse(equation, "there is something that is no letter");
  if (twice(e.a) || twice(e.b))
    refuse(equation, "a letter is twice in one operand, which is not supported");
  if (twice(e.result)) refuse(equation, "a letter is twice in the result");
  for (const char c : e.result)
    if (!has(e.a, c) && !has(e.b, c)) refuse(equation, "the result has a letter of no operand");
  return e;
}

/// The letters of `from` for which keep(letter).
template <class Keep> std::string those(const std::string& from, Keep keep) {
  std::string kept;
  std::ranges::copy_if(from, std::back_inserter(kept), keep);
  return kept;
}

/// Dimensions by letter.
struct Labelled {
  Tensor x;
  std::string letters;

  int64_t size(char letter) const { return x.shape()[int(letters.find(letter))]; }
  int64_t size(const std::string& some) const {
    int64_t product = 1;
    for (const char c : some) product *= size(c);
    return product;
  }
  /// Summed over the letters that neither the result nor the other operand has.
  void sum_alone(const Equation& e, const std::string& other) {
    Dims dims;
    for (std::size_t i = 0; i < letters.size(); ++i)
      if (!has(e.result, letters[i]) && !has(other, letters[i])) dims.push_back(int64_t(i));
    if (dims.empty()) return;
    const DType dtype = x.dtype();
    x = cast(sum(x, dims), dtype);
    letters = those(letters, [&](char c) { return has(e.result, c) || has(other, c); });
  }
  Tensor in_order(const std::string& order) const {
    Dims dims;
    for (const char c : order) dims.push_back(int64_t(letters.find(c)));
    return permute(x, dims);
  }
};

void check_operand(std::string_view equation, const Labelled& operand) {
  if (operand.x.rank() != int(operand.letters.size()))
    fail<ShapeError>("einsum", "\"", equation, "\" has ", operand.letters.size(),
                     " letters for an operand that is ", described(operand.x),
                     ". Give one per dimension.");
}

}  // namespace

Tensor einsum(std::string_view equation, const Tensor& a_in, const Tensor& b_in) {
  check::defined("einsum", "an operand", a_in);
  check::defined("einsum", "an operand", b_in);
  const Equation e = parsed(equation);
  check_operand(equation, {a_in, e.a});
  check_operand(equation, {b_in, e.b});
  // As for PyTorch's einsum, whose name is on the list: cast before anything is summed.
  std::array inputs{a_in, b_in};
  if (InputCaster* caster = active_caster()) caster->cast_inputs(Matmul::info, inputs);
  const DType common = promote(inputs[0].dtype(), inputs[1].dtype());
  check::floating("einsum", inputs[0]);
  check::floating("einsum", inputs[1]);
  Labelled a{cast(inputs[0], common), e.a}, b{cast(inputs[1], common), e.b};
  a.sum_alone(e, e.b), b.sum_alone(e, e.a);
  for (const char c : a.letters)
    if (has(b.letters, c) && a.size(c) != b.size(c))
      fail<ShapeError>("einsum", "\"", equation, "\": ", c, " is ", a.size(c), " in ",
                       described(a_in), " and ", b.size(c), " in ", described(b_in),
                       ". A letter has one size.");

  const std::string batch =
      those(a.letters, [&](char c) { return has(b.letters, c) && has(e.result, c); });
  const std::string summed =
      those(a.letters, [&](char c) { return has(b.letters, c) && !has(e.result, c); });
  const std::string of_a = those(a.letters, [&](char c) { return !has(b.letters, c); });
  const std::string of_b = those(b.letters, [&](char c) { return !has(a.letters, c); });
  const Tensor left =
      reshape(a.in_order(batch + of_a + summed), {a.size(batch), a.size(of_a), a.size(summed)});
  const Tensor right =
      reshape(b.in_order(batch + summed + of_b), {a.size(batch), a.size(summed), b.size(of_b)});
  // Nothing to sum: a product of each with each, exact to one rounding.
  const Tensor product = summed.empty() ? left * right : matmul(left, right);

  const std::string order = batch + of_a + of_b;
  Shape shape;
  for (const char c : batch + of_a) shape.push_back(a.size(c));
  for (const char c : of_b) shape.push_back(b.size(c));
  return Labelled{reshape(product, shape), order}.in_order(e.result);
}

}  // namespace halftone
